"""Pipelines of stages, by hand: every message is a rendezvous of two neighbours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.build import Build
from tests.support.pipeline import MOVES, SEND_RECV, STEPS, gpipe, one_by_one, played, step_us

from stepscope.api import Job
from stepscope.simulation import RankLike
from stepscope.simulation.program import C
from stepscope.simulation.ranks import even_work, rank_like


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_with_few_micro_batches(tmp_path: Path, stages: int) -> None:
    micro_batches = 4
    job = played(tmp_path, gpipe(stages, micro_batches, lambda stage: 1_000.0))
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert finding.cause == "pipeline_bubble"
    evidence = {e.figure: e.value for e in finding.evidence}
    share = (stages - 1) / (micro_batches + stages - 1)
    assert evidence["bubble_share"] == pytest.approx(share, rel=0.1)
    assert evidence["micro_batches"] == micro_batches
    assert evidence["micro_batches_to_halve"] == 2 * micro_batches
    assert "load_imbalance" not in {f.cause for f in diagnosis.findings}
    assert job.verify(msgspec.json.encode(diagnosis)).verified


@pytest.mark.parametrize("stages", [2, 3])
def test_micro_batches_of_which_each_comes_back_before_the_next(
    tmp_path: Path, stages: int
) -> None:
    job = played(tmp_path, one_by_one(stages, 4, lambda stage: 1_000.0))
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert finding.cause == "pipeline_bubble"
    evidence = {e.figure: e.value for e in finding.evidence}
    assert (evidence["micro_batches"], evidence["micro_batches_sent"]) == (1, 4)
    together = step_us(gpipe(stages, 4, lambda stage: 1_000.0)) * 1e3
    assert finding.predicted_step_ns == pytest.approx(together, rel=0.05)
    assert finding.prediction_low_ns <= together <= finding.prediction_high_ns
    assert job.verify(msgspec.json.encode(diagnosis)).verified


def test_more_micro_batches_gain_nothing_where_the_hosts_launch_all_the_time(
    tmp_path: Path,
) -> None:
    """A pass of 50 kernels of 20 us, each launched just in time: 3 passes fill 2 micro-batches."""
    job = played(tmp_path, gpipe(2, 2, lambda stage: 1_000.0), pieces=lambda stage: 50)
    diagnosis = job.diagnose()
    (finding,) = [f for f in diagnosis.findings if f.cause == "pipeline_bubble"]
    evidence = {e.figure: e.value for e in finding.evidence}
    step_ns = job.simulation.measured_step_ns
    assert evidence["bubble_share"] == pytest.approx(1 / 3, rel=0.1)
    assert 0.5 * step_ns < evidence["launching_ns"] <= step_ns
    assert finding.predicted_step_ns == finding.prediction_high_ns == step_ns
    assert "launch less first" in finding.recommendations[0]
    assert job.verify(msgspec.json.encode(diagnosis)).verified


def test_what_recording_keeps_the_stages_waiting_is_no_bubble(tmp_path: Path) -> None:
    """Before each of two micro-batches, recording keeps the second stage's host for 1 ms.

    The first stage waits for that, too. What both wait without is a third of the step.
    """
    programs = gpipe(2, 2, lambda stage: 1_000.0)
    plain = step_us(programs)
    first, second = programs
    slowed = [
        one
        for op in second
        for one in ([("recording", 1, 1_000.0), op] if op[0] == "forward" else [op])
    ]
    job = played(tmp_path, [first, slowed])
    diagnosis = job.diagnose()
    (finding,) = [f for f in diagnosis.findings if f.cause == "pipeline_bubble"]
    evidence = {e.figure: e.value for e in finding.evidence}
    (charged,) = job.query("SELECT max(recording_ns) AS ns FROM rank_pace").to_pylist()
    assert charged["ns"] == pytest.approx(2_000_000, rel=0.02)
    assert evidence["bubble_share"] == pytest.approx(1 / 3, rel=0.1)
    assert evidence["mean_bubble_ns"] == pytest.approx(plain * 1e3 / 3, rel=0.1)
    assert evidence["micro_batches"] == 2
    assert job.verify(msgspec.json.encode(diagnosis)).verified


SLOW = {0: 387.0, 1: 400.0, 2: 417.0, 3: 625.0}
"""Forward pass of a micro-batch on each stage, us: the last one computes 15.0 ms a step, the others
9.3 to 10.0."""


@pytest.mark.parametrize("pieces", [lambda stage: 3, lambda stage: 3 + stage])
def test_a_slow_stage_is_named_and_its_repair_predicted(
    tmp_path: Path, pieces: Callable[[int], int]
) -> None:
    job = played(tmp_path, gpipe(4, 8, SLOW.__getitem__), pieces, ahead=True)
    assert abs(job.simulation.replay_error) < 0.02
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert (finding.cause, finding.ranks) == ("load_imbalance", [3])
    assert "stage 3 (rank 3)" in finding.message
    mean = sum(SLOW.values()) / 4
    even = step_us(gpipe(4, 8, lambda stage: mean)) * 1e3
    assert finding.predicted_step_ns == pytest.approx(even, rel=0.05)
    assert finding.prediction_low_ns <= even * 1.01
    assert finding.prediction_high_ns >= even * 0.99
    # the bubble that is left is told without what the slow stage does
    (bubble,) = [f for f in diagnosis.findings if f.cause == "pipeline_bubble"]
    evidence = {e.figure: e.value for e in bubble.evidence}
    assert evidence["micro_batches"] == pytest.approx(8, abs=1)
    assert "straggler" not in {f.cause for f in diagnosis.findings}
    # a rank that nobody waits for gains nothing when it becomes like the others
    innocent = job.simulation.predict([RankLike(1)]).step_ns
    assert innocent == pytest.approx(job.simulation.measured_step_ns, rel=0.02)
    assert job.verify(msgspec.json.encode(diagnosis)).verified


def test_layers_that_move_take_their_launches_with_them(tmp_path: Path) -> None:
    """A pass of one stage is 50 launches of 5 us, one of the other 150: 100 each."""
    stages = {0: (1_000.0, 50), 1: (3_000.0, 150)}
    job = played(tmp_path, gpipe(2, 8, lambda s: stages[s][0]), lambda s: stages[s][1], ahead=True)
    before = job.simulation.subjects
    after = even_work(before, "stages")
    for then, now, ratio in zip(before, after, (2.0, 2 / 3), strict=True):
        compute = then.of_ops(then.gpu.is_compute)
        took, takes = (
            (s.program.call_ns + s.program.work_ns[:, C["launch_bound"]])[compute].sum()
            for s in (then, now)
        )
        assert takes == pytest.approx(ratio * took, rel=0.1)


def test_a_rank_like_another_is_recorded_like_it(tmp_path: Path) -> None:
    job = played(tmp_path, gpipe(2, 4, lambda stage: 1_000.0), pieces=lambda stage: 3)
    one, other = (
        s.becomes(recording_ns=np.full(len(s.program), cost, np.int64))
        for s, cost in zip(job.simulation.subjects, (100, 300), strict=True)
    )
    changed = rank_like([one, other], 1, "median")
    assert changed[0].program.recording_ns.sum() == one.program.recording_ns.sum()
    assert changed[1].program.recording_ns.sum() == pytest.approx(
        one.program.recording_ns.sum(), rel=0.05
    )


@pytest.mark.parametrize(
    ("around", "kind", "likely"),
    [("", "all_to_all", "expert_parallel"), ("nccl:coalesced", "exchange", "context_parallel")],
)
def test_an_exchange_among_all_is_no_pipeline(
    tmp_path: Path, around: str, kind: str, likely: str
) -> None:
    """Two ranks that run the same program and send to each other in every layer."""
    builds = [Build(), Build()]
    begin = 100.0
    for step in range(STEPS):
        now, called = [begin, begin], [begin - 60, begin - 60]

        def launch(rank: int, called: list[float] = called) -> tuple[float, float]:
            called[rank] += 3
            return called[rank], called[rank] + 2

        for layer in range(4):
            for rank, build in enumerate(builds):
                length = 500.0 * (3 if rank == 1 and layer % 2 else 1)
                for k in range(3):
                    start = now[rank] + k * length / 3
                    build.kernel(start, start + length / 3, call=launch(rank), name=f"gemm_{k}",
                                 grid_x=192 if length > 500 else 64)  # fmt: skip
                now[rank] += length
            end = max(now) + MOVES
            for rank, build in enumerate(builds):
                call = launch(rank)
                build.kernel(now[rank], end + 5 * rank, call=call, name=SEND_RECV, stream=20,
                             grid_x=2)  # fmt: skip
                if around:
                    build.range(call[0] - 0.4, call[1] + 0.4, around)
            now = [end + 10, end + 10]
        end = max(now) + 100
        for rank, build in enumerate(builds):
            build.api(called[rank] + 3, end - 80, "cudaDeviceSynchronize")
            build.range(begin - 60, end - 61, f"step {step}")
        begin = end
    for rank, build in enumerate(builds):
        place = tmp_path / f"rank{rank}"
        place.mkdir()
        build.trace(place, rank=rank, rank_source="test", origin_epoch_ns=10**18, world_size=2)
    job = Job([tmp_path / f"rank{rank}" / "built.stepscope" for rank in range(2)])
    found = job.communication
    assert {o.kind for o in found.operations} == {kind}
    assert [guess.likely for guess in found.groups] == [likely]
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert (finding.cause, finding.ranks) == ("load_imbalance", [1])
    # rank 1 computes 4 ms a step and rank 0 2 ms: 3 ms on each where experts are shared out
    gain = 1_000_000 if likely == "expert_parallel" else 2_000_000
    assert finding.time_ns_per_step == pytest.approx(gain, rel=0.02)
    assert "pipeline_bubble" not in {f.cause for f in diagnosis.findings}
    assert job.verify(msgspec.json.encode(diagnosis)).verified


@pytest.mark.parametrize(
    "around", ["c10d::alltoall_base_", "nccl:all_to_all, op_id = 7", "c10d::all_to_all_single"]
)
def test_a_range_around_the_launch_decides(tmp_path: Path, around: str) -> None:
    build = Build()
    for step in range(STEPS):
        at = 100.0 + 1_000 * step
        build.kernel(at, at + 600, call=(at - 50, at - 48), grid_x=64)
        build.range(at - 45, at - 35, around)
        build.range(at - 44, at - 36, "ncclGroupEnd")
        build.kernel(at + 600, at + 700, call=(at - 42, at - 40), name=SEND_RECV, stream=20)
        build.range(at - 60, at + 939, f"step {step}")
    build.trace(tmp_path, rank=0, rank_source="test", origin_epoch_ns=10**18, world_size=2)
    found = Job([tmp_path / "built.stepscope"]).communication
    assert [o.kind for o in found.operations] == ["all_to_all"]


def test_stages_with_as_many_kernels_are_a_pipeline(tmp_path: Path) -> None:
    """Without embedding and loss, two stages differ at the begin and the end of a step only."""
    job = played(tmp_path, gpipe(2, 16, lambda stage: 1_000.0), pieces=lambda stage: 3)
    assert {o.kind for o in job.communication.operations} == {"send_recv"}
    assert job.diagnose().findings[0].cause == "pipeline_bubble"
