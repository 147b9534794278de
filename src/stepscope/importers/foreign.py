"""Files of other tools, named by who wrote them, with what to give instead.

Judged by content only, and by the beginning of a file as far as that goes: a file of such a kind
may be large, and is never read whole, unpacked or unpickled to be refused.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from stepscope.importers.common.stream import is_packed, unpacked_head


@dataclass(frozen=True)
class Foreign:
    """A file that is recognised and not read.

    Attributes:
        what: what it is, after "is".
        do: what to do instead.
    """

    what: str
    do: str


TORCH: Final = "torch.profiler with ProfilerActivity.CUDA"
_NVIDIA: Final = "nsys profile -t cuda,nvtx"
_TIMELINE: Final = (
    f"give the timeline of the same run, recorded with stepscope run, {_NVIDIA} or {TORCH}"
)
_ASCEND: Final = Foreign(
    "a profile of Huawei's Ascend NPU (torch_npu or msprof)",
    "Stepscope reads GPUs only; open it in MindStudio Insight, or use msprof-analyze",
)


def recognised(path: Path, head: bytes) -> Foreign | None:
    """What a file that Stepscope does not read is; None for what it reads, and for the unknown.

    Args:
        path: a regular file.
        head: its first bytes.
    """
    for test in (_by_magic, _database, _protobuf):
        found = test(path, head)
        if found is not None:
            return found
    if is_packed(head):
        head = unpacked_head(path, head)
        found = _by_magic(path, head) or _protobuf(path, head)
    return found or _text(head)


_MAGIC: Final[tuple[tuple[bytes, Foreign], ...]] = (
    (
        b"NVR\0",
        Foreign(
            "an Nsight Compute report, not a timeline",
            "stepscope kernels explains it, and diagnose TRACE --ncu REPORT takes it beside a "
            "timeline",
        ),
    ),
    (b"PK\x03\x04", Foreign("a zip archive (perhaps a checkpoint of PyTorch)", _TIMELINE)),
    (b"\x93NUMPY", Foreign("an array of NumPy", _TIMELINE)),
    (
        b"\x89HDF\r\n\x1a\n",
        Foreign(
            "an HDF5 file, perhaps an export of Nsight Systems",
            "export it again with nsys export --type sqlite, or give the .nsys-rep file",
        ),
    ),
    (
        b"PAR1",
        Foreign(
            "a single Parquet table",
            "give the folder that nsys export --type parquetdir made, or a SQLite export",
        ),
    ),
    (b"PERFILE2", Foreign("a recording of Linux perf", _TIMELINE)),
    (b"memray", Foreign("a memory recording of memray", _TIMELINE)),
    *(
        (magic, Foreign(f"packed with {name}", f"unpack it ({command}) and give what is inside"))
        for magic, name, command in (
            (b"\xfd7zXZ\0", "xz", "xz -d"),
            (b"BZh", "bzip2", "bunzip2"),
            (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
            (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x"),
        )
    ),
)
_WIDE: Final = re.compile(
    rb"(?:\xff\xfe|\xfe\xff|\0\0\xfe\xff)[\0\s]*[{\[]|\0{1,3}[{\[]\0{0,2}[\s\"{]|[{\[]\0{1,3}[\s\"{]\0"
)
"""JSON of two or four bytes a character, with and without a byte order mark."""
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
_SNAPSHOT: Final = re.compile(rb"(?:segments|device_traces|allocator_settings|segment_type)")


def _by_magic(_: Path, head: bytes) -> Foreign | None:
    for magic, found in _MAGIC:
        if head.startswith(magic):
            return found
    if _WIDE.match(head):
        return Foreign(
            "text in UTF-16 or UTF-32, as PowerShell's > writes it",
            "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8) and give that",
        )
    if head[257:262] == b"ustar":
        return Foreign("a tar archive", "unpack it (tar -xf) and give what is inside")
    if _PICKLE.match(head) and not _SNAPSHOT.search(head):
        return Foreign("a pickle of Python, which is never loaded", _TIMELINE)
    if b"brain.Event:" in head[:64]:
        return Foreign("a TensorBoard event file: scalars, no timeline", _TIMELINE)
    return None


def _database(path: Path, head: bytes) -> Foreign | None:
    """Databases of other profilers."""
    if not head.startswith(b"SQLite format 3\0"):
        return None
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
    except (sqlite3.Error, UnicodeError):
        return None  # damaged: the importer of databases says what is wrong
    names = {str(name) for (name,) in rows}
    return next((found for holds, found in _DATABASES if holds(names)), None)


_DATABASES: Final[tuple[tuple[Callable[[set[str]], bool], Foreign], ...]] = (
    (
        lambda names: {"rocpd_api", "rocpd_op"} <= names,
        Foreign(
            "a database of AMD's rpd (rocmProfileData)",
            f"record the same run with rocprofv3 --sys-trace, or with {TORCH}, which covers ROCm",
        ),
    ),
    (
        lambda names: "StringTable" in names and "StringIds" not in names,
        Foreign("a database of nvprof", f"record the same run with {_NVIDIA}"),
    ),
    (
        lambda names: any(name.startswith("dlprof") for name in names),
        Foreign("a database of DLProf", "give the Nsight Systems report that it was made from"),
    ),
    (lambda names: {"STRING_IDS", "CANN_API"} <= names, _ASCEND),
)


# Protocol buffers: their kinds have no magic, so the first fields are looked at.


def _protobuf(path: Path, head: bytes) -> Foreign | None:
    if not head:
        return None
    if _CHAKRA_START.match(head):
        return _CHAKRA
    return None


_CHAKRA_START: Final = re.compile(rb"[\x02-\x7f]\x0a[\x03-\x10]\d+\.\d+[\d.\x20-\x7e]*")
_CHAKRA: Final = Foreign(
    "an execution trace of Chakra: what depends on what, for simulators, not what took how long",
    "give the torch.profiler trace that it was made from",
)


def _xla(what: str, text: bytes) -> tuple[str, str]:
    """Words about a profile of XLA, by the device that it names."""
    if b"/device:TPU" in text:
        return f"{what}, of a TPU", "Stepscope reads GPUs only; open it in xprof"
    if b"/device:GPU" not in text:
        return f"{what}, without a GPU in it", "record while the GPU works; open this one in xprof"
    return what, "give the .xplane.pb that the profiler wrote beside it"


# Texts: JSON of other tools, folded stacks, pages.

_AIU: Final = Foreign(
    "a trace of IBM's AIU (Spyre)",
    "Stepscope reads GPUs only; IBM's aiu-trace-analyzer (acelyzer) explains it",
)
_HPU: Final = Foreign(
    "a PyTorch trace of Intel's Gaudi (HPU)",
    "Stepscope reads GPUs only; open it in Perfetto, or profile with Gaudi's own tools",
)
_IN_PERFETTO: Final = "Stepscope reads GPUs only; open it in Perfetto"
_MTIA: Final = Foreign("a PyTorch trace of Meta's MTIA", _IN_PERFETTO)
_MLU: Final = Foreign("a PyTorch trace of Cambricon's MLU", _IN_PERFETTO)
_GCU: Final = Foreign("a PyTorch trace of Enflame's GCU", _IN_PERFETTO)
_VIZTRACER: Final = Foreign(
    "a trace of VizTracer, which records Python functions and no GPU work",
    f"record the same run with stepscope run --sample-hz 50, or with {TORCH} and with_stack=True",
)
_EXECUTION: Final = Foreign(
    "an execution trace of PyTorch (ExecutionTraceObserver): operators and their tensors, without "
    "times",
    "give the torch.profiler trace of the same run, which holds the shapes with record_shapes=True",
)
_SPEEDSCOPE: Final = Foreign("a profile of speedscope: stacks without GPU work", _TIMELINE)
_ROCPROF_OLD: Final = Foreign(
    "a trace of AMD's rocprof (version 1 or 2)",
    f"it is not read; record the same run with {TORCH}, which also covers ROCm",
)
_ROCPROF_CSV: Final = Foreign(
    "a table of rocprofv3 (CSV), one of several that belong together",
    "record with rocprofv3 --output-format rocpd or json, and give that file",
)
_MEMORY: Final = Foreign(
    "a memory timeline of torch.profiler (export_memory_timeline): sizes, no GPU work",
    "give the trace of the same run (export_chrome_trace)",
)
_STACKS: Final = Foreign(
    "a list of stacks (export_stacks of torch.profiler, py-spy or flamegraph.pl): sums, no times",
    "give the trace of the same run (export_chrome_trace)",
)
_PAGE: Final = Foreign("an HTML page", "give the capture that it was made from")
_FOLDED: Final = re.compile(rb"(?:[^\n;]+;)*[^\n;]+ \d+\r?\n")

_RECORDS: Final = Foreign(
    "a log of NCCL Inspector, which is no capture",
    "stepscope job reads those of all ranks, alone or with the digests of the job",
)
_NO_ARRAY: Final = rb'(?<!\\)"traceEvents"\s*:\s*[^\s\[]'
_NO_TRACE: Final = Foreign(
    "JSON whose traceEvents are no array, so no profiler trace", "check what wrote it"
)

_TEXTS: Final[tuple[tuple[re.Pattern[bytes], Foreign], ...]] = tuple(
    (re.compile(pattern), found)
    for pattern, found in (
        (rb'\A\{\s*"header"\s*:\s*\{[^{}]*"n_ranks"', _RECORDS),
        (rb'"schema"\s*:\s*"[\w.]*-?chakra', _EXECUTION),
        (rb'"nodes"\s*:\s*\[[^\]]{0,4000}"(?:ctrl_deps|rf_id|fw_parent)"', _EXECUTION),
        (rb'"(?:COMP|COMM_COLL|COMM_SEND|COMM_RECV|MEM_LOAD|MEM_STORE)_NODE"', _CHAKRA),
        (rb'"\$schema"\s*:\s*"https?://www\.speedscope\.app', _SPEEDSCOPE),
        (rb'"name"\s*:\s*"(?:Ascend Hardware|Overlap Analysis)"|"async_npu"', _ASCEND),
        (rb'"aiu(?:LaunchControlBlocks|LaunchSuperNode|LaunchComputeStream|Malloc|InitGraph)"'
         rb'|"name"\s*:\s*"[^"]*\b(?:Cmpt (?:Exec|Prep)|Flex RoundTrip)', _AIU),
        (rb'"mtia_(?:ccp_events|runtime|insight|workloadd|counters)"', _MTIA),
        (rb'"cat"\s*:\s*"hpu_(?:op|runtime|meta)', _HPU),
        (rb'"cat"\s*:\s*"mlu_', _MLU),
        (rb'"cat"\s*:\s*"gcu_', _GCU),
        (rb'"name"\s*:\s*"CPU (?:HIP|HSA) API', _ROCPROF_OLD),
        (_NO_ARRAY, _NO_TRACE),
    )
)  # fmt: skip


def _text(head: bytes) -> Foreign | None:
    """What a text is, by its beginning."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        for pattern, found in _TEXTS:
            if pattern.search(text):
                return found
        if _XLA_PROCESS.search(text):
            return Foreign(
                *_xla("a trace of JAX's or TensorFlow's own profiler (trace.json)", text)
            )
        return _MEMORY if re.match(rb"\[\s*\[\s*-?\d", text) else None
    if text[:15].lower().startswith((b"<!doctype html", b"<html")):
        return _PAGE
    if text.startswith(_TABLES_OF_ROCPROF):
        return _ROCPROF_CSV
    return _STACKS if _looks_folded(text) else None


_TABLES_OF_ROCPROF: Final = (b'"Kind","Agent_Id"', b'"Domain","Function"', b'"Kind","Operation"')


_XLA_PROCESS: Final = re.compile(rb'"name"\s*:\s*"/(?:host|device):')


def _looks_folded(text: bytes) -> bool:
    lines = text[:16384].splitlines(keepends=True)[:20]
    whole = [line for line in lines if line.endswith(b"\n")]
    return (
        bool(whole)
        and all(_FOLDED.fullmatch(line) for line in whole)
        and any(b";" in line for line in whole)
    )


def of_events(categories: set[str], calls: Iterable[str], *, gpu: bool) -> Foreign | None:
    """What wrote a trace of PyTorch's format whose beginning did not tell, by its events.

    Args:
        categories: of its events.
        calls: names of its runtime calls.
        gpu: whether it holds GPU work.
    """
    lower = {category.lower() for category in categories}
    if "fee" in lower and not gpu:  # with log_torch=True there are kernels in it
        return _VIZTRACER
    for prefix, found in _CATEGORIES:
        if any(category.startswith(prefix) for category in lower):
            return found
    return _AIU if any(re.match(r"aiu[A-Z]", name) for name in calls) else None


_CATEGORIES: Final = (
    ("mtia_", _MTIA),
    ("hpu_", _HPU),
    ("async_npu", _ASCEND),
    ("mlu_", _MLU),
    ("gcu_", _GCU),
)
