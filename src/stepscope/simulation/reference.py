"""The replay in plain Python: the definition of it, and the way where nothing is compiled.

One loop a rank over plain lists: the host waits for the device and the device for the host, so that
there is nothing to vectorise over. ``native/src/replay.cpp`` says the same, some hundred times as
fast; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.simulation.program import LAUNCH, MARK, PASSES, WAIT, Program, Replay

_Arrival = Generator[tuple[int, int, int, int, bool], int, None]


def replay(programs: Sequence[Program], passes: int = PASSES) -> list[Replay]:
    """Replay the programs of all ranks together.

    Args:
        programs: one a device; equal ids in ``instance`` are one collective.
        passes: how often in a row.
    """
    columns = []
    running: list[_Arrival] = []
    rank_traces: dict[int, int] = {}
    for program in programs:
        size = len(program) * passes
        times = ([0] * size, [0] * size, [0] * size)
        bounds: list[int] = []
        columns.append((bounds, *times))
        met = program.instance[(program.instance >= 0) & (program.kind == LAUNCH)]
        for instance in met.tolist():
            rank_traces[instance] = rank_traces.get(instance, 0) + 1
        running.append(_run(program, *times, bounds, passes))
    _coordinate(running, rank_traces)
    results = []
    for program, lists in zip(programs, columns, strict=True):
        bounds_ns, *arrays = (np.array(values, np.int64) for values in lists)
        results.append(Replay(bounds_ns, int((program.kind == MARK).sum()), *arrays))
    return results


def _coordinate(running: list[_Arrival], rank_traces: dict[int, int]) -> None:
    """Run every rank up to its next collective; let a collective go when all have arrived."""
    arrived: dict[tuple[int, int], _Meeting] = {}
    ready: list[tuple[int, int | None]] = [(number, None) for number in range(len(running))]
    standing = 0
    while ready or standing:
        if not ready:
            # ranks wait for different collectives: their order differs between the ranks, or some
            # of them lie outside the run; the earliest goes on with those that are there
            waited = (k for k, meeting in arrived.items() if meeting.waiting)
            key = min(waited, key=lambda k: (k[0], arrived[k].latest, k[1]))
            ready = arrived.pop(key).go()
            standing -= len(ready)
            continue
        number, end = ready.pop()
        try:
            pass_, instance, arrival, transfer, posts = _advance(running[number], end)
        except StopIteration:
            continue
        key = (pass_, instance)
        meeting = arrived.setdefault(key, _Meeting(arrival))
        meeting.count += 1
        meeting.latest = max(meeting.latest, arrival)
        if posts:
            ready.append((number, arrival + transfer))
        else:
            meeting.waiting.append((number, transfer))
            standing += 1
        if meeting.count == rank_traces[instance]:
            gone = arrived.pop(key).go()
            standing -= len(gone)
            ready += gone


@dataclass
class _Meeting:
    """Those who have come to a collective."""

    latest: int
    count: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)

    def go(self) -> list[tuple[int, int | None]]:
        """Those who waited, and when they are done."""
        end = self.latest + max((transfer for _, transfer in self.waiting), default=0)
        return [(number, end) for number, _ in self.waiting]


def _advance(rank: _Arrival, end: int | None) -> tuple[int, int, int, int, bool]:
    return next(rank) if end is None else rank.send(end)


def _special(program: Program) -> list[bool]:
    """Items that need more than launch and stream order."""
    special = (program.kind != LAUNCH) | ~program.hosted | program.blocks
    special |= (program.instance >= 0) | (program.stream < 0)
    special[list(program.depends)] = True
    special[list(program.waits)] = True
    found: list[bool] = special.tolist()
    return found


def _run(  # noqa: PLR0912, PLR0915 - one loop: calls would make it several times slower
    program: Program,
    host: list[int],
    start: list[int],
    end: list[int],
    bounds: list[int],
    passes: int,
) -> _Arrival:
    """One rank; yields (pass, collective, arrival, transfer, posts), is sent when that ends."""
    m = len(program)
    work: list[int] = program.work_ns.sum(axis=1).tolist()
    # lists of the columns once: numpy scalars would make the loop several times slower
    call, latency, kernel_gap, delay, duration, returns, behind = (
        column.tolist()
        for column in (
            program.call_ns,
            program.latency_ns,
            program.kernel_gap_ns,
            program.delay_ns,
            program.duration_ns,
            program.return_ns,
            program.behind,
        )
    )
    stream: list[int] = program.stream.tolist()
    special = _special(program)
    posts: list[bool] = program.posts.tolist() or [False] * m
    h = program.begin_ns
    free = [0] * (int(program.stream.max(initial=0)) + 1)
    origin = h + (work[0] if work else 0)
    for s, busy in enumerate(program.busy_ns[: len(free)].tolist()):
        if busy > 0:
            free[s] = origin + busy
    depends, waits = program.depends, program.waits
    kind: list[int] = program.kind.tolist()
    hosted: list[bool] = program.hosted.tolist()
    blocks: list[bool] = program.blocks.tolist()
    instance: list[int] = program.instance.tolist()
    # references to before the first pass are negative: they find the run before, and before that
    # zeros, behind the lists' end
    start += [0] * m + ((origin + program.before_start_ns).tolist() or [0] * m)
    end += [0] * m + ((origin + program.before_end_ns).tolist() or [0] * m)
    latest = 0
    for pass_ in range(passes):
        base = pass_ * m
        j = base
        for w, c, s, lat, turn, wait, d, back, odd in zip(
            work, call, stream, latency, kernel_gap, delay, duration, behind, special, strict=True
        ):
            h += w
            if not odd:
                # comparisons, not max(): millions of calls would take a third of the time
                room = start[base + back]
                h = room if room > h else h
                at = h + lat
                t = free[s] + turn
                at = (t if t > at else at) + wait
                start[j] = at
                at += d
                end[j] = free[s] = at
                h += c
                host[j] = h
                j += 1
                continue
            i = j - base
            what = kind[i]
            if what == MARK:
                latest = max(latest, *free)
                bounds.append(max(h, latest))
            elif what == WAIT:
                h += c
                if i in waits:
                    done = max([end[base + k] for k in waits[i]]) + returns[i]
                    h = max(h, done)
            else:
                at = 0
                if hosted[i]:
                    room = start[base + back]
                    h = max(h, room)
                    at = h + lat
                if s >= 0:
                    at = max(at, free[s] + turn)
                if i in depends:
                    for k, between in depends[i]:
                        t = end[base + k] + between
                        at = max(at, t)
                at += wait
                start[j] = at
                at = at + d if instance[i] < 0 else (yield pass_, instance[i], at, d, posts[i])
                end[j] = at
                if s >= 0:
                    free[s] = at
                h += c
                if blocks[i] and at + returns[i] > h:
                    h = at + returns[i]
            host[j] = h
            j += 1
    del start[m * passes :], end[m * passes :]
    h += work[0] if work else 0
    bounds.append(max(h, latest, *free))
