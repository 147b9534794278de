"""The replay of programs by the compiled engine; without it, by the loop in Python.

Columns go in as they are and come out as arrays. All references are checked before, so that nothing
that a program may hold makes the engine read outside of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stepscope.intervals.distinct import with_inverse
from stepscope.native.library import cores, load
from stepscope.simulation import reference
from stepscope.simulation.links import Lists, columns_of
from stepscope.simulation.program import LAUNCH, MARK, PASSES, WAIT, Program, Replay, Steps
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

_COLUMNS: Final = (
    *("call_ns", "stream", "latency_ns", "kernel_gap_ns", "delay_ns", "duration_ns"),
    *("return_ns", "behind"),
)
"""Columns of a program that the engine takes as they are, in its order."""


class _Links(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("items", "begin", "on", "between")),
    )


class _Rank(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("items", "streams", "causes")),
        *((name, ctypes.c_void_p) for name in ("kind", "work")),
        *((name, ctypes.c_int64) for name in ("work_of_item", "work_of_cause")),
        *((name, ctypes.c_void_p) for name in (*_COLUMNS, "meeting")),
        *((name, ctypes.c_void_p) for name in ("hosted", "blocks", "posts")),
        ("begin", ctypes.c_int64),
        ("busy_streams", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("busy", "before_start", "before_end")),
        ("depends", _Links),
        ("waits", _Links),
        *((name, ctypes.c_void_p) for name in ("host", "start", "end", "bounds")),
    )


def compiled() -> bool:
    """Whether the compiled engine is there."""
    return load("replay").library is not None


def replay(programs: Sequence[Program], passes: int = PASSES) -> list[Replay]:
    """Replay the programs of all ranks together.

    Args:
        programs: one a device; equal ids in ``instance`` are one collective.
        passes: how often in a row.

    Raises:
        ValueError: a program refers to items that it does not have.
    """
    library = load("replay").library
    if library is None:
        for program in programs:
            _check(program, columns_of(program.depends), columns_of(program.waits))
        return reference.replay(programs, passes)
    job = _Job(programs, passes, times=True)
    job.go(library)
    return [Replay(call.bounds, call.steps, call.host, call.start, call.end) for call in job.calls]


def steps_of(jobs: Sequence[Sequence[Program]], passes: int = PASSES) -> list[list[Steps]]:
    """Replay several jobs side by side, each by itself; for their steps only.

    Args:
        jobs: of each the programs of all its ranks.
        passes: how often in a row.

    Raises:
        ValueError: a program refers to items that it does not have.
    """
    library = load("replay").library
    if library is None:
        return [list(replay(programs, passes)) for programs in jobs]

    def one(programs: Sequence[Program]) -> list[Steps]:
        job = _Job(programs, passes, times=False)
        job.go(library)
        return [Steps(call.bounds, call.steps) for call in job.calls]

    workers = min(len(jobs), cores(), _MOST_THREADS)
    items = sum(len(program) for programs in jobs for program in programs)
    if workers < 2 or items < _WORTH_THREADS:
        return [one(programs) for programs in jobs]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, jobs))


_MOST_THREADS: Final = 8
"""More would wait for memory rather than compute."""

_WORTH_THREADS: Final = 100_000
"""Items, of all jobs together, from which on a thread pays for its start."""


@dataclass
class _Call:
    """The memory of one rank in a call of the engine."""

    rank: _Rank
    steps: int
    bounds: IntArray
    host: IntArray
    start: IntArray
    end: IntArray
    held: list[AnyArray] = field(default_factory=list)

    def address(self, values: AnyArray, kind: type[np.generic]) -> int:
        """Of an array with elements of the given type, which is kept while the call lasts."""
        array: AnyArray = np.ascontiguousarray(values, kind)
        self.held.append(array)
        return array.ctypes.data

    def links(self, columns: Lists) -> _Links:
        """References as the engine takes them."""
        arrays = (columns.items, columns.begin, columns.on, columns.between_ns)
        return _Links(len(columns.items), *(self.address(a, np.int64) for a in arrays))


class _Job:
    """One call of the engine."""

    def __init__(self, programs: Sequence[Program], passes: int, *, times: bool) -> None:
        self._passes = passes
        meeting, self._members = _meetings(programs)
        self.calls = [
            self._of(program, numbers, times)
            for program, numbers in zip(programs, meeting, strict=True)
        ]

    def _of(self, p: Program, meeting: IntArray, times: bool) -> _Call:
        size = len(p) * self._passes if times else 0
        steps = int((p.kind == MARK).sum())
        rank = _Rank()
        # zeros() takes memory when it is written to; what an operation item has is all written
        call = _Call(
            rank,
            steps,
            bounds=np.zeros(steps * self._passes + 1, np.int64),
            host=np.zeros(size, np.int64),
            start=np.zeros(size, np.int64),
            end=np.zeros(size, np.int64),
        )
        depends, waits = columns_of(p.depends), columns_of(p.waits)
        _check(p, depends, waits)
        depends, waits = _of_kind(depends, p, LAUNCH), _of_kind(waits, p, WAIT)
        rank.items, rank.causes = len(p), p.work_ns.shape[1]
        rank.streams = int(p.stream.max(initial=-1)) + 1
        rank.kind = call.address(p.kind, np.int64)
        # by column where it was built, by row where a change has copied it
        work = p.work_ns if p.work_ns.dtype == np.int64 else p.work_ns.astype(np.int64)
        call.held.append(work)
        rank.work = work.ctypes.data
        rank.work_of_item, rank.work_of_cause = (step // work.itemsize for step in work.strides)
        for name in _COLUMNS:
            setattr(rank, name, call.address(getattr(p, name), np.int64))
        rank.meeting = call.address(meeting, np.int64)
        rank.hosted = call.address(p.hosted, np.bool_)
        rank.blocks = call.address(p.blocks, np.bool_)
        rank.posts = call.address(p.posts, np.bool_) if len(p.posts) else None
        rank.begin, rank.busy_streams = p.begin_ns, len(p.busy_ns)
        rank.busy = call.address(p.busy_ns, np.int64)
        if len(p.before_end_ns):
            rank.before_start = call.address(p.before_start_ns, np.int64)
            rank.before_end = call.address(p.before_end_ns, np.int64)
        rank.depends, rank.waits = call.links(depends), call.links(waits)
        if times:
            rank.host, rank.start, rank.end = (
                array.ctypes.data for array in (call.host, call.start, call.end)
            )
        rank.bounds = call.bounds.ctypes.data
        return call

    def go(self, library: ctypes.CDLL) -> None:
        """Replay.

        Raises:
            MemoryError: there is not enough memory.
        """
        ranks = (_Rank * len(self.calls))(*(call.rank for call in self.calls))
        function: Any = library.stepscope_replay
        function.argtypes = (
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64),
            *(ctypes.c_void_p, ctypes.c_int64),
        )
        members = self._members
        if function(ranks, len(ranks), self._passes, members.ctypes.data, len(members)):
            raise MemoryError("not enough memory for the replay")


def _meetings(programs: Sequence[Program]) -> tuple[list[IntArray], IntArray]:
    """Collectives of each program's items, numbered from 0; and how many items each one has."""
    numbers = [np.full(len(p), -1, np.int64) for p in programs]
    rows = [np.flatnonzero((p.instance >= 0) & (p.kind == LAUNCH)) for p in programs]
    found = [p.instance[r] for p, r in zip(programs, rows, strict=True)]
    if not sum(map(len, found)):
        return numbers, np.zeros(0, np.int64)
    known, place = with_inverse(np.concatenate(found))
    at = 0
    for column, own in zip(numbers, rows, strict=True):
        column[own] = place[at : at + len(own)]
        at += len(own)
    return numbers, np.bincount(place, minlength=len(known)).astype(np.int64)


def _of_kind(columns: Lists, p: Program, kind: int) -> Lists:
    """Without the lists of items of another kind, which mean nothing."""
    if not len(columns.items) or (p.kind[columns.items] == kind).all():
        return columns
    return columns.kept(p.kind[columns.owner] == kind)


def _check(p: Program, depends: Lists, waits: Lists) -> None:
    """Refuse a program that refers to items that it does not have.

    Raises:
        ValueError: it does.
    """
    m = len(p)
    arrays = {name: getattr(p, name) for name in (*_COLUMNS, "kind", "hosted", "blocks")}
    arrays |= {"instance": p.instance}
    for name, array in arrays.items():
        if array.shape != (m,):
            raise ValueError(f"a program of {m} items has {array.shape} values of {name}")
    for name in ("posts", "before_start_ns", "before_end_ns"):
        if (shape := getattr(p, name).shape) not in ((0,), (m,)):
            raise ValueError(f"a program of {m} items has {shape} values of {name}")
    if len(p.before_start_ns) != len(p.before_end_ns):
        raise ValueError("a program has starts or ends of the run before, but not both")
    if p.work_ns.ndim != 2 or len(p.work_ns) != m:
        raise ValueError(f"a program of {m} items has {p.work_ns.shape} values of work_ns")
    if not (_within(p.kind, 0, 3) and _within(p.stream, -1, max(2 * m, 1) + _STREAMS)):
        raise ValueError("a program has a kind of item or a stream that cannot be")
    for references in (p.behind, depends.on, waits.on):
        if not _within(references, -2 * m, m):
            raise ValueError("a program refers to items that it does not have")
    if not (_well_formed(depends, m) and _well_formed(waits, m)):
        raise ValueError("a program refers to items that it does not have")


def _well_formed(lists: Lists, m: int) -> bool:
    """Whether the lists are those of items below ``m``, in order, none of them empty."""
    items, begin = lists.items, lists.begin
    return (
        len(begin) == len(items) + 1
        and begin[0] == 0
        and begin[-1] == len(lists.on) == len(lists.between_ns)
        and bool((np.diff(begin) > 0).all() and (np.diff(items) > 0).all())
        and _within(items, 0, m)
    )


_STREAMS: Final = 1 << 20


def _within(values: IntArray | BoolArray, low: int, high: int) -> bool:
    """Whether all lie in ``[low, high)``."""
    return not len(values) or bool(values.min() >= low and values.max() < high)
