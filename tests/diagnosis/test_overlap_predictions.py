"""Sums of gradients behind the backward pass, and what the step takes with them beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.reductions import Model, played

from stepscope.simulation import OverlapCommunication
from stepscope.simulation.overlap import ON_THE_PATH, SENT_LESS, SLOWED

SHARE = SLOWED["expected"]


@pytest.mark.parametrize("transfer", [80.0, 200.0, 450.0])
@pytest.mark.parametrize("groups", [1, 24])
def test_the_step_is_that_of_buckets_beside_the_backward_pass(
    tmp_path: Path, transfer: float, groups: int
) -> None:
    """Three links: with the slowest, sums take longer than the backward pass."""
    model = Model(transfer=transfer, slowed=SHARE)
    job = played(tmp_path, model, groups, beside=False)
    finding = job.diagnose().findings[0]
    truth = model.step_us(model.layers, beside=True) * 1e3
    assert finding.cause == "exposed_communication"
    assert finding.predicted_step_ns == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize("slowed", [0.12, 0.64])
def test_the_range_holds_what_transfers_were_seen_to_slow(tmp_path: Path, slowed: float) -> None:
    model = Model(transfer=200.0, slowed=slowed)
    finding = played(tmp_path, model, 1, beside=False).diagnose().findings[0]
    truth = model.step_us(model.layers, beside=True) * 1e3
    assert finding.prediction_low_ns <= truth <= finding.prediction_high_ns


def test_buckets_that_are_beside_compute_already_gain_nothing(tmp_path: Path) -> None:
    model = Model(transfer=100.0, slowed=SHARE)
    job = played(tmp_path, model, model.layers, beside=True)
    assert "exposed_communication" not in {f.cause for f in job.diagnose().findings}
    after = job.simulation.predict([OverlapCommunication("gradients")]).step_ns
    assert after == pytest.approx(job.simulation.measured_step_ns, rel=0.02)


def test_what_the_next_kernel_needs_gains_less_than_gradients_do(tmp_path: Path) -> None:
    """Of a transfer that has to be hidden by cutting the batch, a quarter is gained."""
    model = Model(transfer=80.0)
    simulation = played(tmp_path, model, 1, beside=False).simulation
    before = simulation.measured_step_ns
    gained = [
        before - simulation.predict([OverlapCommunication(of)]).step_ns for of in ("any", "path")
    ]
    exposed = model.layers * model.transfer * 1e3
    left = SENT_LESS["expected"], ON_THE_PATH["expected"]
    for gain, share in zip(gained, left, strict=True):
        # beside the update and the next forward pass there is room for less than all of it
        assert 0 < gain <= (1 - share) * exposed * 1.02
    assert gained[1] < gained[0]
