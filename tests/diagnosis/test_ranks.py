"""Causes that need several ranks, on hand-made jobs whose truth is known to the microsecond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.support.build import AUTOGRAD, MAIN, Build
from tests.support.ranks import ALL_REDUCE

from stepscope.api import Job
from stepscope.diagnosis.result import Diagnosis, Finding
from stepscope.diagnosis.uncovered import uncovered_communication
from stepscope.kernels.accumulation import behind_backward_ns
from stepscope.trace.store import read_meta, write_meta

STEPS = 10
KERNELS = 8
OPTIMIZER = 400.0  # us
FUSED = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
    "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 2>()"
)
MS = 1_000_000

Times = Callable[[int, int], float]
"""(rank, step) -> us."""


def job_of(
    folder: Path,
    ranks: Sequence[int],
    *,
    of: int | None = None,
    load: Times = lambda rank, step: 100.0,
    held: Times = lambda rank, step: 0.0,
    work: Times = lambda rank, step: 8_000.0,
    grid: Times = lambda rank, step: 64.0,
    transfer: float = 200.0,
    buckets: int = 1,
    name: str = ALL_REDUCE,
    gradients: int = 0,
    attention: Times = lambda rank, step: 0.0,
) -> Job:
    """A data-parallel job: load, launch, compute, all-reduce, optimizer; the host then waits.

    Args:
        folder: where the traces are written.
        ranks: the ranks that are captured.
        of: ranks that take part; those captured by default.
        load: how long each rank gets its batch.
        held: how long its work then stays enqueued before the device begins it.
        work: how long its kernels run.
        grid: how many blocks they are launched with.
        transfer: how long data moves once the last rank has joined, a bucket.
        buckets: all-reduces a step. All but the last run beside the compute.
        name: the kernel of the last of them.
        gradients: how many of the eight kernels, the first ones, a backward pass launches.
        attention: how long attention runs behind them, whose launch does not tell its work.
    """
    everyone = range(of if of is not None else len(ranks))
    builds = {rank: Build() for rank in ranks}
    begin = 0.0
    for step in range(STEPS):
        ready = {}
        for rank in everyone:
            started = begin + load(rank, step) + 40 + held(rank, step)
            ready[rank] = started + work(rank, step) + attention(rank, step)
        last = max(ready.values())
        end = last + transfer
        after = end + 5 + OPTIMIZER + 20
        for rank, build in builds.items():
            loaded = begin + load(rank, step)
            build.range(begin, after - 1, f"step {step}")
            build.range(begin, loaded, "dataload")
            at, call = loaded + 40 + held(rank, step), loaded
            length = work(rank, step) / KERNELS

            def launch(call: float) -> tuple[float, float]:
                return call, call + 2

            for k in range(KERNELS):
                build.kernel(at + k * length, at + (k + 1) * length - 1, call=launch(call),
                             grid_x=round(grid(rank, step)), name=f"gemm{k % 2}",
                             thread=AUTOGRAD if k < gradients else MAIN)  # fmt: skip
                call += 3
            if attention(rank, step):
                build.kernel(at + work(rank, step), ready[rank], call=launch(call), grid_x=132,
                             name="flash_fwd_kernel")  # fmt: skip
                call += 3
            for bucket in range(1, buckets):
                place = bucket / buckets
                started = max(b + place * (r - b) for b, r in
                              ((begin + load(x, step), ready[x]) for x in everyone))  # fmt: skip
                own = loaded + place * (ready[rank] - loaded)
                build.kernel(own, started + transfer, call=launch(call), name=ALL_REDUCE,
                             stream=20, grid_x=24)  # fmt: skip
                call += 3
            build.kernel(ready[rank], end, call=launch(call), name=name, stream=20, grid_x=24)
            call += 3
            build.kernel(end + 5, end + 5 + OPTIMIZER, call=launch(call), name="adam", grid_x=64)
            build.api(call + 3, after - 2, "cudaDeviceSynchronize")
        begin = after
    for rank, build in builds.items():
        place = folder / f"rank{rank}"
        place.mkdir()
        build.trace(place, rank=rank, rank_source="test", origin_epoch_ns=10**18,
                    world_size=len(everyone))  # fmt: skip
    return Job([folder / f"rank{rank}" / "built.stepscope" for rank in ranks])


def only(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    assert diagnosis.verdict == finding.cause
    return finding


def agrees(job: Job, diagnosis: Diagnosis) -> None:
    """Every figure is what its statement gives."""
    verification = job.verify(msgspec.json.encode(diagnosis))
    assert verification.verified, verification.differences
    assert verification.checked > 10


def test_a_balanced_job_has_no_finding(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(4))
    diagnosis = job.diagnose()
    assert diagnosis.verdict == "gpu_bound_healthy"


def test_a_late_loader_is_a_straggler(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(4), load=lambda r, i: 5_100 if r == 2 else 100)
    diagnosis = job.diagnose()
    finding = only(diagnosis)
    assert (finding.cause, finding.root_cause, finding.ranks) == (
        "straggler",
        "input_starvation",
        [2],
    )
    assert finding.where.range == "dataload"
    assert finding.time_ns_per_step == pytest.approx(5 * MS, rel=0.01)
    assert finding.predicted_step_ns == pytest.approx(8.765 * MS, rel=0.02)
    assert "rank 2" in finding.message
    agrees(job, diagnosis)


def test_a_rank_whose_gpu_does_not_begin_what_is_enqueued_is_no_straggler(tmp_path: Path) -> None:
    """Rank 1 has launched in time, and its GPU begins 8 ms later: that is nothing it does.

    Not in the first step: a capture in which each launch takes so long has other clocks.
    """
    held = {(1, step): 8_000.0 for step in range(1, STEPS)}
    job = job_of(tmp_path, range(4), held=lambda rank, step: held.get((rank, step), 0.0))
    diagnosis = job.diagnose()
    agrees(job, diagnosis)
    assert only(diagnosis).cause == "insufficient_data"
    assert "although work is enqueued" in only(diagnosis).message
    steps = diagnosis.accounting[1].idle_by_cause_ns["unexplained"] / (7_950e3)
    assert 8.9 < steps < 9.1


def test_what_all_ranks_suffer_from_is_no_straggler(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(4), load=lambda r, i: 5_300 if r == 2 else 5_100)
    finding = only(job.diagnose())
    assert finding.cause == "input_starvation"
    assert finding.ranks == [0, 1, 2, 3]


def test_two_late_ranks_of_four_are_both_named(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(4), load=lambda r, i: 4_100 if r in (1, 3) else 100)
    finding = only(job.diagnose())
    assert (finding.cause, finding.ranks) == ("straggler", [1, 3])


def test_more_work_is_an_imbalance(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        range(4),
        work=lambda r, i: 14_000 if r == 1 else 8_000,
        grid=lambda r, i: 112 if r == 1 else 64,
    )
    diagnosis = job.diagnose()
    finding = only(diagnosis)
    assert (finding.cause, finding.ranks) == ("load_imbalance", [1])
    assert finding.time_ns_per_step == pytest.approx(6 * MS, rel=0.01)
    assert "data is uneven" not in finding.message
    # eight kernels of 112 blocks and the optimizer of 64, against eight of 64 and the same
    assert "1.67 times the threads" in finding.message
    agrees(job, diagnosis)


@pytest.mark.parametrize(
    ("grid", "shared_out"),
    [
        pytest.param(112, False, id="seven quarters of the samples"),
        pytest.param(147, True, id="a part of a graph that is larger"),
        pytest.param(128, False, id="twice the samples"),
    ],
)
def test_a_larger_share_of_a_whole_is_shared_out(
    tmp_path: Path, grid: int, shared_out: bool
) -> None:
    """What one part has more of the others lack; a batch has as many samples as was written."""
    job = job_of(
        tmp_path,
        range(4),
        work=lambda r, i: 14_000 if r == 1 else 8_000,
        grid=lambda r, i: grid if r == 1 else 64,
    )
    diagnosis = job.diagnose()
    finding = only(diagnosis)
    assert (finding.cause, finding.ranks) == ("load_imbalance", [1])
    assert ("a larger share of a graph" in finding.message) == shared_out
    gone = 6 * 3 / 4 if shared_out else 6
    assert finding.time_ns_per_step == pytest.approx(gone * MS, rel=0.01)
    step_ns = finding.value("step_ns") or 0
    assert finding.predicted_step_ns == pytest.approx(step_ns - gone * MS, rel=0.01)
    agrees(job, diagnosis)


@pytest.mark.parametrize(("gradients", "shared_out"), [(1, True), (4, False)])
def test_more_work_behind_the_backward_pass_is_dealt_out(
    tmp_path: Path, gradients: int, shared_out: bool
) -> None:
    """What one rank has less of an update, others have more; half of a surplus is no update's."""
    job = job_of(
        tmp_path,
        range(4),
        work=lambda r, i: 14_000 if r == 1 else 8_000,
        grid=lambda r, i: 112 if r == 1 else 64,
        gradients=gradients,
    )
    diagnosis = job.diagnose()
    finding = only(diagnosis)
    assert (finding.cause, finding.ranks) == ("load_imbalance", [1])
    assert ("its share of the update is larger" in finding.message) == shared_out
    gone = 6 * 3 / 4 if shared_out else 6
    assert finding.time_ns_per_step == pytest.approx(gone * MS, rel=0.01)
    step_ns = finding.value("step_ns") or 0
    assert finding.predicted_step_ns == pytest.approx(step_ns - gone * MS, rel=0.01)
    kernels = [case.explanation.kernels for case in job.explained.cases]
    behind = [behind_backward_ns(each) / MS for each in kernels]
    left = (KERNELS - gradients) / KERNELS
    expected = [left * (14 if rank == 1 else 8) + OPTIMIZER / 1000 for rank in range(4)]
    assert behind == pytest.approx(expected, rel=0.01)
    agrees(job, diagnosis)


def test_the_same_work_on_a_slow_device_is_a_straggler(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(4), work=lambda r, i: 11_000 if r == 3 else 8_000)
    finding = only(job.diagnose())
    assert (finding.cause, finding.root_cause, finding.ranks) == ("straggler", None, [3])
    assert "the same kernels take longer" in finding.message
    assert any("nvidia-smi" in advice for advice in finding.recommendations)


def test_attention_that_takes_longer_where_gemms_do_not_is_more_work(tmp_path: Path) -> None:
    """Packs of as many tokens, of which one holds longer sequences: no GPU is slow."""
    job = job_of(tmp_path, range(2), attention=lambda r, i: 9_000 if r == 1 else 3_000)
    diagnosis = job.diagnose()
    finding = only(diagnosis)
    assert (finding.cause, finding.ranks) == ("load_imbalance", [1])
    assert "its attention kernels take longer" in finding.message
    assert not any("nvidia-smi" in advice for advice in finding.recommendations)
    # shared out, both compute 6 ms of it
    assert finding.time_ns_per_step == pytest.approx(3 * MS, rel=0.01)
    agrees(job, diagnosis)


def test_attention_and_gemms_that_take_longer_are_a_slow_device(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        range(2),
        work=lambda r, i: 12_000 if r == 1 else 8_000,
        attention=lambda r, i: 4_500 if r == 1 else 3_000,
    )
    assert only(job.diagnose()).cause == "straggler"


@pytest.mark.parametrize(
    ("kernel", "said", "advice"),
    [
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "no sum of gradients but a broadcast", "broadcast_buffers=False"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "no sum of gradients but an all-gather", "gather less"),
    ],
)  # fmt: skip
def test_what_a_data_parallel_step_can_do_without(
    tmp_path: Path, kernel: str, said: str, advice: str
) -> None:
    """Gradients are summed beside the compute; what comes behind is not sent any more."""
    job = job_of(tmp_path, range(2), transfer=1_000, buckets=4, name=kernel)
    diagnosis = job.diagnose()
    finding = only(diagnosis)
    assert finding.cause == "exposed_communication"
    assert said in finding.message
    assert advice in finding.recommendations[0]
    step = finding.value("step_ns") or 0
    assert finding.predicted_step_ns == pytest.approx(step - MS, rel=0.01)
    agrees(job, diagnosis)


def test_ranks_that_take_turns_with_more_work(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        range(3),
        work=lambda r, i: 12_000 if i % 3 == r else 8_000,
        grid=lambda r, i: 96 if i % 3 == r else 64,
    )
    diagnosis = job.diagnose()
    finding = only(diagnosis)
    assert (finding.cause, finding.ranks) == ("load_imbalance", [0, 1, 2])
    assert "from step to step" in finding.message
    agrees(job, diagnosis)


def test_communication_behind_the_compute_is_exposed(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(2), transfer=2_000)
    diagnosis = job.diagnose()
    finding = only(diagnosis)
    assert finding.cause == "exposed_communication"
    value = {e.figure: e.value for e in finding.evidence}
    assert value["observed_ns_per_step"] == pytest.approx(2 * MS, rel=0.01)
    # little may run beside it, and that is what it costs
    assert finding.time_ns_per_step == value["step_ns"] - finding.predicted_step_ns
    assert finding.time_ns_per_step < MS
    agrees(job, diagnosis)


def test_communication_beside_the_compute_is_not(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(2), transfer=200, buckets=8)
    assert job.diagnose().verdict == "gpu_bound_healthy"


def test_waiting_for_a_late_rank_is_not_exposed_communication(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(2), load=lambda r, i: 8_100 if r == 1 else 100)
    diagnosis = job.diagnose()
    assert [finding.cause for finding in diagnosis.findings] == ["straggler"]
    assert any(
        "waiting inside collectives for a slower rank" in warning for warning in diagnosis.warnings
    )


def test_the_late_rank_is_missing(tmp_path: Path) -> None:
    job = job_of(tmp_path, [0, 1, 3], of=4, load=lambda r, i: 9_100 if r == 2 and i % 2 else 100)
    diagnosis = job.diagnose()
    assert diagnosis.verdict == "insufficient_data"
    assert "rank that is not there" in diagnosis.findings[0].message
    assert any("rank 2 is not there" in warning for warning in diagnosis.warnings)


def test_another_rank_is_missing(tmp_path: Path) -> None:
    job = job_of(tmp_path, [0, 1, 3], of=4, load=lambda r, i: 5_100 if r == 3 else 100)
    finding = only(job.diagnose())
    assert (finding.cause, finding.ranks) == ("straggler", [3])


def test_one_rank_alone_cannot_tell(tmp_path: Path) -> None:
    job = job_of(tmp_path, [0], of=4, load=lambda r, i: 9_100 if r == 2 else 100)
    diagnosis = job.diagnose()
    assert diagnosis.verdict == "insufficient_data"
    assert "one rank" in diagnosis.findings[0].message


def test_one_rank_alone_says_what_its_own_gpu_waits_for(tmp_path: Path) -> None:
    """It idles for 8 ms of each step; the rank that is missing takes 10 ms more."""
    job = job_of(tmp_path, [0], of=4, load=lambda r, i: 18_000 if r == 2 else 8_000)
    message = job.diagnose().findings[0].message
    assert "one rank" in message
    assert "more of the step its own GPU idles, because of input starvation" in message


def test_one_rank_alone_with_a_cause_of_its_own(tmp_path: Path) -> None:
    job = job_of(tmp_path, [2], of=4, load=lambda r, i: 9_100 if r == 2 else 100)
    assert job.diagnose().verdict == "input_starvation"


def test_captures_of_different_runs_are_not_taken_for_one_job(tmp_path: Path) -> None:
    """Both halves wait a lot, but at other times: nothing matches and nobody is blamed."""
    for name, seed in (("a", 0), ("b", 1)):
        folder = tmp_path / name
        folder.mkdir()

        def late(rank: int, step: int, seed: int = seed) -> float:
            return 100 + (rank == 1) * (9_000 + 977 * ((step * (3 + seed) + seed) % 7))

        load = late if seed == 0 else lambda rank, step: 100.0 + 5_003 * (rank == 0) * (step % 3)
        job_of(folder, [seed], of=2, load=load, transfer=150 + 4_000 * seed)
    paths = [tmp_path / "a" / "rank0", tmp_path / "b" / "rank1"]
    for number, path in enumerate(paths):
        meta = read_meta(path / "built.stepscope")
        assert meta.origin_epoch_ns is not None
        meta.origin_epoch_ns += number * 3_600 * 10**9
        write_meta(path / "built.stepscope", meta)
    diagnosis = Job([path / "built.stepscope" for path in paths]).diagnose()
    assert diagnosis.verdict == "insufficient_data"
    assert "different runs" in diagnosis.findings[0].message
    assert any("no counterpart" in warning for warning in diagnosis.warnings)


def test_parts_sum_to_the_step_on_every_rank(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(3), load=lambda r, i: 100 + 700 * ((r + i) % 3), buckets=3)
    wrong = job.query(
        "SELECT count(*) FROM (SELECT rank, step, sum(time_ns) AS total FROM rank_time "
        "WHERE part NOT IN ('alone', 'blocking', 'bubble') GROUP BY rank, step) "
        "JOIN (SELECT rank AS r, step AS s, min(start_ns) AS begin FROM rank_time GROUP BY ALL) "
        "ON r = rank AND s = step JOIN (SELECT rank AS q, step - 1 AS t, min(start_ns) AS stop "
        "FROM rank_time GROUP BY ALL) ON q = rank AND t = step WHERE total <> stop - begin"
    )
    assert wrong.column(0)[0].as_py() == 0
    assert job.query("SELECT count(*) FROM rank_time").column(0)[0].as_py() > 0


def test_the_communication_view(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(2), load=lambda r, i: 1_100 if r == 1 else 100, transfer=300)
    found = job.communication
    (row,) = found.operations
    assert (row.kind, row.group, row.count, found.steps) == ("all_reduce", "0,1", STEPS, STEPS)
    assert row.message_bytes is None
    assert row.bus_bandwidth is None
    assert row.transfer_ns == STEPS * 300_000
    assert row.waiting_ns == STEPS * 1_000_000 // 2  # a mean over the ranks: one of them waits
    first, second = found.arrivals
    assert (first.last, second.last) == (0, STEPS)
    assert (first.lateness_ns, second.lateness_ns) == (0, MS)
    assert first.exposed_waiting_ns == STEPS * MS
    assert any("message sizes" in warning for warning in found.warnings)


def test_ranks_whose_collectives_do_not_match_are_compared_step_by_step(tmp_path: Path) -> None:
    """Two GPUs of one process: one polls in pieces of its own where the other has one kernel."""
    build = Build()
    begin, called = 100.0, 0.0
    for step in range(STEPS):
        called = max(called + 3, begin - 80)
        for device, work, blocks in ((0, 6_000.0, 64), (1, 10_000.0, 112)):
            for k in range(KERNELS):
                at = begin + k * work / KERNELS
                build.kernel(at, at + work / KERNELS - 1, call=(called, called + 2), device=device,
                             name=f"gemm{k % 2}", grid_x=blocks)  # fmt: skip
                called += 3
        # ... whose ends are at places of their own in every step
        pieces = 3 + step % 4
        for k in range(pieces):
            at = begin + 6_000 + k * 4_400 / pieces
            build.kernel(at, at + 4_400 / pieces - 20 - 37 * ((step * k) % 5),
                         call=(called, called + 2), name="multimem_all_gather_kernel",
                         stream=20, grid_x=8)  # fmt: skip
            called += 3
        build.kernel(begin + 10_000, begin + 10_300 + 13 * (step % 3), device=1,
                     call=(called, called + 2), name="two_shot_all_reduce_kernel", stream=20,
                     grid_x=8)  # fmt: skip
        build.api(called + 3, begin + 10_400, "cudaDeviceSynchronize")
        build.range(begin - 90, begin + 10_409, f"step {step}")
        begin += 10_500
    build.trace(tmp_path, rank=0, rank_source="test", origin_epoch_ns=10**18, world_size=1)
    job = Job([tmp_path / "built.stepscope"])
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert finding.cause == "load_imbalance"
    assert "GPU 1 of rank 0" in finding.message
    assert any("step by step" in warning for warning in diagnosis.warnings)
    agrees(job, diagnosis)
    rows = job.query(
        "SELECT device, step, sum(time_ns) AS ns FROM rank_time "
        "WHERE part NOT IN ('alone', 'blocking', 'bubble') GROUP BY ALL"
    ).to_pylist()
    lengths = job.query("SELECT device, step, end_ns - start_ns AS ns FROM step").to_pylist()
    assert {row["ns"] for row in rows} <= {row["ns"] for row in lengths}


def test_exposed_communication_that_nothing_names_is_not_healthy(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(2), transfer=2_000)
    cases = job.explained.cases
    uncovered = uncovered_communication(cases, [])
    assert uncovered is not None
    # 2 ms of 100 us loading, 40 us launch, 8 ms, 2 ms, 5 us, 0.4 ms and 20 us
    assert uncovered.share == pytest.approx(2_000 / 10_565, rel=0.02)
    assert uncovered_communication(cases, ["input_starvation"]) is not None
    assert "stepscope comm" in uncovered.advice  # all ranks are there
    (tmp_path / "one").mkdir()
    alone = uncovered_communication(
        job_of(tmp_path / "one", [0], of=2, transfer=2_000).explained.cases, []
    )
    assert alone is not None
    assert "captures of all ranks" in alone.advice
    assert uncovered_communication(cases, ["exposed_communication"]) is None


def test_covered_communication_is_healthy(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(2), transfer=200, buckets=8)
    assert uncovered_communication(job.explained.cases, []) is None


def test_kernels_that_communicate_and_compute_are_said_to_be_both(tmp_path: Path) -> None:
    job = job_of(tmp_path, range(2), transfer=2_000, name=FUSED)
    diagnosis = job.diagnose()
    assert diagnosis.findings[0].cause == "exposed_communication"
    assert any(
        "communicate and compute in one (allreduce_fusion_kernel_oneshot_lamport)" in warning
        for warning in diagnosis.warnings
    )


def test_a_gpu_that_only_copies_pass_through_takes_no_part(tmp_path: Path) -> None:
    build = Build()
    for step in range(6):
        at = 10_000.0 * step
        build.range(at, at + 9_900, f"step {step}")
        build.copy(at + 100, at + 150, call=(at + 10, at + 20), kind="DtoD")  # on GPU 0
        for k in range(30):
            start = at + 300 + 310 * k
            build.kernel(start, start + 300, call=(start - 250, start - 245), device=1)
    build.trace(tmp_path)
    diagnosis = Job([tmp_path / "built.stepscope"]).diagnose()
    assert diagnosis.verdict == "gpu_bound_healthy"
    assert [a.device for a in diagnosis.accounting] == [1]
    assert any(w.startswith("GPU 0 ran copies") for w in diagnosis.warnings)
