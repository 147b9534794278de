"""JAX under Nsight Systems on an H200: compiled steps are one CUDA graph each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.captures import DATA, unpack

from stepscope.session import Session

CAPTURES = DATA / "jax"


@pytest.mark.parametrize(
    ("name", "verdict", "step_ms"),
    [("jax_healthy", "gpu_bound_healthy", 26.0), ("jax_host_compute", "host_compute", 52.6)],
)
def test_the_planted_cause_comes_first(
    tmp_path: Path, name: str, verdict: str, step_ms: float
) -> None:
    diagnosis = Session([unpack(CAPTURES / f"{name}.sqlite.xz", tmp_path)]).diagnose()
    assert diagnosis.verdict == verdict
    assert diagnosis.step_ns.median / 1e6 == pytest.approx(step_ms, rel=0.01)
    assert diagnosis.trace.steps == 10
