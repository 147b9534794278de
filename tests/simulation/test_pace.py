"""The pace of hosts: recorded, woken, and in another run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from tests.support.programs import Item, mark, program, wait

from stepscope.activity.device import GpuTimeline
from stepscope.simulation import batches, pace
from stepscope.simulation.engine import replay
from stepscope.simulation.model import _range
from stepscope.simulation.program import LONG_AGO_NS, C, from_rest
from stepscope.simulation.subject import Subject

NO_GPU = cast("GpuTimeline", None)
"""The pace needs the program only."""


def subjects(items: list[Item], **columns: object) -> list[Subject]:
    return [Subject(0, NO_GPU, program(items)).becomes(**columns)]


def step_ns(found: list[Subject]) -> float:
    return replay([s.program for s in found])[0].step_ns


def launching(*work: int) -> list[Item]:
    """Steps in which launching takes so long, and the host computes for 1000."""
    return [
        item
        for ns in work
        for item in (mark(), Item(work=1000, cause="host_compute"), Item(work=ns, duration=1))
    ]


@pytest.mark.parametrize(
    ("bound", "woken", "expected"),
    [
        # steps of 100 on average, and the host's work: 18 % to either side at least
        ("low", False, 820 + 82),
        ("expected", False, 1000 + 100),
        ("high", False, 1180 + 118),
        # the quickest in twenty of 98, 100 and 102 is 98.2; what the host computes stays
        ("low", True, 1000 + 98.2),
        ("expected", True, 1000 + 99.1),
        ("high", True, 1000 + 100),
    ],
)
def test_the_pace_that_a_repaired_program_may_have(
    bound: pace.Bound, woken: bool, expected: float
) -> None:
    steps = subjects(launching(98, 100, 102))
    assert step_ns(pace.at_pace(steps, bound, woken=woken)) == pytest.approx(expected, abs=1)


def test_steps_that_differ_more_say_how_much() -> None:
    """The 16th and 84th percentile of 50, 100 and 150 are 66 and 134: 34 % to either side."""
    steps = subjects(launching(50, 100, 150))
    assert step_ns(pace.at_pace(steps, "low")) == pytest.approx(660 + 66, abs=3)


def test_what_is_left_without_recording_says_less_of_the_pace_than_what_was_recorded() -> None:
    """Steps of 98, 100 and 102, of which 90 are recording: no host works at 8 and at 12."""
    shown, left = subjects(launching(98, 100, 102)), subjects(launching(8, 10, 12))
    found = pace.at_pace(left, "low", woken=True, shown=shown)
    assert step_ns(found) == pytest.approx(1000 + 9.82, abs=1)


def test_a_host_beside_workers_is_slower_in_recording_too() -> None:
    """Of 100 a launch 50 are recording: 1.17 times the other 50 is left without it."""
    items = [mark(), Item(work=100, duration=1)]
    (before,) = subjects(items, recording_ns=np.array([0, 50]))
    found = pace.unrecorded([pace.loaded_beside(before, 1.0, "expected")], 1.0)
    assert step_ns(found) == pytest.approx(50 * pace.LOADED["expected"], abs=1)


def test_what_recording_costs_is_taken_from_where_it_was_paid() -> None:
    items = [mark(), Item(work=100, call=20, duration=10), Item(work=40, call=20, duration=10)]
    steps = subjects(items, recording_ns=program(items).call_ns + 10)
    assert pace.is_recorded(steps)
    assert step_ns(steps) == 180
    # 10 for the mark, which has no launching to take it from, 30 for each launch
    assert step_ns(pace.unrecorded(steps, 0.5)) == 180 - 30
    assert step_ns(pace.unrecorded(steps, 1.0)) == 180 - 60


def test_what_recording_costs_beyond_its_events_slows_the_host_in_proportion() -> None:
    # two launches with an event of 30 each, of which one takes twice as long as the other
    items = [mark(), Item(work=100, call=20, duration=10), Item(work=40, call=20, duration=10)]
    recorded = np.array([0, 30, 30])
    steps = subjects(items, recording_ns=recorded, recorded_share=60 / 180)
    assert step_ns(pace.unrecorded(steps, 1.0)) == 180 - 60
    # once more 60: 40 of the one, and 20 of the other
    (twice,) = pace.unrecorded(steps, 2.0)
    np.testing.assert_array_equal(twice.program.work_ns[:, C["launch_bound"]], [0, 30, 0])
    assert step_ns([twice]) == 180 - 120
    # all that launching takes is gone, and the device sets the pace
    assert step_ns(pace.unrecorded(steps, 6.0)) == 20


def test_a_long_stretch_without_events_is_slowed_at_its_begin_only() -> None:
    """Five launches of 50 with an event of 10 each, and one that plans for 10000."""
    items = [
        mark(),
        *(Item(work=40, call=10, duration=1) for _ in range(5)),
        Item(work=9990, call=10),
    ]
    recorded = np.array([0, *[10] * 6])
    steps = subjects(items, recording_ns=recorded, recorded_share=0.1)
    (twice,) = pace.unrecorded(steps, 2.0)
    short, (long,) = np.split(twice.program.work_ns[1:, C["launch_bound"]], [5])
    # 10 for the event and a tenth of 50; of the long one a tenth of twelve such stretches
    np.testing.assert_array_equal(short, 40 - 15)
    assert long == 9990 - 10 - 60


def test_what_is_recorded_beside_launching_is_paid_there_at_its_estimate() -> None:
    items = [mark(), Item(work=1000, cause="cpu_offload"), Item(work=100, call=20, duration=10)]
    beside = np.array([0, 200, 0])
    steps = subjects(items, recording_ns=beside, recording_untraced_ns=beside)
    assert step_ns(steps) - step_ns(pace.unrecorded(steps, 0.5)) == 100
    assert step_ns(steps) - step_ns(pace.unrecorded(steps, 3.0)) == 200


@pytest.mark.parametrize("lead", [0, 300])
def test_batches_come_as_often_as_before_however_fast_the_host_is(lead: int) -> None:
    """Of 1000 the host waits 400; one that launches in half the time waits longer."""

    def job(launch: int) -> list[Subject]:
        batch = Item(work=400, cause="input_starvation", duration=lead)
        return subjects([mark(), batch, Item(work=launch, duration=lead)] * 2)

    quick = job(300)
    assert step_ns(quick) == 700
    other = pace.work_in_another_run(quick, "low")
    assert step_ns(batches.as_they_come(quick, 1000.0)) == pytest.approx(1000, abs=1)
    assert batches.as_they_come(quick, 700.0) == quick
    assert not batches.waits_alike(quick, other)


def test_of_several_ranks_the_one_waits_longer_whose_workers_are_slowest() -> None:
    def rank(waits: int, launch: int) -> list[Subject]:
        batch = Item(work=waits, cause="input_starvation")
        return subjects([mark(), batch, Item(work=launch, duration=10)] * 2)

    starved, other = *rank(400, 300), *rank(50, 300)
    found = batches.as_they_come([other, starved], 1000.0)
    assert found[0] is other
    assert step_ns(found[1:]) == pytest.approx(1000, abs=1)


def test_a_host_is_no_longer_woken_where_waits_went() -> None:
    items = [mark(), Item(duration=50), wait(1), mark(), Item(duration=50), wait(4)]
    before = subjects(items)
    (after,) = subjects(items)
    one_less = after.becomes(waits={5: after.program.waits[5]})
    assert not pace.no_longer_woken(before, before)
    assert pace.no_longer_woken(before, [one_less])


@pytest.mark.parametrize(
    ("cause", "reads_in", "woken"),
    [
        ("host_sync", (0, 9, 0), False),  # one step of three, however often it waits
        ("host_sync", (9, 9, 0), True),
        ("checkpoint_stall", (1, 9, 0), False),  # what ends in the step after the one that saves
    ],
)
def test_a_few_steps_that_wait_leave_the_pace_of_the_others(
    cause: str, reads_in: tuple[int, ...], woken: bool
) -> None:
    items = []
    for reads in reads_in:
        items += [mark(), Item(duration=50)]
        items += [Item(duration=5, blocks=True) for _ in range(reads)]
    (one,) = before = [Subject(0, NO_GPU, program(items, cause))]
    after = [one.becomes(blocks=np.zeros(len(items), bool))]
    assert pace.no_longer_woken(before, after) is woken


def test_steps_to_come_do_not_begin_with_a_device_that_is_busy_with_what_nobody_saw() -> None:
    """The host sets the pace by a little: the device is behind for a hundred passes."""
    (late,) = subjects([mark(), Item(work=100, duration=99)], busy_ns=np.array([10_000]))
    assert step_ns([late]) == 99
    assert step_ns([replace(late, program=from_rest(late.program))]) == 100
    # what was enqueued before is known to have kept it busy for so long
    before = np.array([LONG_AGO_NS, 4_000])
    known = late.becomes(before_end_ns=before, before_start_ns=before)
    np.testing.assert_array_equal(from_rest(known.program).busy_ns, [4_000])


def test_independent_uncertainties_add_by_their_squares() -> None:
    low, high = _range(0.5, [0.4, 0.6, 0.53], 0.03, 0.0)
    assert low == pytest.approx(0.5 - math.hypot(0.1, 0.03))
    assert high == pytest.approx(0.5 + math.hypot(0.1, 0.03, 0.03))
    assert _range(0.02, [0.0], 0.1, 0.0)[0] == 0
    # what goes unforeseen makes the step shorter
    assert _range(0.5, [0.4, 0.6, 0.53], 0.03, 0.06) == (
        *(pytest.approx(0.5 - math.hypot(0.1, 0.03, 0.06)), high),
    )


@pytest.mark.parametrize(("device", "apart"), [(0, pace.BETWEEN_RUNS), (10_000, 0.0)])
def test_another_run_differs_by_what_the_host_paces(device: int, apart: float) -> None:
    """A device that takes ten times as long hides whatever the host does."""
    items = [mark(), Item(work=600, cause="host_compute"), Item(work=400, duration=device)]
    steps = subjects(items)
    unchanged = step_ns(steps)
    for bound, sign in (("low", -1), ("high", 1)):
        other = step_ns(pace.in_another_run(steps, bound))
        assert other / unchanged == pytest.approx(1 + sign * apart, abs=0.005)
    assert pace.in_another_run(steps, "expected") is steps
