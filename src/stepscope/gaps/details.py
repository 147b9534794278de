"""What ended each idle gap, and where the host was in it: call, range, operator and stack.

A gap is a stretch in which the device executed nothing; it is cut into pieces, each with the cause
that it is charged to (:mod:`stepscope.gaps.idle`). Where the host was is asked for the middle of a
piece: pieces end where what the host does changes, so that is what it did for most of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.locations import is_framework_function
from stepscope.activity.names import marking_steps
from stepscope.intervals import nest, stab_innermost
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import Frame, IntArray

DEEPEST: Final = 64
"""Frames of a stack that are shown: the innermost ones."""

BETWEEN_FRAMES: Final = " > "
"""Stands between the frames of a stack, the outermost first."""


@dataclass(frozen=True)
class GapDetails:
    """The pieces of a device's idle time; every array has one value a piece.

    Attributes:
        gap: number of the gap, in time order from 0.
        op: row of ``GPU.ops``: the operation that ended the gap; -1 at the window's end.
        launch: row of ``host.api``: the call that enqueued that operation; -1 where unknown.
        call: code of ``calls``: what the host was calling; -1 where nothing was recorded.
        range: code of ``ranges``: innermost annotation of the main thread that marks no step.
        operator: code of ``operators``: outermost framework operator of a launching thread.
        function: code of ``functions``: innermost function outside the framework.
        stack: code of ``stacks``: the Python stack of the main thread.
    """

    gap: IntArray
    op: IntArray
    launch: IntArray
    call: IntArray
    calls: list[str]
    range: IntArray
    ranges: list[str]
    operator: IntArray
    operators: list[str]
    function: IntArray
    functions: list[str]
    stack: IntArray
    stacks: list[str]


def gap_details(gpu: GpuTimeline, read: Reader, segments: Frame, step_label: str) -> GapDetails:
    """What ended each piece of idle time, and where the host was.

    Args:
        gpu: the device.
        read: gives tables as frames.
        segments: its pieces, as in :class:`~stepscope.gaps.idle.Gaps`.
        step_label: stem of the ranges that mark steps.
    """
    start, end, op = segments["start_ns"], segments["end_ns"], segments["op"]
    at = (start + end) // 2
    launch = np.where(op >= 0, gpu.call[np.maximum(op, 0)], -1) if len(op) else op
    call, calls = _calls(gpu, launch, at)
    range_, ranges = _ranges(gpu, step_label, at)
    operator, operators = _operators(gpu, read, at)
    function, functions, stack, stacks = _python(gpu, read, at)
    return GapDetails(
        gap=gap_numbers(start, end, op),
        op=op,
        launch=launch,
        call=call,
        calls=calls,
        range=range_,
        ranges=ranges,
        operator=operator,
        operators=operators,
        function=function,
        functions=functions,
        stack=stack,
        stacks=stacks,
    )


def gap_numbers(start_ns: IntArray, end_ns: IntArray, op: IntArray) -> IntArray:
    """Number of the gap that each piece belongs to.

    Args:
        start_ns: begins of the pieces, ascending.
        end_ns: their ends.
        op: what ended the gap of each.
    """
    new = np.ones(len(start_ns), bool)
    new[1:] = (start_ns[1:] != end_ns[:-1]) | (op[1:] != op[:-1])
    return np.cumsum(new) - 1


def _calls(gpu: GpuTimeline, launch: IntArray, at: IntArray) -> tuple[IntArray, list[str]]:
    """The call that the host was in: of the thread that launched what ended the gap, else another.

    Where no CUDA call was open, what the main thread asked of the operating system.
    """
    api, os_calls, host = gpu.host.api, gpu.host.os_calls, gpu.host
    texts = [*api.texts.get("name", []), *os_calls.texts.get("name", [])]
    found = np.full(len(at), -1, np.int64)
    if not len(at):
        return found, texts
    if len(api):
        thread = np.where(launch >= 0, api["thread_id"][np.maximum(launch, 0)], host.main_thread)
        for own in (True, False):
            for number in host.launch_threads:
                asked = np.flatnonzero((found < 0) & ((thread == number) | (not own)))
                found[asked] = _named(api, np.equal(api["thread_id"], number), at[asked])
    if len(os_calls):
        asked = np.flatnonzero(found < 0)
        main = np.equal(os_calls["thread_id"], host.main_thread)
        other = _named(os_calls, main, at[asked])
        known = len(api.texts.get("name", []))
        found[asked] = np.where(other >= 0, other + known, -1)
    return found, texts


def _ranges(gpu: GpuTimeline, step_label: str, at: IntArray) -> tuple[IntArray, list[str]]:
    ranges = gpu.host.ranges
    texts = ranges.texts.get("name", [])
    if not len(ranges):
        return np.full(len(at), -1, np.int64), texts
    telling = ~np.append(marking_steps(texts, step_label), True)
    mine = telling[ranges["name"]] & (ranges["thread_id"] == gpu.host.main_thread)
    return _named(ranges, mine, at, innermost=True), texts


def _operators(gpu: GpuTimeline, read: Reader, at: IntArray) -> tuple[IntArray, list[str]]:
    """The outermost operator open on a launching thread: of those but the main one first.

    While autograd's thread runs the backward pass, the main thread is inside the call that waits
    for it.
    """
    table = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
    found = np.full(len(at), -1, np.int64)
    if not len(table):
        return found, []
    mine = table["process_id"] == gpu.process_id
    main = gpu.host.main_thread
    for thread in [*(t for t in gpu.host.launch_threads if t != main), main]:
        asked = np.flatnonzero(found < 0)
        found[asked] = _named(table, mine & (table["thread_id"] == thread), at[asked])
    return found, table.texts["name"]


def _named(table: Frame, rows: IntArray, at: IntArray, *, innermost: bool = False) -> IntArray:
    """Code of the name of what was open at each time; -1 where nothing was.

    Args:
        table: intervals, sorted by start.
        rows: mask of those of one thread.
        at: times, ns.
        innermost: which of several nested ones is meant; the outermost by default.
    """
    picked = np.flatnonzero(rows)
    if not len(picked) or not len(at):
        return np.full(len(at), -1, np.int64)
    start, end = table["start_ns"][picked], table["end_ns"][picked]
    if not innermost:
        before = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end[:-1]))
        outer = start >= before
        picked, start, end = picked[outer], start[outer], end[outer]
    order = np.lexsort((-end, start))
    row = stab_innermost(start[order], end[order], at)
    names = table["name"][picked[order]]
    return np.where(row >= 0, names[np.maximum(row, 0)], -1).astype(np.int64)


def _python(
    gpu: GpuTimeline, read: Reader, at: IntArray
) -> tuple[IntArray, list[str], IntArray, list[str]]:
    """Function and stack of the main thread, traced or sampled: (codes, texts) of both."""
    none = np.full(len(at), -1, np.int64)
    table = read("python_function", "process_id", "thread_id", "start_ns", "end_ns", "name")
    if len(table):
        mine = table["process_id"] == gpu.process_id
        table = table.take(mine & (table["thread_id"] == gpu.host.main_thread))
    if len(table):
        return _traced(table, at)
    samples = read("cpu_sample", "process_id", "thread_id", "time_ns", "stack_id")
    frames = read("stack_frame", "stack_id", "depth", "function", "module", "line")
    if not len(samples) or not len(frames):
        return none, [], none, []
    mine = samples["process_id"] == gpu.process_id
    mine &= (samples["thread_id"] == gpu.host.main_thread) & (samples["stack_id"] >= 0)
    return _sampled(samples.take(mine), frames, at)


def _traced(table: Frame, at: IntArray) -> tuple[IntArray, list[str], IntArray, list[str]]:
    """From functions that a profiler traced: what was open at each time, and all around it."""
    order = np.lexsort((-table["end_ns"], table["start_ns"]))
    table = table.take(order)
    start, end = table["start_ns"], table["end_ns"]
    parent, _ = nest(start, end, np.zeros(len(table), np.int64))
    row = stab_innermost(start, end, at)
    names, texts = table["name"].astype(np.int64), table.texts["name"]
    own = np.array([not is_framework_function(text) for text in texts] + [False])
    place = row.copy()
    while True:
        climb = (place >= 0) & ~own[names[np.maximum(place, 0)]]
        if not climb.any():
            break
        place[climb] = parent[place[climb]]
    function = np.where(place >= 0, names[np.maximum(place, 0)], -1)
    # equal stacks of different times share one text: chains of names are counted, not calls
    chain_of: dict[int, int] = {-1: -1}
    chains: dict[tuple[int, int], int] = {}
    for each in distinct_values(row).tolist():
        path = []
        while each not in chain_of:
            path.append(each)
            each = int(parent[each])  # noqa: PLW2901 - up to what is known
        chain = chain_of[each]
        for inner in reversed(path):
            chain = chains.setdefault((chain, int(names[inner])), len(chains))
            chain_of[inner] = chain
    links = list(chains)
    stack = np.array([chain_of[r] for r in row.tolist()], np.int64)
    used = distinct_values(stack[stack >= 0])
    stacks = [_text(_up(links, code), texts) for code in used.tolist()]
    return function, texts, np.where(stack >= 0, np.searchsorted(used, stack), -1), stacks


def _up(links: list[tuple[int, int]], chain: int) -> list[int]:
    """Names of a chain, the innermost first."""
    found: list[int] = []
    while chain >= 0 and len(found) < DEEPEST:
        chain, name = links[chain]
        found.append(name)
    return found


def _text(names: list[int], texts: list[str]) -> str:
    return BETWEEN_FRAMES.join(texts[name] for name in reversed(names))


def _sampled(
    samples: Frame, frames: Frame, at: IntArray
) -> tuple[IntArray, list[str], IntArray, list[str]]:
    """From samples of the stack: that of the nearest sample within a period."""
    none = np.full(len(at), -1, np.int64)
    times = np.sort(samples["time_ns"])
    if len(times) < 2 or not len(at):
        return none, [], none, []
    stack_of = samples["stack_id"][np.argsort(samples["time_ns"], kind="stable")]
    after = np.minimum(np.searchsorted(times, at), len(times) - 1)
    before = np.maximum(after - 1, 0)
    row = np.where(np.abs(times[before] - at) <= np.abs(times[after] - at), before, after)
    near = np.abs(times[row] - at) <= int(np.median(np.diff(times)))
    ids = np.where(near, stack_of[row], -1)
    used = distinct_values(ids[ids >= 0])
    order = np.lexsort((frames["depth"], frames["stack_id"]))
    known = frames["stack_id"][order]
    first, past = np.searchsorted(known, used), np.searchsorted(known, used, side="right")
    stacks = [
        BETWEEN_FRAMES.join(_frame(frames, int(r)) for r in order[max(a, b - DEEPEST) : b])
        for a, b in zip(first.tolist(), past.tolist(), strict=True)
    ]
    seen: dict[str, int] = {}
    of_stack: list[int] = []
    for a, b in zip(first.tolist(), past.tolist(), strict=True):
        own = [r for r in order[a:b].tolist() if _is_own(frames, r)]
        text = _frame(frames, own[-1]) if own else ""
        of_stack.append(seen.setdefault(text, len(seen)) if text else -1)
    code = np.where(ids >= 0, np.searchsorted(used, ids), -1)
    function = np.where(code >= 0, np.array([*of_stack, -1], np.int64)[code], -1)
    return function, list(seen), code, stacks


def _frame(frames: Frame, row: int) -> str:
    """``train.py(118): step``, as profilers that trace functions write it."""
    module, line = frames.text("module", row), int(frames["line"][row])
    place = f"{module}({line}): " if line > 0 else f"{module}: " if module else ""
    return place + frames.text("function", row)


def _is_own(frames: Frame, row: int) -> bool:
    """Whether a sampled frame is a line of a Python program outside the framework."""
    return int(frames["line"][row]) > 0 and not is_framework_function(_frame(frames, row))
