"""Jobs with a planted fault and its repair, both by hand: what is predicted, and what it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.support.ddp import Rank, played

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
