"""Who is late once nothing is recorded, by hand; times in us."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.collectives.exposure import Pace, Parts, Work
from stepscope.collectives.late import beyond_mean_ns, lateness, own_time
from stepscope.trace.frame import IntArray

STEPS = 4


def _rows(*devices: float) -> IntArray:
    return np.tile(np.array(devices, np.int64) * 1000, (STEPS, 1))


def _parts(
    compute: tuple[float, float], waiting: tuple[float, float], idle: dict[str, tuple[float, float]]
) -> Parts:
    """Two devices whose steps consist of nothing else; each is 20 ms long."""
    nothing = _rows(0, 0)
    parts = Parts(
        begin_ns=np.arange(STEPS) * 20_000_000,
        end_ns=np.arange(1, STEPS + 1) * 20_000_000,
        wall=_rows(20_000, 20_000),
        compute=_rows(*compute),
        waiting=_rows(*waiting),
        transfer=nothing,
        missing=nothing,
        unmatched=nothing,
        copy=nothing,
        memset=nothing,
        idle={cause: _rows(*time) for cause, time in idle.items()},
        alone=nothing,
        blocking=nothing,
        bubble=nothing,
    )
    spent = parts.compute + parts.waiting + sum(parts.idle.values())
    assert (spent == parts.wall).all()
    return parts


def _pace(need: float, recording: float = 0.0) -> Pace:
    return Pace(
        need * 1e3, recording * 1e3, need * 1e3, 0.0, max(need - 1.6 * recording, 0.0) * 1e3
    )


IDLE = {"launch_bound": (0.0, 4_000.0), "profiler_overhead": (0.0, 6_000.0)}
"""The second device waits for its host for 10 ms, and the first one for the second."""


def test_a_device_that_executes_longest_is_late_once_nothing_is_recorded() -> None:
    parts = _parts((14_000, 10_000), (6_000, 0), IDLE)
    work = Work(_rows(3, 3), _rows(140, 100))
    paces = [_pace(20_000, 9_000), _pace(20_000, 9_000)]
    # its kernels take 14 ms, its host 11; the other one's take 10, and the host left it idle for
    # 10 ms, 9 of which recording explains
    assert own_time(parts, paces)[0].tolist() == [14e6, 11e6]
    late = lateness(parts, work, paces)
    assert late is not None
    assert (late.devices, late.mechanism) == ([0], "work")
    assert late.sure_ns == pytest.approx(3e6)


@pytest.mark.parametrize(("cause", "devices"), [("small_kernels", [0]), ("host_compute", None)])
def test_what_a_device_takes_between_enqueued_kernels_goes_with_them(
    cause: str, devices: list[int] | None
) -> None:
    """10.5 ms of kernels and 1 ms between them, where the other one needs 11 ms.

    What its host does in that 1 ms it may do sooner where nothing is recorded.
    """
    parts = _parts((10_500, 10_000), (8_500, 0), {cause: (1_000.0, 0.0)} | IDLE)
    paces = [_pace(20_000, 8_900), _pace(20_000, 9_000)]
    late = lateness(parts, Work(_rows(3, 3), _rows(140, 100)), paces)
    assert (late.devices if late is not None else None) == devices


def test_who_waits_longer_is_not_late_where_nothing_was_recorded() -> None:
    parts = _parts((14_000, 10_000), (6_000, 0), {"launch_bound": (0.0, 10_000.0)})
    late = lateness(parts, Work(_rows(3, 3), _rows(140, 100)), [_pace(11_000), _pace(20_000)])
    assert late is not None
    assert late.devices == [1]


@pytest.mark.parametrize(("launched", "mechanism"), [(300, "work"), (100, "idle")])
def test_a_host_with_three_times_the_launches_has_more_work(launched: int, mechanism: str) -> None:
    parts = _parts((2_000, 4_000), (18_000, 0), {"launch_bound": (0.0, 16_000.0)})
    work = Work(_rows(100, launched), _rows(100, 100))
    late = lateness(parts, work, [_pace(7_000), _pace(20_000)])
    assert late is not None
    assert (late.devices, late.mechanism) == ([1], mechanism)


def test_a_host_that_is_ready_before_its_device_hides_nothing() -> None:
    """Both call as long as each other; only the second one leaves its device idle."""
    parts = _parts((14_000, 10_000), (6_000, 0), {"launch_bound": (0.0, 10_000.0)})
    paces = [Pace(12e6, 0.0, 12e6, 0.0, 12e6), Pace(20e6, 0.0, 12e6, 8e6, 20e6)]
    late = lateness(parts, Work(_rows(3, 3), _rows(100, 100)), paces)
    assert late is not None
    assert (late.devices, late.mechanism, late.idle_cause) == ([1], "idle", "launch_bound")
    assert late.surplus_ns["idle launch_bound"] == pytest.approx(10e6)


def test_a_host_that_is_as_slow_behind_a_wait_makes_no_difference() -> None:
    """The first device would idle for 9 ms as well, if it did not wait for the second one."""
    parts = _parts((10_000, 11_000), (10_000, 0), {"launch_bound": (0.0, 9_000.0)})
    paces = [Pace(19e6, 0.0, 19e6, 0.0, 19e6), Pace(20e6, 0.0, 19e6, 0.0, 20e6)]
    late = lateness(parts, Work(_rows(3, 3), _rows(100, 100)), paces)
    assert late is not None
    assert (late.devices, late.mechanism) == ([1], "rate")
    assert late.imposed_ns == pytest.approx(1e6)
    assert late.surplus_ns["idle launch_bound"] == pytest.approx(0.0)


def test_a_state_that_is_saved_is_read_back_and_written_by_one_cause() -> None:
    """In the last of four steps the first device copies for 8 ms and its host writes for 8 ms."""
    parts = _parts((20_000, 20_000), (0, 0), {"checkpoint_stall": (0.0, 0.0)})
    wall, copy, saving, waiting = (_rows(20_000, 20_000), *(_rows(0, 0) for _ in range(3)))
    wall[3] = 36_000_000
    copy[3, 0], saving[3, 0], waiting[3, 1] = 8_000_000, 8_000_000, 16_000_000
    parts = replace(parts, wall=wall, copy=copy, waiting=waiting, idle={"checkpoint_stall": saving})
    # its host works for 24 ms of a mean step, more than three of the steps last
    paces = [Pace(24e6, 0.0, 8e6, 16e6, 24e6), _pace(8_000)]
    assert own_time(parts, paces)[:, 0].tolist() == [20e6, 20e6, 20e6, 36e6]
    late = lateness(parts, Work(_rows(3, 3), _rows(100, 100)), paces)
    assert late is not None
    assert (late.devices, late.mechanism, late.idle_cause) == ([0], "idle", "checkpoint_stall")
    assert late.imposed_ns == pytest.approx(4e6)
    assert late.surplus_ns["idle checkpoint_stall"] == pytest.approx(4e6)
    assert late.surplus_ns["copy"] == pytest.approx(0.0)


@pytest.mark.parametrize(("kernels", "same"), [(100, True), (104, True), (130, False)])
def test_data_is_uneven_where_further_kernels_explain_little(kernels: int, same: bool) -> None:
    """14 ms instead of 10: of 104 kernels, 4 take 0.5 ms; of 130, 30 take 3.2 ms."""
    parts = _parts((10_000, 14_000), (4_000, 0), {"launch_bound": (6_000.0, 6_000.0)})
    work = Work(_rows(100, kernels), _rows(100, 140))
    late = lateness(parts, work, [_pace(0), _pace(0)])
    assert late is not None
    assert (late.devices, late.mechanism, late.same_kernels) == ([1], "work", same)
    # shared out, 12 ms on each
    assert beyond_mean_ns(parts).tolist() == [2_000_000] * STEPS
