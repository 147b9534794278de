"""Jobs with a planted fault and its repair, both by hand: what is predicted, and what it is."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.support.ddp import Rank, played

from stepscope.api import Job
from stepscope.diagnosis.causes import straggler

HEALTHY = Rank()
STEPS = 12

FAULTS = {
    "slow device": (
        [HEALTHY, Rank(kernel=lambda step, k: 800.0, slowed=lambda step: 900.0 * (step % 3 == 1))],
        ("straggler", [1]),
    ),
    "checkpoint": ([Rank(saves=lambda step: step % 5 == 3), HEALTHY], ("checkpoint_stall", [0])),
}


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_repair_of_one_rank_gives_the_healthy_job(
    fault: str, ahead: bool, tmp_path: Path
) -> None:
    ranks, (cause, late) = FAULTS[fault]
    truth = played(tmp_path / "healthy", [HEALTHY, HEALTHY], STEPS).simulation.measured_step_ns
    job = played(tmp_path / "faulty", ranks, STEPS, ahead=ahead)
    assert abs(job.simulation.replay_error) < 0.02
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert (finding.cause, finding.ranks) == (cause, late)
    # two saves in the window, one every five steps in the run: the step holds more than it shows
    recorded = job.simulation.measured_step_ns
    case_steps = job.explained.cases[0].explanation.n_steady
    more = case_steps / 10 if fault == "checkpoint" else 1.0
    expected = recorded * truth / (truth + more * (recorded - truth))
    assert finding.predicted_step_ns == pytest.approx(expected, rel=0.05)
    assert finding.prediction_low_ns <= 1.01 * expected
    assert finding.prediction_high_ns >= 0.99 * expected
    assert job.verify(msgspec.json.encode(diagnosis)).verified


def test_a_rank_that_is_late_in_every_other_step_is_so_in_half_of_the_run(tmp_path: Path) -> None:
    """Like the batches of two workers: the window holds one long step more, or less, than half."""
    job = played(tmp_path, [HEALTHY, Rank(work=lambda step: 12_000.0 * (step % 2))], 12)
    case = job.explained.cases[1]
    e = case.explanation
    held = sum(step % 2 for step in range(e.first, e.last + 1))
    assert (late := straggler.detect(case)) is not None
    assert late.rare is not None
    assert held != e.n_steady / 2
    assert late.rare.times == pytest.approx(e.n_steady / 2 / held, rel=0.01)


SLOW = Rank(kernel=lambda step, k: 600.0)
BUSY = Rank(kernel=lambda step, k: 600.0, blocks=lambda step: 96)
BOOKS = Rank(work=lambda step: 6_000.0)


def graphs(us: float) -> Rank:
    """A rank whose data differs from step to step; kernels of so many us on average, with blocks in
    proportion."""

    def size(step: int) -> float:
        return us * (0.9 + 0.1 * (step % 3))

    return Rank(kernel=lambda step, k: size(step), blocks=lambda step: round(size(step) / 6.25))


LATE = {
    "one of four has a larger batch": (
        [HEALTHY, HEALTHY, BUSY, HEALTHY],
        HEALTHY,
        ("load_imbalance", [2]),
    ),
    "two of four have larger batches": (
        [BUSY, HEALTHY, HEALTHY, BUSY],
        HEALTHY,
        ("load_imbalance", [0, 3]),
    ),
    "one of four gets larger graphs": (
        [graphs(400), graphs(400), graphs(600), graphs(400)],
        graphs(450),
        ("load_imbalance", [2]),
    ),
    "two of four get larger graphs": (
        [graphs(600), graphs(400), graphs(400), graphs(600)],
        graphs(500),
        ("load_imbalance", [0, 3]),
    ),
    "two of four are slow": ([HEALTHY, SLOW, HEALTHY, SLOW], HEALTHY, ("straggler", [1, 3])),
    "two of four hosts are late": (
        [BOOKS, BOOKS, HEALTHY, HEALTHY],
        HEALTHY,
        ("straggler", [0, 1]),
    ),
}


@pytest.mark.parametrize("fault", LATE)
def test_late_ranks_of_four_become_like_the_others_or_share_their_work(
    fault: str, tmp_path: Path
) -> None:
    ranks, repaired, (cause, late) = LATE[fault]
    truth = played(tmp_path / "repaired", [repaired] * 4, STEPS).simulation.measured_step_ns
    job = played(tmp_path / "faulty", ranks, STEPS)
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert (finding.cause, finding.ranks) == (cause, late)
    assert finding.predicted_step_ns == pytest.approx(truth, rel=0.03)
    assert job.verify(msgspec.json.encode(diagnosis)).verified


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_uneven_draws_become_their_mean(ranks: int, tmp_path: Path) -> None:
    """Each rank draws the length of its kernels, and of their grids, anew for each step."""
    draw = random.Random(ranks)
    lengths = [[draw.choice([100, 200, 400, 600, 700]) for _ in range(ranks)] for _ in range(20)]

    def job(folder: str, length: Callable[[int, int], float]) -> Job:
        made = [
            Rank(
                kernel=lambda step, k, n=n: length(step, n),
                blocks=lambda step, n=n: round(length(step, n) / 6.25),
            )
            for n in range(ranks)
        ]
        return played(tmp_path / folder, made, len(lengths))

    shared = job("even", lambda step, n: statistics.mean(lengths[step]))
    truth = shared.simulation.measured_step_ns
    finding = job("drawn", lambda step, n: lengths[step][n]).diagnose().findings[0]
    assert finding.cause == "load_imbalance"
    assert "from step to step" in finding.message
    assert finding.predicted_step_ns == pytest.approx(truth, rel=0.03)
