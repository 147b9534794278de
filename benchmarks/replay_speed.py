"""How long does the replay of a run take, compiled and in Python?

usage: python benchmarks/replay_speed.py [--items 1000000] [--ranks 1] [--variants 4] [CAPTURE...]

Without captures, programs are made: two streams, a dependency and a recorded event every eighth
operation, a step every 5,000, a collective every hundredth where there are several ranks. Printed
are, for each: the items, the time to build the programs (of captures), the compiled replay with all
times and for the steps only, several variants side by side, and the Python loop (on programs of at
most ``--python-items``), each in CPU seconds and in ns an operation and pass.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stepscope.gaps.idle import CAUSES
from stepscope.simulation import engine, reference
from stepscope.simulation.links import Depends, Waits, lists
from stepscope.simulation.program import LAUNCH, MARK, PASSES, WAIT, Program


def made(items: int, ranks: int) -> list[Program]:
    """Programs of some ranks with so many items in total."""
    return [_rank(items // ranks, rank, ranks) for rank in range(ranks)]


def _rank(m: int, rank: int, ranks: int) -> Program:
    random = np.random.default_rng(rank)
    at = np.arange(m)
    kind = np.where(at % 5000 == 0, MARK, np.where(at % 5000 == 4999, WAIT, LAUNCH))
    is_op = kind == LAUNCH
    instance = np.where(is_op & (at % 100 == 50) & (ranks > 1), at, -1)
    work = np.zeros((m, len(CAUSES)), np.int64)
    work[:, 3] = random.integers(1_000, 9_000, m)
    crossing = at[is_op & (at % 8 == 4)]
    waiting = at[kind == WAIT]
    zeros = np.zeros(m, np.int64)
    return Program(
        kind=kind,
        op=np.where(is_op, at, -1),
        at_ns=at * 10_000,
        work_ns=work,
        call_ns=random.integers(2_000, 5_000, m),
        recording_ns=zeros,
        recording_untraced_ns=zeros,
        stream=np.where(is_op, (at % 8 == 4).astype(np.int64), -1),
        latency_ns=np.full(m, 5_000),
        kernel_gap_ns=np.full(m, 900),
        delay_ns=zeros,
        duration_ns=random.integers(1_500, 15_000, m),
        hosted=np.ones(m, bool),
        blocks=np.zeros(m, bool),
        wait_cause=np.where(kind == WAIT, 0, -1),
        return_ns=np.where(kind == WAIT, 8_000, 0),
        instance=instance,
        depends=Depends(lists(crossing, crossing - 1, np.full(len(crossing), 2_000))),
        waits=Waits(lists(waiting, waiting - 1)),
        inferred=frozenset(),
        behind=np.where(is_op, np.maximum(at - 1023, -2 * m), -2 * m),
        communication=instance >= 0,
    )


def seconds(run: Callable[[], object], times: int = 3) -> float:
    """CPU time of the quickest of some runs, on one core."""
    best = float("inf")
    for _ in range(times):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return best


def report(name: str, programs: list[Program], variants: int, most: int, build: str) -> None:
    """Print one line."""
    items = sum(map(len, programs))

    def each(taken: float, count: int = 1) -> str:
        return f"{taken:7.3f} {1e9 * taken / (items * PASSES * count):6.1f}"

    engine._WORTH_THREADS = 1 << 60  # one core
    whole = each(seconds(lambda: engine.replay(programs)))
    steps = each(seconds(lambda: engine.steps_of([programs])))
    side = each(seconds(lambda: engine.steps_of([programs] * variants), 1), variants)
    slow = "      -      -"
    if items <= most:
        slow = each(seconds(lambda: reference.replay(programs), 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{name[:32]:32} {items:11,} {len(programs):5} {build:>7} {whole} {steps} {side} {slow} "
        f"{peak:6.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("captures", nargs="*", type=Path)
    parser.add_argument("--items", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--variants", type=int, default=4)
    parser.add_argument("--python-items", type=int, default=1_000_000)
    arguments = parser.parse_args()
    print("compiled" if engine.compiled() else "nothing is compiled: Python throughout")
    print(
        f"{'program':32} {'items':>11} {'ranks':>5} {'build':>7} {'all times, s, ns':>14} "
        f"{'steps only':>14} {f'{arguments.variants} variants':>14} {'Python loop':>14} {'GB':>6}"
    )
    rest = (arguments.variants, arguments.python_items)
    if not arguments.captures:
        for items in arguments.items:
            report("made", made(items, arguments.ranks), *rest, "-")
        return
    from stepscope.api import Job

    for capture in arguments.captures:
        simulation = Job([capture]).simulation
        simulation.runs  # noqa: B018 - what is found before programs are built
        begin = time.process_time()
        programs = [subject.program for subject in simulation.subjects]
        report(capture.name, programs, *rest, f"{time.process_time() - begin:.3f}")


if __name__ == "__main__":
    main()
