"""What ``torch.compile`` did in a capture: compiled regions, recompilations, graph breaks, cost.

PyTorch names a compiled region ``Torch-Compiled Region: FRAME/NUMBER``: ``0/2`` is the third
compilation of the first frame that was compiled, so it was recompiled twice, whether the capture
saw that or not. Older versions name no frame. After a graph break the rest of a function runs as
one named ``torch_dynamo_resume_in_FUNCTION_at_LINE``, which Python stacks show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import Reader
from stepscope.intervals import union
from stepscope.intervals.distinct import among, distinct_values
from stepscope.operators.calltree import CALL, CallTree
from stepscope.trace.frame import BoolArray
from stepscope.trace.text import LONGEST_JUDGED

_REGION: Final = re.compile(r"^Torch-Compiled Region(?:: (\d{1,9})/(\d{1,9}))?")
_LOOKUP: Final = "TorchDynamo Cache Lookup"
_RESUME: Final = re.compile(r"torch_dynamo_resume_in_(\w{1,80}?)_at_(\d{1,9})")
_SHOWN: Final = 6


class CompiledRegion(msgspec.Struct, frozen=True):
    """One compiled region, in the whole capture.

    Attributes:
        frame: number of the compiled frame; null where the version does not tell.
        compilation: number of its compilation, from 0; null where the version does not tell.
        calls: how often it ran.
        host_ns: time of all runs on the host.
        device_ns: time of the kernels that they launched.
    """

    frame: int | None
    compilation: int | None
    calls: int
    host_ns: int
    device_ns: int


class CompiledCode(msgspec.Struct, frozen=True):
    """What ``torch.compile`` did, in the whole capture.

    Attributes:
        regions: one entry a region that ran, by frame and compilation.
        recompilations: compilations of frames beyond the first of each, at or before the end of
            the capture; null where the version does not number them.
        graph_breaks: functions and lines behind which a graph was broken, as ``forward:38``; known
            with Python stacks only.
        lookup_ns: host time of Dynamo's checks of guards, all calls.
        compiling_ns: host time in which a compiler was at work, as ranges or stacks show.
    """

    regions: list[CompiledRegion]
    recompilations: int | None
    graph_breaks: list[str]
    lookup_ns: int
    compiling_ns: int


def shows_compiled_code(tree: CallTree) -> bool:
    """Whether any event is of compiled code or of a compiler."""
    return any(
        text == _LOOKUP or _REGION.match(text) is not None or words.is_compile_range(text)
        for text in (text[:LONGEST_JUDGED] for text in tree.texts)
    )


def compiled_code(trees: Sequence[tuple[CallTree, Reader]]) -> CompiledCode | None:
    """What ``torch.compile`` did; None where no trace shows any of it."""
    regions: dict[tuple[int, int], list[int]] = {}
    breaks: set[str] = set()
    lookup = compiling = 0
    for tree, read in trees:
        if not len(tree):
            continue
        host = tree.kind < CALL
        for code in np.flatnonzero(_that(tree, lambda text: _REGION.match(text) is not None)):
            rows = np.flatnonzero(host & (tree.name == code))
            found = _REGION.match(tree.texts[int(code)])
            if found is None or not len(rows):
                continue
            key = (int(found[1]), int(found[2])) if found[1] else (-1, -1)
            sums = regions.setdefault(key, [0, 0, 0])
            sums[0] += len(rows)
            sums[1] += int(tree.duration_ns[rows].sum())
            sums[2] += int(tree.device_ns[rows].sum())
        asked = np.flatnonzero(_that(tree, lambda text: text == _LOOKUP))
        lookup += int(tree.duration_ns[host & among(tree.name, asked)].sum())
        compiling += _compiling(tree, read)
        functions = read("python_function", "name")
        for text in functions.texts.get("name", []):
            if resumed := _RESUME.search(text[:LONGEST_JUDGED]):
                breaks.add(f"{resumed[1]}:{resumed[2]}")
    if not regions and not breaks and not compiling:
        return None
    frames: dict[int, int] = {}
    for frame, number in regions:
        frames[frame] = max(frames.get(frame, 0), number)
    numbered = -1 not in frames
    return CompiledCode(
        regions=[
            CompiledRegion(*((frame, number) if frame >= 0 else (None, None)), *sums)
            for (frame, number), sums in sorted(regions.items())
        ],
        recompilations=sum(frames.values()) if numbered and regions else None,
        graph_breaks=sorted(breaks),
        lookup_ns=lookup,
        compiling_ns=compiling,
    )


def _that(tree: CallTree, holds: Callable[[str], bool]) -> BoolArray:
    """Which texts of a tree satisfy a predicate."""
    return np.array([holds(text[:LONGEST_JUDGED]) for text in tree.texts], bool)


def _compiling(tree: CallTree, read: Reader) -> int:
    """Host time of compilers, by the ranges, operators and functions that name them."""
    named = np.flatnonzero(_that(tree, words.is_compile_range))
    mine = (tree.kind < CALL) & among(tree.name, named)
    functions = read("python_function", "process_id", "thread_id", "start_ns", "end_ns", "name")
    spent = 0
    for group in distinct_values(tree.thread[mine]).tolist():
        here = mine & (tree.thread == group)
        covered = union(tree.start_ns[here], tree.end_ns[here])
        spent += int((covered[1] - covered[0]).sum())
    if spent or not len(functions):
        return spent
    hits = functions.matches("name", words.COMPILE_FUNCTION)
    for thread in distinct_values(functions["thread_id"][hits]).tolist():
        here = hits & (functions["thread_id"] == thread)
        covered = union(functions["start_ns"][here], functions["end_ns"][here])
        spent += int((covered[1] - covered[0]).sum())
    return spent


def compiled_readings(code: CompiledCode) -> list[str]:
    """The same in sentences."""
    stated = []
    if code.regions:
        calls = sum(region.calls for region in code.regions)
        host = sum(region.host_ns for region in code.regions)
        device = sum(region.device_ns for region in code.regions)
        stated.append(
            f"torch.compile: {_count(len(code.regions), 'compiled region')} ran "
            f"{_count(calls, 'time')}, "
            f"{host / 1e6:,.3f} ms on the host, {device / 1e6:,.3f} ms on the device; checks of "
            f"guards {code.lookup_ns / 1e6:,.3f} ms"
        )
    if code.recompilations:
        ids = [f"{r.frame}/{r.compilation}" for r in code.regions if r.compilation]
        stated.append(
            f"torch.compile: {_count(code.recompilations, 'recompilation')} up to the end of the "
            f"capture (regions {', '.join(ids[:_SHOWN])}): guards failed, as with a new shape; "
            "TORCH_LOGS=recompiles tells which, dynamic=True or mark_dynamic avoids those of shapes"
        )
    if code.graph_breaks:
        places = ", ".join(code.graph_breaks[:_SHOWN])
        stated.append(
            f"torch.compile: {_count(len(code.graph_breaks), 'graph break')}, at {places}: what "
            "follows is a graph of its own, and Python runs between; TORCH_LOGS=graph_breaks tells "
            "why"
        )
    elif len({region.frame for region in code.regions}) > 1:
        stated.append(
            f"torch.compile: {len({region.frame for region in code.regions})} frames were "
            "compiled; whether these are graph breaks, Python stacks tell (with_stack=True)"
        )
    if code.compiling_ns:
        stated.append(f"torch.compile: compilers worked for {code.compiling_ns / 1e6:,.1f} ms")
    return stated


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
