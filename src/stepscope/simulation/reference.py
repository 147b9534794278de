"""The replay in plain Python: the definition of it, and the way where nothing is compiled.

One loop a rank over plain lists: the host waits for the device and the device for the host, so that
there is nothing to vectorise over. ``native/src/replay.cpp`` says the same, some hundred times as
fast; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from stepscope.simulation.program import LAUNCH, MARK, PASSES, WAIT, Program, Replay

_Arrival = Generator[tuple[int, int, int, int], int, None]


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
    arrived: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    ready: list[tuple[int, int | None]] = [(number, None) for number in range(len(running))]
    while ready or arrived:
        if not ready:
            # ranks wait for different collectives: their order differs between the ranks, or some
            # of them lie outside the run; the earliest goes on with those that are there
            key = min(arrived, key=lambda k: (k[0], max(a for _, a, _ in arrived[k]), k[1]))
            ready = _go(arrived.pop(key))
            continue
        number, end = ready.pop()
        try:
            pass_, instance, arrival, transfer = _advance(running[number], end)
        except StopIteration:
            continue
        waiting = arrived.setdefault((pass_, instance), [])
        waiting.append((number, arrival, transfer))
        if len(waiting) == rank_traces[instance]:
            ready += _go(arrived.pop((pass_, instance)))


def _go(waiting: list[tuple[int, int, int]]) -> list[tuple[int, int | None]]:
    end = max(arrival for _, arrival, _ in waiting) + max(transfer for _, _, transfer in waiting)
    return [(number, end) for number, _, _ in waiting]


def _advance(rank: _Arrival, end: int | None) -> tuple[int, int, int, int]:
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
    """One rank; yields (pass, collective, arrival, transfer), is sent the collective's end."""
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
    free = [0] * (int(program.stream.max(initial=0)) + 1)
    depends, waits = program.depends, program.waits
    kind: list[int] = program.kind.tolist()
    hosted: list[bool] = program.hosted.tolist()
    blocks: list[bool] = program.blocks.tolist()
    instance: list[int] = program.instance.tolist()
    # references to before the first pass are negative: they find zeros behind the lists' end
    start += [0] * (2 * m)
    end += [0] * (2 * m)
    h = 0
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
                at = at + d if instance[i] < 0 else (yield pass_, instance[i], at, d)
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
