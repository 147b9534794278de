"""Accounting and gap attribution on hand-made timelines, and their identity on random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.build import US, Build

from stepscope.breakdown.explain import Explanation, explain
from stepscope.gaps.idle import CAUSES
from stepscope.trace.trace import Trace

STEPS = 6
PERIOD = 10_000.0  # us


def explained(build: Build, folder: Path) -> Explanation:
    trace = build.trace(folder)
    (only,) = explain(trace.frame, trace.meta)
    assert_identity(only)
    return only


def assert_identity(e: Explanation) -> None:
    a = e.accounting
    parts = a.compute_ns + a.exposed_communication_ns + a.exposed_copy_ns + a.memset_ns + a.idle_ns
    assert parts.tolist() == a.wall_ns.tolist()
    assert (a.idle_ns >= 0).all()
    segments = e.gaps.segments
    length = segments["end_ns"] - segments["start_ns"]
    assert (length > 0).all()
    assert length.sum() == e.steady_total("idle_ns")
    assert sum(e.idle_by_cause_ns.values()) == e.steady_total("idle_ns")
    assert (segments["start_ns"][1:] >= segments["end_ns"][:-1]).all()


def per_step(e: Explanation, cause: str) -> float:
    """us a step."""
    return e.idle_by_cause_ns.get(cause, 0) / e.n_steady / US


def step(build: Build, at: float, work: float = 6_000) -> None:
    """A step whose kernel is enqueued at once and runs for ``work``."""
    build.kernel(at + 20, at + 20 + work, call=(at + 5, at + 15))


def cause_at(e: Explanation, us: float) -> str:
    """What the idle time at a moment is charged to."""
    (row,) = np.flatnonzero(
        (e.gaps.segments["start_ns"] <= us * US) & (us * US < e.gaps.segments["end_ns"])
    )
    return CAUSES[e.gaps.segments["cause"][row]]


@pytest.mark.parametrize(
    ("kind", "prefetched", "cause"),
    [
        ("UVM DtoH", False, "host_compute"),  # until it touched them
        ("UVM DtoH", True, "host_compute"),
        ("UVM HtoD", False, "unexplained"),  # nothing on the device touches them
        ("UVM HtoD", True, "host_compute"),
        ("DtoH", False, "unexplained"),  # a call that was not recorded
        ("DtoH", True, "unexplained"),
    ],
)
def test_who_is_late_for_pages_that_move(
    tmp_path: Path, kind: str, *, prefetched: bool, cause: str
) -> None:
    """Kernels of 5 ms; 4 ms later pages move in 30 pieces, perhaps at a call 0.1 ms before."""
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step_{i}")
        build.kernel(at + 50, at + 5_050, call=(at + 5, at + 15))
        if prefetched:
            build.api(at + 8_900, at + 8_910, "cudaMemPrefetchAsync")
        for k in range(30):
            build.copy(at + 9_000 + 20 * k, at + 9_010 + 20 * k, kind=kind)
    e = explained(build, tmp_path)
    at = 2 * PERIOD
    assert cause_at(e, at + 5_100) == cause_at(e, at + 8_890) == cause


def test_input_named_by_a_range(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step_{i}")
        build.range(at, at + 4_000, "dataload")
        step(build, at + 4_000, 5_900)
    e = explained(build, tmp_path)
    assert len(e.steps) == STEPS
    assert e.steps.source == "numbered_range"
    # from the end of one kernel (80 us before the step ends) to the end of the range, 4 ms later
    assert per_step(e, "input_starvation") == pytest.approx(4_000, rel=0.01)
    assert max(e.idle_by_cause_ns, key=e.idle_by_cause_ns.__getitem__) == "input_starvation"
    assert e.places.of(e.gaps.segments["start_ns"], e.gaps.segments["end_ns"]).range == "dataload"


def test_silence_without_evidence_is_host_compute(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, "train_step")
        step(build, at)
    e = explained(build, tmp_path)
    assert per_step(e, "host_compute") == pytest.approx(PERIOD - 6_000, rel=0.02)
    assert "input_starvation" not in e.idle_by_cause_ns


def test_silence_inside_another_phase_is_not_input(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"iteration {i}")
        build.copy(at + 30, at + 60, call=(at + 5, at + 25))
        build.kernel(at + 100, at + 6_000, call=(at + 30, at + 40))
        build.range(at + 50, at + 9_990, "metrics")
    e = explained(build, tmp_path)
    assert per_step(e, "host_compute") > 3_500
    assert "input_starvation" not in e.idle_by_cause_ns


def test_silence_before_an_upload_is_input_when_nothing_is_annotated(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.copy(at + 30, at + 60, call=(at + 5, at + 25))
        for k in range(4):
            start = at + 100 + 1_500 * k
            build.kernel(start, start + 1_490, call=(at + 40 + 10 * k, at + 45 + 10 * k),
                         name=f"layer{k}")  # fmt: skip
    e = explained(build, tmp_path)
    assert e.steps.source == "kernel_sequence"
    assert len(e.steps) == STEPS
    assert per_step(e, "input_starvation") > 3_000


def test_a_sync_that_drains_the_queue_owns_the_gap_after_it(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        build.kernel(at + 20, at + 5_000, call=(at + 5, at + 15))
        build.api(at + 30, at + 5_010, "cudaStreamSynchronize")
        # the host needs 400 us to get going again
        build.kernel(at + 5_420, at + 9_990, call=(at + 5_400, at + 5_410))
    e = explained(build, tmp_path)
    # 420 us behind each wait; and the 30 us at each later step's begin (10 at the end of the last)
    # are late only because the lead is gone
    assert per_step(e, "host_sync") == pytest.approx(420 + (5 * 30 + 10) / 6)
    assert per_step(e, "launch_bound") < 50


def test_late_launches_without_a_wait_are_launch_bound(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        for k in range(100):
            t = at + 100 * k
            build.kernel(t + 15, t + 25, call=(t + 2, t + 10))
    e = explained(build, tmp_path)
    assert per_step(e, "launch_bound") == pytest.approx(9_000, rel=0.02)


def test_lost_lead_is_charged_up_to_the_wait(tmp_path: Path) -> None:
    """After a wait of 300 us, late launches of 600 us in all: half are the wait's doing."""
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        build.kernel(at + 20, at + 4_000, call=(at + 5, at + 15))
        build.api(at + 20, at + 3_690, "cudaGetLastError")  # no silence that could take the lead
        build.api(at + 3_690, at + 3_990, "cudaStreamSynchronize")  # ends before the GPU does
        t = 4_000.0
        for _ in range(6):  # six launches, each 100 us late, kernels of 50 us
            build.kernel(at + t + 100, at + t + 150, call=(at + t + 90, at + t + 95))
            t += 150
        build.kernel(at + t + 5, at + 9_995, call=(at + t - 20, at + t - 15))
        build.api(at + t, at + 9_990, "cudaGetLastError")
    e = explained(build, tmp_path)
    assert per_step(e, "host_sync") == pytest.approx(300, abs=15)
    assert per_step(e, "launch_bound") == pytest.approx(300, abs=40)


def test_blocking_copy(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        build.copy(at + 100, at + 3_100, call=(at + 5, at + 3_110), src="pageable", size=1 << 28)
        build.kernel(at + 3_300, at + 9_900, call=(at + 3_200, at + 3_210))
    e = explained(build, tmp_path)
    assert e.accounting.exposed_host_copy_ns.tolist() == [3_000 * US] * STEPS
    assert per_step(e, "blocking_copy") == pytest.approx(300, abs=50)
    assert e.copies.pageable == e.n_steady


def test_work_enqueued_in_time_waits_on_the_device(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        for k in range(10):
            build.kernel(at + 100 + 990 * k, at + 100 + 990 * k + 985, call=(at + k, at + k + 0.5))
    e = explained(build, tmp_path)
    assert per_step(e, "small_kernels") == pytest.approx(9 * 5, abs=10)


def test_overlap_priority(tmp_path: Path) -> None:
    """Compute hides communication, which hides copies, which hide memory sets."""
    build = Build()
    for i in range(4):
        at = i * 1_000.0
        build.range(at, at + 1_000, f"step {i}")
        build.kernel(at + 100, at + 300, call=(at + 1, at + 2))
        build.kernel(at + 200, at + 500, call=(at + 3, at + 4), name="ncclDevKernel_AllReduce",
                     stream=9)  # fmt: skip
        build.copy(at + 400, at + 700, call=(at + 5, at + 6), stream=11)
        build.memset(at + 650, at + 800, call=(at + 7, at + 8))
    e = explained(build, tmp_path)
    a = e.accounting
    assert (a.compute_ns[1], a.exposed_communication_ns[1]) == (200 * US, 200 * US)
    assert (a.exposed_copy_ns[1], a.memset_ns[1]) == (200 * US, 100 * US)
    assert (a.communication_ns[1], a.copy_ns[1]) == (300 * US, 300 * US)


@st.composite
def timelines(draw: st.DrawFn) -> Build:
    """Anything: overlapping streams, late and early calls, waits, ranges, missing calls."""
    build = Build()
    times = st.integers(0, 20_000)
    for _ in range(draw(st.integers(1, 40))):
        start = draw(times)
        call = draw(st.one_of(st.none(), st.tuples(times, st.integers(0, 500))))
        span = None if call is None else (float(call[0]), float(call[0] + call[1]))
        length = draw(st.integers(0, 3_000))
        shape = draw(st.sampled_from(["kernel", "nccl", "copy", "read", "memset"]))
        if shape == "kernel":
            build.kernel(start, start + length, call=span, stream=draw(st.integers(1, 2)))
        elif shape == "nccl":
            build.kernel(start, start + length, call=span, name="ncclDevKernel_X", stream=3)
        elif shape == "memset":
            build.memset(start, start + length, call=span)
        else:
            build.copy(start, start + length, call=span, size=4 if shape == "read" else 1 << 20,
                       kind="DtoH" if shape == "read" else "HtoD",
                       src=draw(st.sampled_from(["pageable", "pinned"])))  # fmt: skip
    for _ in range(draw(st.integers(0, 10))):
        start = draw(times)
        name = draw(st.sampled_from(["cudaStreamSynchronize", "cudaMalloc", "cuModuleLoadData"]))
        build.api(start, start + draw(st.integers(0, 2_000)), name)
    for i in range(draw(st.integers(0, 6))):
        start = draw(times)
        build.range(start, start + draw(st.integers(0, 4_000)), draw(
            st.sampled_from(["dataload", f"step_{i}", "forward", "epoch 0"])))  # fmt: skip
    return build


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(timelines())
def test_identity_holds_on_any_timeline(
    tmp_path_factory: pytest.TempPathFactory, build: Build
) -> None:
    trace = build.trace(tmp_path_factory.mktemp("any"))
    for e in explain(trace.frame, trace.meta):
        assert_identity(e)
        assert set(e.idle_by_cause_ns) <= set(CAUSES)


def test_two_devices_and_processes_are_separate(tmp_path: Path) -> None:
    build = Build()
    for i in range(4):
        at = i * 1_000.0
        build.range(at, at + 1_000, f"step {i}")
        build.kernel(at + 100, at + 900, call=(at + 1, at + 2))
        build.kernel(at + 200, at + 400, call=(at + 3, at + 4), device=1)
    trace: Trace = build.trace(tmp_path)
    gpus = explain(trace.frame, trace.meta)
    assert [e.gpu.device for e in gpus] == [0, 1]
    for e in gpus:
        assert_identity(e)
    assert np.array_equal(gpus[1].accounting.compute_ns[1:3], [200 * US] * 2)


def held(tmp_path: Path, late: float, *, clocks: float = 0.0, wait: bool = False) -> Explanation:
    """A kernel a step starts so long after the end of its launch on an idle GPU, us.

    Args:
        tmp_path: for the trace.
        late: how long after.
        clocks: by how much the device's clock is ahead of the host's, us.
        wait: whether the host waits for it.
    """
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        build.kernel(at + clocks + 8, at + clocks + 1_000, call=(at, at + 5))
        again = at + clocks + 1_500
        start = again + 5 + clocks + late
        build.kernel(start, at + 9_000, call=(again, again + 5))
        if wait:
            build.api(again + 10, at + 9_010, "cudaStreamSynchronize")
    return explained(build, tmp_path)


@pytest.mark.parametrize("wait", [False, True])
def test_what_is_enqueued_and_does_not_start_is_nobodys(tmp_path: Path, wait: bool) -> None:
    """All of 2.4 ms but 50 us more than the quickest launch, which takes 8."""
    e = held(tmp_path, 2_400, wait=wait)
    assert per_step(e, "unexplained") == pytest.approx(2_400 - 50 - 8)


@pytest.mark.parametrize("clocks", [0.0, 300.0])
def test_a_latency_is_the_hosts_whatever_the_clocks(tmp_path: Path, clocks: float) -> None:
    assert per_step(held(tmp_path, 45, clocks=clocks), "unexplained") == 0


@pytest.mark.parametrize(("first", "cause"), [(1 << 20, "host_compute"), (8, "input_starvation")])
def test_who_has_uploaded_a_part_of_a_batch_does_not_wait_for_it(
    tmp_path: Path, first: int, cause: str
) -> None:
    """2 ms of silence between two uploads, of images and labels; a learning rate is no part."""
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD - 1, f"step {i}")
        build.copy(at + 10, at + 500, call=(at + 5, at + 8), size=first)
        build.copy(at + 2_550, at + 2_560, call=(at + 2_540, at + 2_545), size=2_048)
        for k, name in enumerate(["forward", "backward", "adam_kernel"]):
            start = at + 2_570 + 2_400 * k
            build.kernel(start, start + 2_395, call=(at + 2_561 + k, at + 2_562 + k), name=name)
        build.api(at + 2_565, at + PERIOD, "cudaStreamSynchronize")
    e = explained(build, tmp_path)
    assert per_step(e, cause) == pytest.approx(2_040, abs=30)


@pytest.mark.parametrize(
    ("ahead", "between", "cause"),
    [
        ("cudaDeviceSynchronize", "cudaLaunchKernel", "compilation_or_warmup"),
        ("cudaGetLastError", "cudaLaunchKernel", "host_compute"),
        ("cudaDeviceSynchronize", "cudaMemcpyAsync", "host_compute"),
    ],
)
def test_collecting_garbage_before_a_capture_is_a_part_of_it(
    tmp_path: Path, ahead: str, between: str, cause: str
) -> None:
    """PyTorch synchronises, collects for 6 ms, fills a seed and begins a capture of 1 ms."""
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD - 1, f"step {i}")
        build.api(at + 5, at + 10, ahead)
        build.kernel(at + 6_030, at + 6_035, call=(at + 6_010, at + 6_015), call_name=between)
        build.api(at + 6_020, at + 6_025, "cudaStreamBeginCapture")
        build.api(at + 7_000, at + 7_020, "cudaStreamEndCapture")
        build.kernel(at + 7_060, at + 9_990, call=(at + 7_030, at + 7_035))
    e = explained(build, tmp_path)
    assert per_step(e, cause) == pytest.approx(6_000 + (cause != "host_compute") * 1_000, abs=30)
