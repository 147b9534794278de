"""The replay against programs computed by hand and against its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from tests.support.programs import Item, mark, naive_bounds, program, programs, wait

from stepscope.simulation.engine import replay
from stepscope.simulation.program import Program


def test_host_bound_and_device_bound_steps():
    slow_host = program([mark(), Item(work=50, call=10, latency=5, duration=20)])
    (result,) = replay([slow_host])
    assert result.start_ns[1] == 55
    assert result.end_ns[1] == 75
    assert result.step_ns == 60  # work and call; the device is done before the next launch

    slow_device = program([mark(), Item(work=5, call=5, latency=5, kernel_gap=2, duration=100)])
    (result,) = replay([slow_device])
    assert result.step_ns == 102
    assert result.start_ns[1] == 10


def test_a_wait_adds_the_host_to_the_device():
    items = [mark(), Item(call=10, latency=5, duration=100), wait(1, call=3, returns=7)]
    (result,) = replay([program(items)])
    assert result.host_ns[2] == 5 + 100 + 7
    assert result.step_ns == 112


def test_a_blocking_copy_keeps_the_host():
    items = [mark(), Item(call=10, latency=5, duration=100, blocks=True, returns=-20)]
    (result,) = replay([program(items)])
    assert result.host_ns[1] == 85


def test_a_full_queue_makes_the_launch_wait():
    ops = [Item(call=1, latency=1, duration=100, behind=2) for _ in range(6)]
    (result,) = replay([program([mark(), *ops])], passes=1)
    # the third launch goes on when the first operation has started, and so on
    assert [result.host_ns[j] for j in (3, 4, 5)] == [3, 102, 202]


def test_streams_overlap_unless_one_depends_on_the_other():
    first, second = Item(duration=50), Item(stream=1, duration=30)
    (apart,) = replay([program([mark(), first, second])], passes=1)
    assert apart.bounds_ns[-1] == 50
    tied = Item(stream=1, duration=30, depends=((1, 4),))
    (result,) = replay([program([mark(), first, tied])], passes=1)
    assert result.start_ns[2] == 54
    assert result.bounds_ns[-1] == 84


def test_references_before_the_run_reach_into_the_pass_before():
    items = [mark(), Item(duration=40), Item(stream=1, duration=10, depends=((-2, 0),))]
    (result,) = replay([program(items)])
    # the dependency of the second pass is on the first operation of the first
    assert result.start_ns[2] == 0
    assert result.start_ns[5] == result.end_ns[1]


def test_a_collective_waits_for_the_last_rank():
    early = program([mark(), Item(work=10, latency=1, duration=20, instance=3), Item(duration=5)])
    late = program([mark(), Item(work=90, latency=1, duration=20, instance=3), Item(duration=5)])
    first, second = replay([early, late], passes=1)
    assert (first.start_ns[1], second.start_ns[1]) == (11, 91)
    assert first.end_ns[1] == second.end_ns[1] == 111
    assert first.start_ns[2] == 111


def test_a_send_that_fits_into_a_buffer_waits_for_nobody():
    sender = program([mark(), Item(work=10, duration=4, instance=3), Item(duration=5)])
    sender = replace(sender, posts=np.array([False, True, False]))
    for arrives, ends in ((90, 90), (2, 10)):
        receiver = program([mark(), Item(work=arrives, duration=20, instance=3)])
        first, second = replay([sender, receiver], passes=1)
        assert (first.start_ns[1], first.end_ns[1], first.start_ns[2]) == (10, 14, 14)
        assert second.end_ns[1] == ends + 20


def test_the_first_pass_begins_as_the_recorded_run_did():
    items = [mark(work=3), Item(call=1, duration=10), Item(stream=1, duration=10)]
    plain = program(items)
    begun = replace(plain, begin_ns=100, busy_ns=np.array([50]))
    (result,) = replay([begun])
    assert result.bounds_ns[0] == 100 + 3 + 50
    assert result.start_ns[1] == 153
    assert result.start_ns[2] == 100 + 3 + 1
    assert result.bounds_ns[1] == 163
    assert result.step_ns == replay([plain])[0].step_ns


def test_collectives_in_another_order_do_not_hang():
    one = [mark(), Item(duration=5, instance=1), Item(duration=5, instance=2)]
    other = [mark(), Item(duration=5, instance=2), Item(duration=5, instance=1)]
    first, second = replay([program(one), program(other)])
    assert first.step_ns > 0
    assert second.step_ns > 0


@settings(max_examples=300, deadline=None)
@given(programs())
def test_replay_is_the_definition(random: Program):
    (result,) = replay([random])
    assert result.bounds_ns.tolist() == naive_bounds(random, 2)


@settings(max_examples=100, deadline=None)
@given(programs())
def test_taking_time_away_never_slows(random: Program):
    (before,) = replay([random])
    faster = replace(
        random,
        work_ns=random.work_ns // 2,
        duration_ns=random.duration_ns // 3,
        waits={},
        blocks=np.zeros_like(random.blocks),
    )
    (after,) = replay([faster])
    # starts are maxima of sums: with a fixed order on every stream there is no anomaly
    assert all(a <= b for a, b in zip(after.bounds_ns, before.bounds_ns, strict=True))
