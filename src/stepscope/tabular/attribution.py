"""Which call launched which GPU work, which ranges enclose a call, and how kernels are named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.intervals.distinct import common_values
from stepscope.tabular.maths import dictionary, group
from stepscope.tabular.report import Argument, Arguments
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import BoolArray, IntArray

_INTERFACE_VERSION = re.compile(r"_v\d{4}$")
_STYLES = {"pushpop": 0, "annotation": 0, "startend": 1}
STYLES = ["PushPop", "StartEnd"]

BASE = Argument("base", "kernel names without template arguments and parameters")
MANGLED = Argument("mangled", "kernel names as the linker sees them")
NVTX_NAME = Argument("nvtx-name", "put the innermost range around the launch before kernel names")
KERNEL_NAMES = (NVTX_NAME, BASE, MANGLED)

_MEMORY_LABELS = {
    "pageable": "Pageable",
    "pinned": "Pinned",
    "device": "Device",
    "array": "Array",
    "managed": "Managed",
    "device_static": "Device Static",
    "managed_static": "Managed Static",
    "unknown": "Unknown",
}


@dataclass(frozen=True)
class Names:
    """Names of some rows: codes into ``texts``."""

    codes: IntArray
    texts: list[str]


def memory_kinds(ops: Rows, column: str, rows: IntArray | slice = slice(None)) -> Any:
    """Memory kinds of operations, as people read them.

    Args:
        ops: the operations.
        column: ``src_memory`` or ``dst_memory``.
        rows: only of these.
    """
    texts = [_MEMORY_LABELS.get(text, text) for text in ops.texts(column)]
    return dictionary(ops[column][rows], texts)


def call_names(calls: Rows, rows: IntArray | None = None) -> Names:
    """Names of API calls without a four-digit interface version (``_v3020``).

    Args:
        calls: the calls.
        rows: only of these.
    """
    codes = calls["raw_name"] if rows is None else calls["raw_name"][rows]
    names = Names(codes, calls.texts("raw_name"))
    return renamed(names, lambda text: _INTERFACE_VERSION.sub("", text))


def renamed(names: Names, change: object) -> Names:
    """Names with each distinct text changed; texts that become equal get one code."""
    assert callable(change)
    codes: dict[str, int] = {}
    mapping = [codes.setdefault(change(text), len(codes)) for text in names.texts]
    table = np.array([*mapping, -1], np.int64)
    return Names(table[names.codes], list(codes))


def kernel_names(source: Source, kernels: Rows, arguments: Arguments) -> Names:
    """Display names of kernels, as the arguments ask for."""
    column = "name"
    if arguments.get("base"):
        column = "short_name"
    elif arguments.get("mangled"):
        column = "mangled_name"
    plain = Names(kernels["name"], kernels.texts("name"))
    names = plain
    if column != "name":
        texts = kernels.texts(column)
        codes = kernels[column].astype(np.int64)
        lacking = codes < 0
        # one list for both, so that a kernel without this form of its name keeps the other
        names = Names(np.where(lacking, plain.codes + len(texts), codes), [*texts, *plain.texts])
        names = renamed(names, str)
    if arguments.get("nvtx-name"):
        return _prefixed(source, kernels, names)
    return names


def innermost_ranges(source: Source, calls: Rows) -> tuple[Rows, IntArray]:
    """The ranges, and for each call the row of the innermost one around it, -1 where there is none.

    Of the ranges of its thread that enclose a call, that is the one that begins last.
    """
    innermost = np.full(len(calls), -1, np.int64)
    ranges = usable_ranges(source, own_thread=True)
    of_range, of_call = enclosing(source, ranges, calls)
    # of several the latest-starting is written last; of equal starts the shortest
    if len(of_range):
        ends = range_ends(source, ranges)
        order = np.lexsort((-of_range, -ends[of_range], ranges["start_ns"][of_range]))
        innermost[of_call[order]] = of_range[order]
    return ranges, innermost


def _prefixed(source: Source, kernels: Rows, names: Names) -> Names:
    calls = source.cuda_calls()
    work, call = launches(kernels, calls)
    ranges, innermost = innermost_ranges(source, calls)
    prefix = np.full(len(kernels), -1, np.int64)
    texts = ranges.texts("name") if len(ranges) else []
    codes = np.append(ranges["name"] if len(ranges) else np.empty(0, np.int64), -1)
    prefix[work] = codes[innermost[call]]
    groups, firsts = group(prefix, names.codes)
    joined = [
        f"{texts[p]}/{names.texts[n]}" if p >= 0 else names.texts[n]
        for p, n in zip(prefix[firsts].tolist(), names.codes[firsts].tolist(), strict=True)
    ]
    return renamed(Names(groups, joined), str)


def memory_op_names(ops: Rows) -> Names:
    """Names of copies and fills: ``[CUDA memcpy Host-to-Device]`` whatever the source wrote."""
    names = Names(ops["name"], ops.texts("name"))
    if all(text.startswith("[CUDA ") for text in _used(names)):
        return names
    kinds = ops.texts("copy_kind")
    labels = [f"[CUDA memcpy {_LABELS.get(kind, kind)}]" for kind in kinds]
    codes = ops["copy_kind"].astype(np.int64)
    memsets = ops.equals("kind", ("memset",))
    codes = np.where(memsets, len(labels), np.where(codes < 0, len(labels) + 1, codes))
    return Names(codes, [*labels, "[CUDA memset]", "[CUDA memcpy Unknown]"])


_LABELS = {
    "unknown": "Unknown",
    "HtoD": "Host-to-Device",
    "DtoH": "Device-to-Host",
    "HtoA": "Host-to-Array",
    "AtoH": "Array-to-Host",
    "AtoA": "Array-to-Array",
    "AtoD": "Array-to-Device",
    "DtoA": "Device-to-Array",
    "DtoD": "Device-to-Device",
    "HtoH": "Host-to-Host",
    "PtoP": "Peer-to-Peer",
    "UVM HtoD": "Unified Host-to-Device",
    "UVM DtoH": "Unified Device-to-Host",
    "UVM DtoD": "Unified Device-to-Device",
}


def _used(names: Names) -> list[str]:
    counts = np.bincount(names.codes + 1, minlength=len(names.texts) + 1)[1:]
    return [text for text, count in zip(names.texts, counts.tolist(), strict=True) if count]


def launches(work: Rows, calls: Rows) -> tuple[IntArray, IntArray]:
    """Pairs (row of GPU work, row of the call that launched it): same process, same id.

    Work without a recorded call is in no pair; calls keep the order of their rows.
    """
    ids, call_ids = work["correlation_id"], calls["correlation_id"]
    if not len(ids) or not len(call_ids):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    process = np.concatenate([work["process_id"], calls["process_id"]])
    number = group(process)[0].astype(np.int64)
    span = max(int(ids.max()), int(call_ids.max())) + 2
    key = number[: len(ids)] * span + ids
    call_key = number[len(ids) :] * span + call_ids
    known = np.flatnonzero(call_ids >= 0)
    order = known[np.argsort(call_key[known], kind="stable")]
    ordered = call_key[order]
    low = np.searchsorted(ordered, key, side="left")
    high = np.where(ids >= 0, np.searchsorted(ordered, key, side="right"), low)
    rows, at = _spread(low, high)
    return rows, order[at]


def _spread(low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
    """Every (row, position) with ``low[row] <= position < high[row]``."""
    count = high - low
    rows = np.repeat(np.arange(len(low)), count)
    first = np.repeat(low - (np.cumsum(count) - count), count)
    return rows, first + np.arange(len(rows))


def usable_ranges(source: Source, *, own_thread: bool = False) -> Rows:
    """Push/pop and start/end ranges on the host.

    Args:
        source: the trace.
        own_thread: leave out ranges that another thread closed.
    """
    ranges = source.of_kind("range", "kind", *_STYLES)
    if own_thread and len(ranges):
        ranges = ranges.where(ranges["end_thread_id"] == -1)
    return ranges


def range_styles(ranges: Rows) -> IntArray:
    """Codes into ``STYLES``."""
    styles = np.array([_STYLES.get(kind, -1) for kind in ranges.texts("kind")] + [-1], np.int64)
    return styles[ranges["kind"]]


def range_names(ranges: Rows) -> Names:
    """``domain:text``, or the text alone in the default domain."""
    texts, domains = ranges.texts("name"), ranges.texts("domain")
    domain, name = ranges["domain"].astype(np.int64), ranges["name"].astype(np.int64)
    groups, firsts = group(domain, name)
    joined = [
        f"{domains[d]}:{texts[n]}" if d >= 0 else texts[n]
        for d, n in zip(domain[firsts].tolist(), name[firsts].tolist(), strict=True)
    ]
    return renamed(Names(groups, joined), str)


def range_ends(source: Source, ranges: Rows, *, marks: bool = False) -> IntArray:
    """Ends of ranges; one that has none ends at the latest time that any range names.

    Args:
        source: the trace.
        ranges: the ranges.
        marks: whether the times of marks count, too.
    """
    end: IntArray = ranges["end_ns"]
    open_ = ranges["end_missing"].astype(bool)
    if not open_.any():
        return end
    every = source.rows("range") if marks else usable_ranges(source)
    known = np.where(every["end_missing"].astype(bool), every["start_ns"], every["end_ns"])
    return np.where(open_, int(known.max()), end)


def thread_keys(*tables: Rows) -> list[IntArray]:
    """One number a (process, thread), the same in all tables."""
    process = np.concatenate([rows["process_id"] for rows in tables])
    thread = np.concatenate([rows["thread_id"] for rows in tables])
    number, _ = group(process, thread)
    return np.split(number, np.cumsum([len(rows) for rows in tables])[:-1])


def enclosing(source: Source, ranges: Rows, calls: Rows) -> tuple[IntArray, IntArray]:
    """Every pair (range, call) of one thread where the range encloses the call, bounds included."""
    if not len(ranges) or not len(calls):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    of_range, of_call = thread_keys(ranges, calls)
    start, end = ranges["start_ns"], range_ends(source, ranges)
    begin, stop = calls["start_ns"], calls["end_ns"]
    found = []
    for thread in common_values(of_range, of_call).tolist():
        mine = np.flatnonzero(of_range == thread)
        theirs = np.flatnonzero(of_call == thread)
        theirs = theirs[np.argsort(begin[theirs], kind="stable")]
        low = np.searchsorted(begin[theirs], start[mine], side="left")
        high = np.searchsorted(begin[theirs], end[mine], side="right")
        row, at = _spread(low, np.maximum(low, high))
        inside: BoolArray = stop[theirs[at]] <= end[mine[row]]
        found.append((mine[row[inside]], theirs[at[inside]]))
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])


def ranges_around(
    source: Source, ranges: Rows, calls: Rows, call: IntArray, *, none: bool = False
) -> tuple[IntArray, IntArray]:
    """Every pair (position in ``call``, range) where the range encloses that call, by position.

    Args:
        source: the trace.
        ranges: ranges.
        calls: calls.
        call: rows of calls, which may come several times.
        none: list calls in no range, too, with the range -1.
    """
    in_range, of_call = enclosing(source, ranges, calls)
    order = np.argsort(of_call, kind="stable")
    in_range, of_call = in_range[order], of_call[order]
    low = np.searchsorted(of_call, call, side="left")
    high = np.searchsorted(of_call, call, side="right")
    position, at = _spread(low, np.maximum(high, low + 1) if none else high)
    inside = at < high[position]
    return position, np.where(inside, np.append(in_range, -1)[np.where(inside, at, -1)], -1)


def triples(kernels: Rows, column: str) -> Names:
    """Grid or block sizes of kernels as text: three right-aligned numbers."""
    parts = [np.maximum(kernels[f"{column}_{axis}"].astype(np.int64), 0) for axis in "xyz"]
    groups, firsts = group(*parts)
    sizes = zip(*(part[firsts].tolist() for part in parts), strict=True)
    return Names(groups, [f"{x:4d} {y:4d} {z:4d}" for x, y, z in sizes])
