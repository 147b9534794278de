"""Small programs for the simulator, written by hand or at random, and a naive replay of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from hypothesis import strategies as st

from stepscope.gaps.idle import CAUSES
from stepscope.simulation.program import LAUNCH, MARK, WAIT, C, Program


@dataclass(frozen=True)
class Item:
    """One item, ns."""

    kind: int = LAUNCH
    work: int = 0
    cause: str = "launch_bound"
    call: int = 0
    stream: int = 0
    latency: int = 0
    kernel_gap: int = 0
    delay: int = 0
    duration: int = 0
    hosted: bool = True
    blocks: bool = False
    returns: int = 0
    instance: int = -1
    behind: int = 0
    depends: tuple[tuple[int, int], ...] = ()
    waits: tuple[int, ...] = field(default=())


def mark(work: int = 0, cause: str = "launch_bound") -> Item:
    return Item(MARK, work, cause)


def wait(*on: int, work: int = 0, call: int = 0, returns: int = 0) -> Item:
    return Item(WAIT, work, call=call, returns=returns, waits=on)


def program(items: Sequence[Item], wait_cause: str = "host_sync") -> Program:
    """The program of some items."""

    def column(name: str) -> np.ndarray:
        return np.array([getattr(item, name) for item in items], np.int64)

    kind = column("kind")
    is_op = kind == LAUNCH
    m = len(items)
    work = np.zeros((m, len(CAUSES)), np.int64)
    for row, item in enumerate(items):
        work[row, C[item.cause]] = item.work
    blocks = np.array([item.blocks for item in items])
    waiting = blocks | (kind == WAIT)
    behind = column("behind")
    numbers = np.cumsum(is_op) - 1
    return Program(
        kind=kind,
        op=np.where(is_op, numbers, -1),
        at_ns=np.arange(m) * 1000,
        work_ns=work,
        call_ns=column("call"),
        recording_ns=np.zeros(m, np.int64),
        recording_untraced_ns=np.zeros(m, np.int64),
        stream=np.where(is_op, column("stream"), -1),
        latency_ns=column("latency"),
        kernel_gap_ns=column("kernel_gap"),
        delay_ns=column("delay"),
        duration_ns=column("duration"),
        hosted=np.array([item.hosted for item in items]),
        blocks=blocks,
        wait_cause=np.where(waiting, C[wait_cause], -1),
        return_ns=column("returns"),
        instance=column("instance"),
        depends={n: item.depends for n, item in enumerate(items) if item.depends},
        waits={n: item.waits for n, item in enumerate(items) if item.waits},
        inferred=frozenset(),
        behind=np.where(behind > 0, np.maximum(np.arange(m) - behind, -2 * m), -2 * m),
        communication=column("instance") >= 0,
    )


@st.composite
def jobs(draw: st.DrawFn, largest: int = 12) -> list[Program]:
    """Random programs of several ranks, some of whose operations are collectives.

    Their order differs between ranks, some are missing on some, and some come twice.
    """
    ranks = [draw(programs(largest)) for _ in range(draw(st.integers(1, 4)))]
    found = []
    for rank in ranks:
        one = _reaching_back(rank)
        drawn = np.frombuffer(draw(st.binary(min_size=len(one), max_size=len(one))), np.uint8)
        instance = np.where((one.kind == LAUNCH) & (drawn % 3 == 0), drawn.astype(int) // 3 % 7, -1)
        found.append(
            replace(
                one,
                instance=instance * 1_000_003,
                posts=drawn // 3 % 5 == 0 if len(one) % 3 else np.empty(0, bool),
                begin_ns=draw(st.integers(0, 99)),
                busy_ns=np.array(draw(st.lists(st.integers(0, 99), max_size=4)), np.int64),
                before_start_ns=drawn.astype(np.int64)[: len(one) * (drawn[0] % 2)] - 99,
                before_end_ns=drawn.astype(np.int64)[: len(one) * (drawn[0] % 2)],
            )
        )
    return found


def _reaching_back(p: Program) -> Program:
    """The same with some references to the run before."""
    m = len(p)
    return replace(
        p,
        depends={i: tuple((k - m * (k % 3 == 0), n) for k, n in on) for i, on in p.depends.items()},
        waits={i: tuple(k - m * (k % 3 == 1) for k in on) for i, on in p.waits.items()},
        behind=np.where(p.behind % 4 == 0, np.maximum(p.behind - m, -2 * m), p.behind),
    )


_BYTES = 18  # of an item: one a field


@st.composite
def programs(draw: st.DrawFn, largest: int = 25) -> Program:
    """Random programs of one rank: several streams, dependencies, waits, a full queue."""
    # some bytes an item: drawing every field by itself takes longer than all that is tested with it
    n = draw(st.integers(1, largest))
    drawn = draw(st.binary(min_size=_BYTES * n, max_size=_BYTES * n))
    items = [mark()]
    launches: list[int] = []
    for number in range(1, n + 1):
        left = iter(drawn[_BYTES * (number - 1) : _BYTES * number])

        def below(end: int, left: Iterator[int] = left) -> int:
            return next(left) % end

        def earlier(least: int, left: Iterator[int] = left) -> list[int]:
            count = min(least + below(3 - least, left), len(launches))
            picked = [launches[-1 - below(len(launches), left)] for _ in range(count)]
            return list(dict.fromkeys(picked))

        kind = ("op", "op", "op", "wait", "mark")[below(5)] if launches else "op"
        if kind == "mark":
            items.append(mark(below(31)))
        elif kind == "wait":
            on = earlier(1)
            items.append(wait(*on, work=below(31), call=below(31), returns=below(31)))
        else:
            on = earlier(0)
            items.append(
                Item(
                    work=below(31),
                    cause=("launch_bound", "host_compute")[below(2)],
                    call=below(31),
                    stream=below(3),
                    latency=below(31),
                    kernel_gap=below(11) - 5,
                    delay=below(4),
                    duration=6 + below(55),
                    hosted=below(5) < 4,
                    blocks=below(5) == 4,
                    returns=below(31),
                    depends=tuple((k, below(6)) for k in on),
                    behind=(0, 0, 1, 4)[below(4)],
                )
            )
            launches.append(number)
    return program(items)


def naive_bounds(p: Program, passes: int) -> list[int]:
    """Boundaries of the steps by the definition, each time looked up by searching all items."""
    m = len(p)
    total = m * passes

    @cache
    def host_before(j: int) -> int:
        return (host(j - 1) if j else 0) + int(p.work_ns[j % m].sum())

    @cache
    def called(j: int) -> int:
        back = j - j % m + int(p.behind[j % m])
        room = start(back) if p.hosted[j % m] and 0 <= back < j and p.op[back % m] >= 0 else 0
        return max(host_before(j), room)

    @cache
    def host(j: int) -> int:
        i = j % m
        if p.kind[i] == MARK:
            return host_before(j)
        if p.kind[i] == WAIT:
            done = max((end(j - i + k) for k in p.waits.get(i, ())), default=-(10**9))
            return max(host_before(j) + int(p.call_ns[i]), done + int(p.return_ns[i]))
        since = called(j) if p.hosted[i] else host_before(j)
        done = end(j) + int(p.return_ns[i]) if p.blocks[i] else 0
        return max(since + int(p.call_ns[i]), done)

    @cache
    def start(j: int) -> int:
        i = j % m
        reasons = [0]
        if p.hosted[i]:
            reasons.append(called(j) + int(p.latency_ns[i]))
        previous = [k for k in range(j) if p.stream[k % m] == p.stream[i] and p.op[k % m] >= 0]
        reasons.append((end(previous[-1]) if previous else 0) + int(p.kernel_gap_ns[i]))
        reasons += [end(j - i + k) + between for k, between in p.depends.get(i, ())]
        return max(reasons) + int(p.delay_ns[i])

    @cache
    def end(j: int) -> int:
        return start(j) + int(p.duration_ns[j % m])

    bounds = []
    for j in [j for j in range(total) if p.kind[j % m] == MARK] + [total]:
        at = host_before(j) if j < total else host(total - 1) + int(p.work_ns[0].sum())
        last = {}
        for k in range(j):
            if p.op[k % m] >= 0:
                last[int(p.stream[k % m])] = end(k)
        bounds.append((at, max(last.values(), default=0)))
    reach, found = 0, []
    for at, latest in bounds:
        reach = max(reach, latest)
        found.append(max(at, reach))
    return found
