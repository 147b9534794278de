"""Files of other tools are named by who wrote them, in one line with what to do instead."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.protobuf import field, varint

from stepscope.api import Job
from stepscope.trace.errors import InputError

Make = Callable[[Path], None]


def plane(number: int, name: bytes, text: bytes = b"") -> bytes:
    """A plane of an XSpace, with some events' metadata."""
    known = field(4, field(1, 7) + field(2, field(1, 7) + field(2, text)))
    return field(1, field(1, number) + field(2, name) + known)


def written(data: bytes) -> Make:
    return lambda path: (path.write_bytes(data), None)[1]


def zipped(data: bytes) -> Make:
    return written(gzip.compress(data))


def chrome(*events: dict[str, object], **more: object) -> bytes:
    """A Chrome trace."""
    base = {"ph": "X", "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0}
    return json.dumps({"traceEvents": [{**base, **event} for event in events], **more}).encode()


def named(*names: str) -> list[dict[str, object]]:
    return [
        {"ph": "M", "pid": n, "name": "process_name", "args": {"name": name}}
        for n, name in enumerate(names)
    ]


def database(*tables: str) -> Make:
    def make(path: Path) -> None:
        connection = sqlite3.connect(path)
        for table in tables:
            connection.execute(f'CREATE TABLE "{table}" (id INTEGER)')
        connection.commit()
        connection.close()

    return make


OPERATOR = {"cat": "cpu_op", "name": "aten::mm"}
PERFETTO = b"".join(
    field(1, field(10, 1) + field(8, 1000 * n) + field(60, field(1, 5) + field(2, b"main")))
    for n in range(1, 20)
)

FILES: dict[str, tuple[Make, str]] = {
    "tpu.xplane.pb": (
        written(plane(1, b"/device:TPU:0", b"fusion")), r"JAX or TensorFlow.*TPU.*GPUs only",
    ),
    "cpu.xplane.pb": (written(plane(1, b"/host:CPU", b"x")), r"without a GPU"),
    "text.xplane.pb": (
        written(plane(1, b"/device:TPU:0") + b"\xef\xbf\xbd" * 40), r"of a TPU, damaged",
    ),
    "tf.trace.json.gz": (
        zipped(chrome(*named("/host:CPU", "/device:GPU:0"), {"name": "fusion"})),
        r"TensorFlow's own profiler.*give the \.xplane\.pb",
    ),
    "tpu.trace.json.gz": (
        zipped(chrome(*named("/host:CPU", "/device:TPU:0"), {"name": "fusion"})),
        r"TensorFlow's own profiler.*TPU.*xprof",
    ),
    "viz.json": (
        written(chrome({"cat": "FEE", "name": "f (a.py:1)"}, viztracer_metadata={"version": "1"})),
        r"VizTracer.*stepscope run --sample-hz",
    ),
    "aiu.json": (
        written(chrome(
            {"cat": "cuda_runtime", "name": "aiuMalloc"},
            {"cat": "cuda_runtime", "name": "aiuLaunchSuperNode"},
            {"cat": "kernel", "name": "bmm", "args": {"device": 0, "stream": 1}},
            OPERATOR, schemaVersion=1)),
        r"IBM's AIU.*aiu-trace-analyzer",
    ),
    "aiu_late.json": (
        written(chrome(
            *[{"cat": "cpu_op", "name": f"aten::op{n}"} for n in range(2000)],
            {"cat": "cuda_runtime", "name": "aiuScheduleWait"}, schemaVersion=1)),
        r"IBM's AIU",
    ),
    "mtia.json": (
        written(chrome(OPERATOR, {"cat": "mtia_runtime", "name": "launch"},
                       {"cat": "mtia_ccp_events", "name": "k"}, schemaVersion=1)),
        r"Meta's MTIA.*GPUs only",
    ),
    "hpu.json": (
        written(chrome(OPERATOR, {"cat": "hpu_op", "name": "k"}, schemaVersion=1)), r"Gaudi",
    ),
    "ascend.json": (
        written(json.dumps(
            [{"name": "process_name", "ph": "M", "pid": 3, "args": {"name": "Ascend Hardware"}},
             {"name": "MatMul", "ph": "X", "pid": 3, "tid": 0, "ts": "1.0", "dur": 2.0}]).encode()),
        r"Ascend.*MindStudio",
    ),
    "kernel_trace.csv": (
        written(b'"Kind","Agent_Id","Queue_Id"\n"KERNEL_DISPATCH",1,1\n'), r"rocprofv3 \(CSV\)",
    ),
    "rocprof_old.json": (
        written(chrome(*named("CPU HIP API", "GPU0"), {"name": "gemm"})), r"AMD's rocprof",
    ),
    "et.json": (
        written(b'{"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [{"id": 2}]}'),
        r"ExecutionTraceObserver.*torch\.profiler trace",
    ),
    "chakra.json": (
        written(b'{"version": "0.0.4"}{"id": "1", "name": "mm", "type": "COMP_NODE"}'), r"Chakra",
    ),
    "chakra.et": (written(b"\x07" + field(1, b"0.0.4") + varint(20) + b"\x08\x01"), r"Chakra"),
    "other.pkl": (written(pickle.dumps({"a": 1})), r"pickle of Python, which is never loaded"),
    "trace.pftrace": (written(PERFETTO), r"Perfetto without a track"),
    "packed.pftrace.gz": (zipped(PERFETTO), r"Perfetto without a track"),
    "kernels.rep": (written(b"NVR\0" + bytes(60)), r"Nsight Compute report.*stepscope kernels"),
    "trace.sqlite.xz": (written(b"\xfd7zXZ\0" + bytes(20)), r"packed with xz.*unpack"),
    "rpd.rpd": (database("rocpd_api", "rocpd_op"), r"AMD's rpd.*rocprofv3 --sys-trace"),
    "old.nvvp": (database("CUPTI_ACTIVITY_KIND_KERNEL", "StringTable"), r"nvprof"),
    "memory.json": (written(b"[[1700, 1701], [[0, 1, 2], [0, 3, 4]]]"), r"export_memory_timeline"),
    "memory.raw.json.gz": (zipped(b"[[-1, 0, 4096, 1], [17, 1, 64, 0]]"), r"memory_timeline"),
    "memory.html": (written(b"<html><head><title>Memory Timeline</title>"), r"HTML page"),
    "stacks.txt": (
        written(b"train.py(3): main;nn.Module: Linear 120\ntrain.py(3): main;mm 30\n"),
        r"export_stacks",
    ),
    "speedscope.json": (
        written(b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}'),
        r"speedscope",
    ),
    "events.out.tfevents.1": (
        written(b"\x18" + bytes(11) + b"\x09\0\0\x80\x80\x80\x80\x80\x1a\x0dbrain.Event:2"),
        r"TensorBoard event file",
    ),
    "chrome.json": (
        written(chrome({"cat": "blink", "name": "Paint"}, {"cat": "v8", "name": "GC"})),
        r"Chrome trace of another tool.*blink \(1\), v8 \(1\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    make, pattern = FILES[name]
    make(tmp_path / name)
    with pytest.raises(InputError, match=pattern) as raised:
        Job([tmp_path / name])
    output = str(raised.value)
    assert "\n" not in output
    assert output.startswith(str(tmp_path / name))


def test_a_folder_says_what_lies_in_it(tmp_path: Path) -> None:
    inner = tmp_path / "dumps" / "inner"
    inner.mkdir(parents=True)
    make, _ = FILES["et.json"]
    make(inner / "et.json")
    with pytest.raises(InputError, match=r"no capture.*et\.json is an execution trace of PyTorch"):
        Job([tmp_path])


def test_a_folder_of_folders_says_where_the_captures_are(tmp_path: Path) -> None:
    inner = tmp_path / "run" / "traces"
    inner.mkdir(parents=True)
    kernel = {"cat": "kernel", "name": "gemm", "args": {"device": 0, "stream": 7}}
    (inner / "rank0.json").write_bytes(chrome(OPERATOR, kernel, schemaVersion=1))
    with pytest.raises(InputError, match=r"no capture.*name \S+/run/traces$"):
        Job([tmp_path])


def test_a_foreign_file_beside_a_capture_does_not_hide_it(tmp_path: Path) -> None:
    kernel = {"cat": "kernel", "name": "gemm", "args": {"device": 0, "stream": 7}}
    (tmp_path / "a.json").write_bytes(chrome(OPERATOR, kernel, schemaVersion=1))
    make, _ = FILES["viz.json"]
    (tmp_path / "snapshot.json").write_bytes(b"[[-1, 0, 4096, 1]]")
    make(tmp_path / "unrelated.txt")
    assert len(Job([tmp_path / "a.json"]).traces) == 1


def test_python_functions_of_viztracer_beside_kernels_do_not_hide_these(tmp_path: Path) -> None:
    kernel = {"cat": "kernel", "name": "gemm", "args": {"device": 0, "stream": 7}}
    path = tmp_path / "both.json"
    path.write_bytes(chrome(kernel, OPERATOR, {"cat": "FEE", "name": "f"}, viztracer_metadata={}))
    assert Job([path]).traces[0].meta.rows["gpu_op"] == 1


SHARED_FILES = {
    "public/formats/pytorch_et_resnet.json.gz": r"ExecutionTraceObserver",
    "public/formats/xprof_tpu_inference.xplane.pb": r"XSpace.*TPU, damaged",
    "h200/ncu/kernels.ncu-rep.xz": r"packed with xz",
}


@pytest.mark.parametrize("name", SHARED_FILES)
def test_real_foreign_files(name: str, shared_data: Path) -> None:
    path = shared_data.parent / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with pytest.raises(InputError, match=SHARED_FILES[name]):
        Job([path])
