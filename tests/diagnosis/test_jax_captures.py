"""JAX under Nsight Systems on an H200: compiled steps are one CUDA graph each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import Build
from tests.support.captures import DATA, unpack

from stepscope.api import Job
from stepscope.diagnosis import captures
from stepscope.diagnosis.frameworks import is_jax

CAPTURES = DATA / "jax"


@pytest.mark.parametrize(
    ("name", "verdict", "step_ms"),
    [("jax_healthy", "gpu_bound_healthy", 26.0), ("jax_host_compute", "host_compute", 52.6)],
)
def test_the_planted_cause_comes_first(
    tmp_path: Path, name: str, verdict: str, step_ms: float
) -> None:
    diagnosis = Job([unpack(CAPTURES / f"{name}.sqlite.xz")]).diagnose()
    assert diagnosis.verdict == verdict
    assert diagnosis.step_ns.median / 1e6 == pytest.approx(step_ms, rel=0.01)
    assert diagnosis.trace.steps == 10


def test_advice_is_in_words_of_the_framework(tmp_path: Path) -> None:
    jax = Job([unpack(CAPTURES / "jax_host_compute.sqlite.xz")]).diagnose()
    torch = Job([unpack(DATA / "nsys" / "gpt1024_host_compute.sqlite.xz")]).diagnose()
    assert jax.findings[0].cause == torch.findings[0].cause == "host_compute"
    assert "jax" in " ".join(jax.findings[0].recommendations)
    assert "torch" not in " ".join(jax.findings[0].recommendations)
    assert jax.findings[0].next_capture == captures.SAMPLES
    assert "jax" not in " ".join(torch.findings[0].recommendations)
    assert torch.findings[0].next_capture == captures.STACKS


@pytest.mark.parametrize("name", ["XlaModule:#hlo_module=jit_f,program_id=7#", "TSL:Thunk:#a=b#"])
def test_ranges_of_xla_mean_jax(tmp_path: Path, name: str) -> None:
    for ranges, expected in ((["step"], False), (["step", name], True)):
        build = Build()
        build.kernel(100, 200, call=(10, 20))
        for text in ranges:
            build.range(0, 300, text)
        folder = tmp_path / str(expected)
        folder.mkdir()
        (_, explanation), *_ = Job([build.trace(folder).folder]).explained.explanations
        assert is_jax(explanation.gpu) == expected
