"""Programs with items repeated, left out or put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.simulation.program import LAUNCH, LONG_AGO_NS, Program
from stepscope.simulation.subject import Subject
from stepscope.trace.frame import IntArray

_COLUMNS = (
    *("kind", "op", "at_ns", "work_ns", "call_ns", "recording_ns", "recording_untraced_ns"),
    *("stream", "latency_ns", "kernel_gap_ns", "delay_ns", "duration_ns", "hosted", "blocks"),
    *("wait_cause", "return_ns", "communication"),
)
_OPTIONAL = ("posts", "before_start_ns", "before_end_ns")
"""Columns that are empty where no item has a value."""


def arranged(
    subject: Subject,
    source: IntArray,
    *,
    stride: int = 0,
    instead: Mapping[int, int] | None = None,
) -> Subject:
    """The program with other items: each a copy of an old one.

    What a copy refers to is the latest copy of that item before it, in the pass before where there
    is none; references to items of which there is no copy go.

    Args:
        subject: the program.
        source: the old item that each new one is a copy of.
        stride: more than the id of any collective on any rank: the second copy of one is another
            collective, that much higher.
        instead: old item -> another one that takes its place in what others refer to.
    """
    program = subject.program
    m, size = len(program), len(source)
    find = _Copies(source, m, instead or {})
    copy = _ordinal_of_copy(source, m)
    depends: dict[int, tuple[tuple[int, int], ...]] = {}
    waits: dict[int, tuple[int, ...]] = {}
    for at, old in enumerate(source.tolist()):
        if old in program.depends:
            pairs = [(find.before(at, k), ns) for k, ns in program.depends[old]]
            kept = tuple((k, ns) for k, ns in pairs if k is not None)
            if kept:
                depends[at] = kept
        if old in program.waits:
            found = tuple(
                k for one in program.waits[old] if (k := find.before(at, one)) is not None
            )
            if found:
                waits[at] = found
    instance = program.instance[source]
    held = [name for name in _OPTIONAL if len(getattr(program, name))]
    columns = {name: getattr(program, name)[source] for name in (*_COLUMNS, *held)}
    changed = replace(
        program,
        **columns,
        instance=np.where(instance >= 0, instance + copy * stride, instance),
        depends=depends,
        waits=waits,
        inferred=frozenset(at for at, old in enumerate(source.tolist()) if old in program.inferred),
        behind=np.full(size, -2 * size, np.int64),
    )
    behind = _behind(program, changed, source)
    return replace(subject, program=replace(changed, behind=behind))


class _Copies:
    """Where the copies of old items are.

    Args:
        source: the old item of each new one.
        m: number of old items.
        instead: old item -> another one that stands for it.
    """

    def __init__(self, source: IntArray, m: int, instead: Mapping[int, int]) -> None:
        self._m, self._size, self._instead = m, len(source), instead
        self._keys = np.sort(source * (len(source) + 1) + np.arange(len(source)))

    def before(self, at: int, reference: int) -> int | None:
        """What a reference of the old program refers to from a new item; None for nothing."""
        old = reference if reference >= 0 else reference + self._m
        old = self._instead.get(old, old)
        if not 0 <= old < self._m:
            return None
        low = old * (self._size + 1)
        place = int(np.searchsorted(self._keys, low + at)) - 1
        if place >= 0 and self._keys[place] >= low:
            return int(self._keys[place] - low)
        place = int(np.searchsorted(self._keys, low + self._size)) - 1
        if place >= 0 and self._keys[place] >= low:
            return int(self._keys[place] - low) - self._size
        return None


def _ordinal_of_copy(source: IntArray, m: int) -> IntArray:
    """How many copies of the same old item come before each new one."""
    order = np.argsort(source, kind="stable")
    begins = np.searchsorted(source[order], np.arange(m))
    ordinal = np.empty(len(source), np.int64)
    ordinal[order] = np.arange(len(source)) - begins[source[order]]
    return ordinal


def _behind(old: Program, new: Program, source: IntArray) -> IntArray:
    """The item whose operation must have started before each call goes on, as in the old program.

    The depth of a stream's queue is the distance that the old program has.
    """
    m, size = len(old), len(new)
    behind = np.full(size, -2 * size, np.int64)
    bound = old.behind[source] > -2 * m
    for number in distinct_values(old.stream[old.stream >= 0]).tolist():
        depth = _depth(old, number)
        items = np.flatnonzero((new.kind == LAUNCH) & (new.stream == number))
        if depth is None or not len(items):
            continue
        target = np.arange(len(items)) - depth
        found = items[target % len(items)] + size * (target // len(items))
        behind[items] = np.where(bound[items], found, -2 * size)
    return np.maximum(behind, -2 * size)


def _depth(program: Program, stream: int) -> int | None:
    """Operations that a stream holds before a launch waits; None where none is bound by it."""
    m = len(program)
    items = np.flatnonzero((program.kind == LAUNCH) & (program.stream == stream))
    bound = np.flatnonzero(program.behind[items] > -2 * m)
    if not len(bound):
        return None
    at = int(bound[-1])
    reference = int(program.behind[items[at]])
    ordinal = int(np.searchsorted(items, reference % m))
    return at - ordinal - len(items) * (reference // m)


def put_in(program: Program, items: IntArray, values: Mapping[str, int]) -> Program:
    """The program with some items as new ones, which nothing refers to in the run before.

    Args:
        program: the program; the items are copies of any others.
        items: the new ones.
        values: what they have; all other columns are zero, and no item is waited for.
    """
    plain = {
        **dict.fromkeys(("duration_ns", "call_ns", "latency_ns", "kernel_gap_ns", "delay_ns"), 0),
        **dict.fromkeys(("recording_ns", "recording_untraced_ns", "return_ns"), 0),
        **dict.fromkeys(("communication", "hosted", "blocks", "posts"), 0),
        **dict.fromkeys(("op", "stream", "wait_cause", "instance"), -1),
        **dict.fromkeys(("before_start_ns", "before_end_ns"), LONG_AGO_NS),
        "kind": LAUNCH,
        "behind": -2 * len(program),
    }
    columns = {}
    for name, value in {**plain, **values}.items():
        column = getattr(program, name).copy()
        if len(column):
            column[items] = value
        columns[name] = column
    work = program.work_ns.copy()
    work[items] = 0
    gone = set(items.tolist())
    return replace(
        program,
        **columns,
        work_ns=work,
        depends={item: on for item, on in program.depends.items() if item not in gone},
        waits={item: on for item, on in program.waits.items() if item not in gone},
    )


def highest_instance(subjects: Sequence[Subject]) -> int:
    """More than the id of any collective."""
    return 1 + max((int(s.program.instance.max(initial=-1)) for s in subjects), default=-1)
