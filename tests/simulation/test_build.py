"""From traces made by hand to programs, and what changes do to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.build import US, Build

from stepscope.breakdown.explain import explain
from stepscope.breakdown.repaired import OF_THE_GAIN
from stepscope.gaps.idle import CAUSES
from stepscope.simulation import (
    CallCompiled,
    Change,
    Free,
    FuseOps,
    LaunchesFree,
    LoadedBeside,
    MatchedJob,
    MatchedOps,
    OverlapCommunication,
    RankLike,
    RemoveOps,
    ScaleKernels,
    ScaleOps,
    Simulation,
)
from stepscope.simulation.changed_operations import COMPILED_CALL_NS, COMPILED_WHOLE_NS
from stepscope.simulation.engine import replay
from stepscope.simulation.pace import LOADED
from stepscope.simulation.ranks import unhindered
from stepscope.trace.errors import UsageError
from stepscope.trace.trace import Trace

STEPS = 6


def simulation(trace: Trace) -> Simulation:
    (e,) = explain(trace.frame, trace.meta)
    return Simulation([(0, e)], {0: trace.frame})


def steps(b: Build, period: float, step: Callable[[Build, float], None]) -> Build:
    """``STEPS`` annotated steps of one kind, each made by ``step(build, begin)``."""
    for number in range(STEPS):
        begin = number * period
        b.range(begin, begin + period, f"step {number}")
        step(b, begin)
    return b


def test_a_host_bound_run_follows_the_host(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        for k in range(4):
            at = t + 100 + 100 * k
            b.kernel(at + 8, at + 28, call=(at, at + 5))

    s = simulation(steps(Build(), 500, step).trace(tmp_path))
    assert s.replay_error == 0
    assert s.measured_step_ns == 500 * US
    # kernels twice as long still fit between the launches
    assert s.predict([ScaleKernels("gemm", 2)]).step_ns == 500 * US
    # without the launches' cost, four kernels of 20 us, about 1 us apart
    freed = s.predict([LaunchesFree()]).step_ns
    assert 80 * US <= freed <= 90 * US
    assert freed == s.predict([Free("launch_bound")]).step_ns


def test_a_device_bound_run_follows_the_device(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        for k in range(4):
            b.kernel(t + 100 * k + 2, t + 100 * k + 100, call=(t + 5 * k, t + 5 * k + 2))
        b.api(t + 30, t + 402, "cudaDeviceSynchronize")

    s = simulation(steps(Build(), 410, step).trace(tmp_path))
    assert s.replay_error == 0
    assert s.predict([ScaleKernels("gemm", 0.5)]).step_ns == (410 - 4 * 49) * US
    # 1 us instead of 2 from one kernel to the next
    assert s.predict([Free("launch_bound")]).step_ns == pytest.approx(397 * US, rel=0.01)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_without_time_gains_nothing(cause: str, tmp_path: Path):
    def step(b: Build, t: float) -> None:
        b.kernel(t, t + 400, call=(t - 40, t - 35))

    b = Build()
    b.api(-50, -48, "cudaGetDevice")
    s = simulation(steps(b, 400, step).trace(tmp_path))
    predicted = s.predict([Free(cause)])
    assert predicted.step_ns == s.measured_step_ns
    assert predicted.low_ns <= predicted.step_ns <= predicted.high_ns


@pytest.mark.parametrize("every", [False, True])
def test_the_wait_that_ends_a_recording_is_no_part_of_its_steps(every: bool, tmp_path: Path):
    def step(b: Build, t: float) -> None:
        for k in range(4):
            b.kernel(t + 20 + 100 * k, t + 118 + 100 * k, call=(t + 5 * k, t + 5 * k + 3))
        if every or t == (STEPS - 1) * 420:
            b.api(t + 30, t + 419, "cudaDeviceSynchronize")

    s = simulation(steps(Build(), 420, step).trace(tmp_path))
    (subject,) = s.subjects
    assert len(subject.program.waits) == (STEPS if every else 0)
    if not every:  # the run goes on while the last kernels work
        assert s.runs[0].end_ns == round((STEPS - 1) * 420 + 30) * US


def reading(b: Build, t: float) -> None:
    """Enqueue 200 us of kernels, read a value, then launch late again."""
    for k in range(2):
        b.kernel(t + 10 + 100 * k, t + 110 + 100 * k, call=(t + 5 * k, t + 5 * k + 3))
    b.copy(t + 212, t + 213, call=(t + 20, t + 23), kind="DtoH", size=4, dst="pageable")
    b.api(t + 25, t + 225, "cudaStreamSynchronize")


def test_a_read_makes_the_host_wait(tmp_path: Path):
    s = simulation(steps(Build(), 300, reading).trace(tmp_path))
    assert s.replay_error == 0
    (subject,) = s.subjects
    assert len(subject.program.waits) == STEPS
    # 20 us sooner done, 20 us sooner back
    faster = s.predict([ScaleKernels("gemm", 0.9)])
    assert faster.step_ns == 280 * US
    # without the read only the host's 75 us after it and the kernels' 200 us are left
    freed = s.predict([Free("host_sync")])
    assert 200 * US <= freed.step_ns <= 205 * US


def test_the_begin_of_an_unmarked_step_may_lie_between_a_read_and_its_wait(tmp_path: Path):
    """Nothing marks the steps, and the copy is the last that each of them enqueues."""
    b = Build()
    for number in range(8):
        t = number * 1_000
        for k in range(9):
            b.kernel(
                t + 10 + 100 * k, t + 110 + 100 * k, call=(t + 5 * k, t + 5 * k + 3), name=f"k{k}"
            )
        b.copy(t + 912, t + 913, call=(t + 50, t + 53), kind="DtoH", size=4, dst="pageable")
        b.api(t + 55, t + 925, "cudaStreamSynchronize")
    s = simulation(b.trace(tmp_path))
    assert s.devices[0][1].steps.source == "kernel_sequence"
    # the kernels' 900 us are left, and no copy
    (freed,) = s.changed([Free("host_sync")])
    assert not len(freed.program.waits)
    assert freed.program.duration_ns.sum() == s.runs[0].steps * 900 * US
    assert s.predict([Free("host_sync")]).step_ns == pytest.approx(900 * US, rel=0.02)


def test_loops_that_read_go_with_the_reading(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        b.kernel(t + 8, t + 108, call=(t, t + 3))
        at = t + 10
        for k in range(5):
            b.kernel(at + 110, at + 112, call=(at + 80, at + 83), name="reduce")
            b.copy(at + 114, at + 115, call=(at + 90, at + 93), kind="DtoH", size=4, dst="pageable")
            b.api(at + 95, at + 125, "cudaStreamSynchronize")
            at += 125 if k else 130

    s = simulation(steps(Build(), 700, step).trace(tmp_path))
    kept, summed, gone = (
        replay([one.program for one in s.edited([Free("host_sync")], bound)])[0].step_ns
        for bound in ("high", "expected", "low")
    )
    assert gone < kept - 4 * 60 * US  # what the host did from one read to the next
    assert gone + 4 * 60 * US < summed < kept  # values are still made, and read nowhere


def test_a_blocking_copy_becomes_pinned_and_at_best_hidden(tmp_path: Path):
    size = 100 << 20

    def step(b: Build, t: float) -> None:
        b.copy(t + 10, t + 20_000, call=(t, t + 20_005), size=size, src="pageable")
        b.kernel(t + 20_020, t + 40_000, call=(t + 20_010, t + 20_015))
        b.api(t + 20_020, t + 40_010, "cudaDeviceSynchronize")

    s = simulation(steps(Build(), 40_100, step).trace(tmp_path))
    assert abs(s.replay_error) < 0.01
    predicted = s.predict([Free("blocking_copy")])
    # 100 MiB at 20 GB/s before the kernel; beside it where it has a stream of its own
    assert predicted.step_ns == pytest.approx((20_090 + 5_243) * US, rel=0.01)
    assert predicted.low_ns < 20_090 * US
    # no pinned copy shows the bandwidth, so it may be half of that; of the 15 ms that are gained,
    # 37 % of the step, a part is open, as a share of the 25 ms that remain
    apart = np.hypot(5_243, 25_333 * OF_THE_GAIN * 0.368)
    assert predicted.high_ns == pytest.approx((25_333 + apart) * US, rel=0.01)


def test_an_upload_that_blocks_nobody_runs_beside_kernels(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        b.copy(t + 10, t + 4_010, call=(t, t + 5), size=100 << 20, src="pinned")
        b.kernel(t + 4_012, t + 20_000, call=(t + 10, t + 15))
        b.api(t + 20, t + 20_010, "cudaDeviceSynchronize")

    s = simulation(steps(Build(), 20_100, step).trace(tmp_path))
    predicted = s.predict([Free("blocking_copy")])
    assert predicted.step_ns == pytest.approx(16_100 * US, rel=0.01)
    assert predicted.high_ns < 20_000 * US


def test_recorded_events_tie_streams(tmp_path: Path):
    b = Build()

    def step(b: Build, t: float) -> None:
        b.kernel(t + 10, t + 110, call=(t, t + 2))
        b.correlation += 1
        b.api(t + 3, t + 4, "cudaEventRecord", correlation=b.correlation)
        b._add("event_record", process_id=100, device=0, stream=7, event_id=5,
               correlation_id=b.correlation)  # fmt: skip
        b.correlation += 1
        b.api(t + 5, t + 6, "cudaStreamWaitEvent", correlation=b.correlation)
        b._add("sync", process_id=100, device=0, stream=9, kind="stream_wait_event", event_id=5,
               correlation_id=b.correlation, start_ns=round((t + 5) * US),
               end_ns=round((t + 6) * US))  # fmt: skip
        b.kernel(t + 113, t + 213, call=(t + 7, t + 9), stream=9, name="side")
        b.api(t + 12, t + 215, "cudaDeviceSynchronize")

    s = simulation(steps(b, 230, step).trace(tmp_path))
    (subject,) = s.subjects
    assert len(subject.program.depends) == STEPS
    assert not subject.program.inferred
    # 100 us sooner on one stream, and the other follows
    assert s.predict([ScaleKernels("gemm", 0)]).step_ns < 140 * US


def test_dependencies_are_inferred_from_times(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        b.kernel(t + 10, t + 110, call=(t, t + 2))
        b.kernel(t + 113, t + 213, call=(t + 7, t + 9), stream=9, name="side")
        b.api(t + 12, t + 215, "cudaDeviceSynchronize")

    s = simulation(steps(Build(), 230, step).trace(tmp_path))
    (subject,) = s.subjects
    assert len(subject.program.inferred) == STEPS
    predicted = s.predict([ScaleKernels("gemm", 0.5)])
    assert predicted.step_ns < s.measured_step_ns
    assert predicted.low_ns < predicted.step_ns  # it may not be one


def test_a_long_wait_for_another_stream_is_inferred_though_it_ends_a_while_later(tmp_path: Path):
    """Libraries work on streams of their own; the event that is waited for may be in no record."""

    def step(b: Build, t: float) -> None:
        b.kernel(t + 10, t + 1010, call=(t, t + 2))
        b.kernel(t + 1050, t + 1150, call=(t + 7, t + 9), stream=9, name="side")
        b.api(t + 12, t + 1155, "cudaDeviceSynchronize")

    s = simulation(steps(Build(), 1200, step).trace(tmp_path))
    assert len(s.subjects[0].program.inferred) == STEPS
    # 40 us after the end of 1 ms of work: what remains is no reason by itself
    assert s.predict([ScaleKernels("gemm", 0)]).step_ns < 300 * US


def test_operations_scaled_removed_and_fused(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        for k in range(4):
            name = "adam" if k else "gemm"
            b.kernel(t + 100 * k + 2, t + 100 * k + 100, call=(t + k, t + k + 1), name=name)
        b.api(t + 10, t + 401, "cudaDeviceSynchronize")

    trace = steps(Build(), 402, step).trace(tmp_path)
    s = simulation(trace)
    gpu = trace.frame("gpu_op", "id", "name")
    adam = tuple(gpu["id"][gpu.equals("name", "adam")].tolist())
    assert s.matched(RemoveOps(adam)) == len(adam)
    assert s.predict([RemoveOps(adam)]).step_ns == pytest.approx(102 * US, rel=0.03)
    # the device sets the pace: nothing is saved by what the host does not do
    assert s.predict([RemoveOps(adam, inside=True)]).step_ns == pytest.approx(102 * US, rel=0.03)
    assert s.predict([FuseOps(adam, 50 * US)]).step_ns == pytest.approx(154 * US, rel=0.03)
    worked = s.predict([FuseOps(adam, 50 * US, host_ns=200 * US)]).step_ns
    assert worked == pytest.approx(253 * US, rel=0.03)  # it begins after launching the first kernel
    assert s.predict([ScaleOps(adam, (0.5,) * len(adam))]).step_ns == pytest.approx(
        255 * US, rel=0.03
    )
    assert s.matched(ScaleOps((10**9,), (0.5,))) == 0
    # the third of the three takes half as long, in every step; their order is of no account
    each = {op: (1.0, 1.0, 0.5)[i % 3] for i, op in enumerate(adam)}
    back = tuple(reversed(adam))
    uneven = s.predict([ScaleOps(back, tuple(each[op] for op in back))]).step_ns
    assert uneven == pytest.approx(353 * US, rel=0.03)
    with pytest.raises(UsageError, match="need a factor each"):
        s.predict([ScaleOps(adam, (0.5,))])
    together = s.predict([FuseOps(adam, 50 * US), ScaleKernels("gemm", 0.5)])
    assert together.step_ns == pytest.approx(105 * US, rel=0.03)


def test_the_wait_for_a_small_copy_goes_with_it(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        b.kernel(t + 5, t + 205, call=(t, t + 5), name="gemm")
        b.copy(t + 205, t + 208, call=(t + 10, t + 15), kind="DtoH", size=256, src="device",
               dst="pinned", call_name="cudaMemcpyAsync")  # fmt: skip
        b.api(t + 16, t + 210, "cudaStreamSynchronize")

    trace = steps(Build(), 310, step).trace(tmp_path)
    s = simulation(trace)
    ops = trace.frame("gpu_op", "id", "kind")
    copies = tuple(ops["id"][ops.equals("kind", "memcpy")].tolist())
    assert s.predict([]).step_ns == pytest.approx(310 * US, rel=0.01)
    assert s.predict([RemoveOps(copies)]).step_ns == pytest.approx(202 * US, rel=0.02)


def test_what_an_operator_does_before_a_launch_stays_with_it(tmp_path: Path):
    """Two kernels a step, 40 us of host work before each, whose calls take 10 us."""

    def step(b: Build, t: float) -> None:
        for k, name in enumerate(("transpose", "convolution")):
            at = t + 50 * k + 40
            b.kernel(at + 10, at + 15, call=(at, at + 10), name=name)

    trace = steps(Build(), 100, step).trace(tmp_path)
    s = simulation(trace)
    gpu = trace.frame("gpu_op", "id", "name")
    gone = tuple(gpu["id"][gpu.equals("name", "transpose")].tolist())
    assert s.predict([RemoveOps(gone)]).step_ns == pytest.approx(50 * US, rel=0.05)
    assert s.predict([RemoveOps(gone, inside=True)]).step_ns == pytest.approx(90 * US, rel=0.05)


def rank_trace(folder: Path, compute: float, sleep: float, wait: float) -> Trace:
    """One of two ranks: input, compute, then a collective that waits for the other rank."""

    def step(b: Build, t: float) -> None:
        b.range(t, t + sleep, "dataload")
        at = t + sleep
        b.kernel(at + 8, at + 8 + compute, call=(at, at + 3))
        end = at + 8 + compute + 2
        b.kernel(end, end + wait + 50, call=(at + 5, at + 8), name="ncclDevKernel", stream=7)
        b.api(at + 10, end + wait + 55, "cudaDeviceSynchronize")

    folder.mkdir()
    return steps(Build(), sleep + compute + wait + 100, step).trace(folder)


@pytest.fixture
def two_ranks(tmp_path: Path) -> Simulation:
    slow = rank_trace(tmp_path / "slow", 400, 300, 0)
    return job_of(slow, rank_trace(tmp_path / "quick", 400, 100, 200))


def job_of(*traces: Trace, size: int = -1) -> Simulation:
    """The ranks of a job, whose collectives match in their order, each of so many bytes."""
    devices, readers, matched = [], {}, []
    for rank, trace in enumerate(traces):
        (e,) = explain(trace.frame, trace.meta)
        devices.append((rank, e))
        readers[rank] = trace.frame
        rows = np.flatnonzero(e.gpu.is_communication)
        sizes = np.full(len(rows), size)
        matched.append(
            MatchedOps(rank, e.gpu.process_id, 0, rows, np.arange(len(rows)), bytes=sizes)
        )
    return Simulation(devices, readers.__getitem__, MatchedJob(matched))


def test_a_collective_passes_the_straggler_on(two_ranks: Simulation):
    assert abs(two_ranks.replay_error) < 0.01
    assert two_ranks.measured_step_ns == 800 * US
    for change in (Free("input_starvation", (0,)), RankLike(0, 1)):
        predicted = two_ranks.predict([change]).step_ns
        assert predicted == pytest.approx(600 * US, rel=0.02)
    # the other rank's input hides behind the straggler's
    assert two_ranks.predict([Free("input_starvation", (1,))]).step_ns == 800 * US
    assert two_ranks.predict([ScaleKernels("nccl", 0)]).step_ns == pytest.approx(750 * US, rel=0.01)


@pytest.mark.parametrize(("size", "goes"), [(4, True), (100 << 20, False), (-1, False)])
def test_a_value_is_summed_over_the_ranks_only_to_be_read(tmp_path: Path, size: int, goes: bool):
    """A loss of 4 bytes is; the last of the gradients before the read is not."""

    def step(b: Build, t: float) -> None:
        b.kernel(t + 8, t + 208, call=(t, t + 3))
        b.kernel(t + 210, t + 220, call=(t + 5, t + 8), name="ncclDevKernel", stream=7)
        b.copy(t + 222, t + 223, call=(t + 10, t + 13), kind="DtoH", size=4, dst="pageable")
        b.api(t + 15, t + 235, "cudaStreamSynchronize")

    traces = []
    for rank in range(2):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        traces.append(steps(Build(), 300, step).trace(folder))
    (one, _) = job_of(*traces, size=size).changed([Free("host_sync")])
    assert not len(one.program.waits)
    assert (one.program.duration_ns[one.program.communication].sum() == 0) == goes


def test_kernels_beside_a_collective_that_waits_take_what_they_take_beside_none(tmp_path: Path):
    """The waiting rank's kernel takes 135 us beside a collective, that of the late rank 100."""

    def rank(name: str, sleep: float, compute: float) -> Trace:
        def step(b: Build, t: float) -> None:
            b.range(t, t + sleep, "dataload")
            b.kernel(t + sleep + 8, t + sleep + 8 + compute, call=(t + sleep, t + sleep + 3))
            begin = 410 if sleep > 100 else sleep + 8
            call = (t + begin - 8, t + begin - 5)
            b.kernel(t + begin, t + 450, call=call, name="ncclDevKernel", stream=8)
            b.api(t + begin + 2, t + 455, "cudaDeviceSynchronize")

        folder = tmp_path / name
        folder.mkdir()
        return steps(Build(), 500, step).trace(folder)

    simulation = job_of(rank("late", 300, 100), rank("early", 10, 135))
    for n, subject in enumerate(unhindered(simulation.subjects)):
        gemm = subject.of_ops(subject.gpu.is_compute)
        assert set(subject.program.duration_ns[gemm].tolist()) == {100 * US}
        assert (simulation.subjects[n].program.duration_ns[gemm] == (100, 135)[n] * US).all()


def test_compiled_code_costs_the_host_a_call_for_each_part_and_a_model_at_most(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        for n in range(20):
            at = t + 50 * n
            b.kernel(at + 8, at + 12, call=(at, at + 3))

    s = simulation(steps(Build(), 1_100, step).trace(tmp_path))
    ops = s.subjects[0].gpu.ops["id"].tolist()
    for few, a_step in ((2, 2 * COMPILED_CALL_NS["expected"]), (20, COMPILED_WHOLE_NS["expected"])):
        chosen = tuple(op for n, op in enumerate(ops) if n % 20 < few)
        (after,) = s.changed([CallCompiled(chosen)])
        more = int(after.program.work_ns.sum() - s.subjects[0].program.work_ns.sum())
        assert more == a_step * s.unchanged[0].steps
    (loaded,) = s.changed([LoadedBeside()])
    ratio = loaded.program.call_ns.sum() / s.subjects[0].program.call_ns.sum()
    assert ratio == pytest.approx(LOADED["expected"], rel=0.01)


def test_communication_overlaps_as_far_as_the_next_step(two_ranks: Simulation):
    predicted = two_ranks.predict([OverlapCommunication()])
    assert predicted.low_ns <= predicted.step_ns <= predicted.high_ns
    assert predicted.high_ns >= 799 * US


def test_impossible_changes_are_refused(two_ranks: Simulation):
    for change in (
        Free("nonsense"),
        ScaleKernels("(", 0.5),
        ScaleKernels("gemm", -1),
        RankLike(7),
        RankLike(0, 7),
    ):
        with pytest.raises(UsageError):
            two_ranks.predict([change])


def test_freeing_more_never_slows(tmp_path: Path):
    s = simulation(steps(Build(), 300, reading).trace(tmp_path))
    freed: list[Free] = []
    last = s.predict([]).step_ns
    for cause in CAUSES:
        freed.append(Free(cause))
        now = s.predict(freed).step_ns
        assert now <= last
        last = now


def test_operations_without_calls_still_follow_one_another(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        for k in range(4):
            b.kernel(t + 100 * k + 2, t + 100 * k + 100)

    b = steps(Build(), 400, step)
    b.api(0, 1, "cudaGetDevice")
    s = simulation(b.trace(tmp_path))
    assert abs(s.replay_error) < 0.01
    assert s.predict([ScaleKernels("gemm", 0.5)]).step_ns < 0.6 * s.measured_step_ns


def test_a_single_step_is_replayed_too(tmp_path: Path):
    b = Build()
    b.kernel(10, 20, call=(0, 5))
    s = simulation(b.trace(tmp_path))
    assert s.predict([]).step_ns == s.measured_step_ns
    assert s.predict([LaunchesFree()]).step_ns <= s.measured_step_ns


def test_an_allocation_that_waits_for_the_device(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        b.kernel(t + 5, t + 205, call=(t, t + 3))
        b.api(t + 10, t + 215, "cudaFree")
        b.kernel(t + 225, t + 325, call=(t + 220, t + 223))

    s = simulation(steps(Build(), 230, step).trace(tmp_path))
    (subject,) = s.subjects
    assert len(subject.program.waits) == s.runs[0].steps
    freed = s.predict([Free("allocator_churn")])
    assert freed.step_ns < s.measured_step_ns
    assert s.predict([ScaleKernels("gemm", 0.5)]).step_ns < s.measured_step_ns - 90 * US


def test_a_full_queue_is_the_devices_doing(tmp_path: Path):
    b = Build()
    depth, a_step, began = 1000, 100, 100_000.0
    for k in range(2 * depth):
        begin = began + 100 * k
        # each launch waits until the operation ``depth`` before it has started
        called = 2.0 * k if k < depth else began + 100 * (k - depth - 1) + 1
        done = called + 1 if k < depth else began + 100 * (k - depth)
        b.kernel(begin, begin + 98, call=(called, done))
    for number in range(depth // a_step):
        host = began + 100 * a_step * number - 99
        b.range(host, host + 100 * a_step, f"step {number}")
    s = simulation(b.trace(tmp_path))
    halved = s.predict([ScaleKernels("gemm", 0.5)])
    # launches that waited for the device wait half as long
    assert halved.step_ns == pytest.approx(0.51 * s.measured_step_ns, rel=0.1)


def test_input_may_come_at_its_own_pace(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        b.range(t, t + 100, "dataload")
        b.kernel(t + 110, t + 310, call=(t + 102, t + 105))
        b.api(t + 107, t + 315, "cudaDeviceSynchronize")

    s = simulation(steps(Build(), 320, step).trace(tmp_path))
    halved = s.predict([ScaleKernels("gemm", 0.5)])
    # Nsight Systems adds some 1.5 us to the launch, on which the kernel waits, before and after
    assert halved.unrecorded == (318_500, 218_500)
    assert halved.step_ns == round(320 * US * 218.5 / 318.5)
    assert halved.high_ns == s.measured_step_ns
    ready = s.predict([ScaleKernels("gemm", 0.5), Free("input_starvation")])
    assert ready.unrecorded == (318_500, 118_500)
    # another run may take longer over the input that is gone, and half of the gain is open
    assert ready.step_ns < ready.high_ns < 1.5 * ready.step_ns


def test_several_devices_of_one_process(tmp_path: Path):
    def step(b: Build, t: float) -> None:
        b.kernel(t + 10, t + 110, call=(t, t + 3))
        b.kernel(t + 15, t + 215, call=(t + 5, t + 8), device=1)
        b.api(t + 20, t + 220, "cudaDeviceSynchronize")

    trace = steps(Build(), 230, step).trace(tmp_path)
    devices = [(0, e) for e in explain(trace.frame, trace.meta)]
    s = Simulation(devices, {0: trace.frame})
    assert len(s.subjects) == 2
    assert abs(s.replay_error) < 0.01
    assert s.predict([ScaleKernels("gemm", 0.5)]).step_ns < s.measured_step_ns


def test_only_the_nearest_steps_of_a_long_capture_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def step(b: Build, t: float) -> None:
        for k in range(4):
            at = t + 100 + 100 * k
            b.kernel(at + 8, at + 28, call=(at, at + 5))

    trace = steps(Build(), 500, step).trace(tmp_path)
    monkeypatch.setattr("stepscope.simulation.run.LARGEST_RUN", 14)
    s = simulation(trace)
    (run,) = s.runs
    assert run.steps == 3
    assert f"steps {run.first} to {run.last} were replayed" in s.message()
    assert s.predict([]).step_ns == s.measured_step_ns


@pytest.mark.parametrize("pause", [0, 8_000])
def test_the_last_step_is_replayed_where_it_is_unlike_the_others(pause: int, tmp_path: Path):
    """Nothing marks the steps, and so nothing ends the last one."""
    b = Build()
    for number in range(8):
        t = number * 920
        late = pause if number == 7 else 0
        for k in range(9):
            # the first kernel comes after 20 us of input; the last step waits for its second, too
            at = t + 20 + 100 * k + (late if k else 0)
            b.kernel(at, at + 100, call=(at - 5, at - 2), name=f"k{k}")
        if late:
            b.range(t + 125, t + 112 + late, "dataload")
    s = simulation(b.trace(tmp_path))
    assert s.devices[0][1].steps.source == "kernel_sequence"
    (run,) = s.runs
    assert run.last == (7 if pause else 6)
    # what is saved in the kernels is no part of the pause
    faster = s.predict([ScaleKernels("k3", 0.5)])
    assert s.measured_step_ns - faster.step_ns <= 50 * US
    if pause:
        assert s.predict([Free("input_starvation")]).step_ns == pytest.approx(920 * US, rel=0.03)


def test_predictions_side_by_side_are_those_made_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trace = steps(Build(), 300, reading).trace(tmp_path)
    several: list[list[Change]] = [
        [Free("host_sync")],
        [],
        [ScaleKernels("gemm", 0.5)],
        [Free("host_sync"), ScaleKernels("gemm", 0.5)],
        [Free("host_sync")],
    ]
    alone = [simulation(trace).predict(changes) for changes in several]
    monkeypatch.setattr("stepscope.simulation.model._WORTH_THREADS", 1)
    monkeypatch.setattr("stepscope.simulation.model.cores", lambda: 3)
    s = simulation(trace)
    assert s.predict_many(several) == alone
    assert s.predict(several[2]) is s.predict(several[2])
    with pytest.raises(UsageError, match="no cause"):
        s.predict_many([[Free("gremlins")], [Free("host_sync")]])


def test_what_the_device_did_before_the_capture_is_no_delay(tmp_path: Path):
    """The first operation starts late, behind what was enqueued before the capture began."""

    def step(b: Build, t: float) -> None:
        late = 200 if t < 400 else 0
        b.kernel(t + 8 + late, t + 108 + late, call=(t, t + 3))
        b.api(t + 20, t + 120 + late, "cudaDeviceSynchronize")

    s = simulation(steps(Build(), 400, step).trace(tmp_path))
    assert s.replay_error == 0
    assert not s.subjects[0].program.delay_ns.any()
    assert s.settled_error < 0


@pytest.mark.parametrize(("late", "pause"), [(400, 392), (60, 0)])
def test_a_device_that_another_process_holds_begins_late_by_itself(
    late: float, pause: float, tmp_path: Path
):
    """Of five launches to an idle device one begins after 8 us, the others later."""

    def step(b: Build, t: float) -> None:
        for k in range(5):
            at = t + 100 + 1_000 * k
            begin = at + (late if k else 8)
            b.kernel(begin, begin + 20, call=(at, at + 5))

    s = simulation(steps(Build(), 6_000, step).trace(tmp_path))
    program = s.subjects[0].program
    assert np.median(program.delay_ns[program.op >= 0]) == pause * US
    assert abs(s.replay_error) < 0.01
