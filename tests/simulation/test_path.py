"""Critical paths: exact, and the ones that were computed by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.programs import Item, mark, program, programs, wait

from stepscope.activity.device import GPU_COLUMNS, GpuTimeline, HostSide
from stepscope.gaps.idle import CAUSES
from stepscope.simulation.engine import replay
from stepscope.simulation.path import KINDS, Walker
from stepscope.simulation.program import Program
from stepscope.simulation.subject import Subject
from stepscope.trace.frame import Frame


def subject(made: Program, rank: int = 0) -> Subject:
    n = int((made.op >= 0).sum())
    columns = {name: np.zeros(n, np.int64) for name in GPU_COLUMNS}
    names = ("kind", "name", "copy_kind", "src_memory", "dst_memory")
    texts = {name: ["kernel" if name == "kind" else "gemm"] for name in names}
    empty = Frame({})
    host = HostSide(1, empty, empty, empty, empty, [1])
    gpu = GpuTimeline(1, 0, Frame(columns, texts), np.zeros(n, np.int64), host)
    return Subject(rank, gpu, made)


def paths(*made: Program) -> list[list[tuple[str, str, int, int]]]:
    """(kind, cause, rank, ns), earliest first, of each step of the first program."""
    subjects = [subject(p, rank) for rank, p in enumerate(made)]
    results = replay([s.program for s in subjects])
    walker = Walker(subjects, results)
    found = []
    for step in range(results[0].steps):
        parts = reversed(walker.step(0, step))
        found.append(
            [(p.kind, CAUSES[p.cause] if p.cause >= 0 else "", p.device, p.ns) for p in parts]
        )
    return found


def test_host_bound():
    (path,) = paths(program([mark(), Item(work=50, call=10, latency=5, duration=20)]))
    # the step begins when the device has ended the one before: the host is under way by then
    assert path == [
        ("host_work", "launch_bound", 0, 35),
        ("launch_latency", "", 0, 5),
        ("kernel", "", 0, 20),
    ]


def test_device_bound():
    (path,) = paths(program([mark(), Item(work=5, call=5, kernel_gap=2, duration=100)]))
    assert path == [("kernel_gap", "", 0, 2), ("kernel", "", 0, 100)]


def test_through_a_wait():
    items = [
        mark(),
        Item(work=20, cause="input_starvation", call=10, latency=5, duration=100),
        wait(1, call=3, returns=7),
    ]
    (path,) = paths(program(items))
    assert path == [
        ("host_work", "input_starvation", 0, 20),
        ("launch_latency", "", 0, 5),
        ("kernel", "", 0, 100),
        ("synchronisation", "", 0, 7),
    ]


def test_over_to_the_rank_that_comes_last():
    def rank(work: int) -> Program:
        op = Item(work=work, cause="host_compute", call=1, duration=20, instance=3)
        return program([mark(), op, wait(1, returns=2)])

    (path,) = paths(rank(10), rank(90))
    assert path == [
        ("host_work", "host_compute", 1, 90),
        ("communication", "", 0, 20),
        ("synchronisation", "", 0, 2),
    ]


@settings(max_examples=300, deadline=None)
@given(programs())
def test_parts_sum_to_each_step_exactly(random: Program):
    made = subject(random)
    (result,) = replay([random])
    walker = Walker([made], [result])
    lengths = np.diff(result.bounds_ns[-1 - result.steps :]).tolist()
    for step, length in enumerate(lengths):
        parts = walker.step(0, step)
        assert sum(p.ns for p in parts) == length
        assert all(p.ns > 0 and p.kind in KINDS for p in parts)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=2, max_size=5), st.integers(1, 50))
def test_parts_sum_across_ranks(works: list[int], transfer: int):
    made = [program([mark(), Item(work=w, duration=transfer, instance=1), wait(1)]) for w in works]
    for path in paths(*made):
        assert sum(part[3] for part in path) == max(works) + transfer


def test_no_part_stays_unexplained_where_nothing_is():
    for path in paths(program([mark(), *[Item(work=3, call=2, duration=9)] * 5])):
        assert "unexplained" not in {part[0] for part in path}
