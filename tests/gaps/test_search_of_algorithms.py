"""A convolution that waits for events of its own: its library times its algorithms."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.test_time_causes import diagnosed
from tests.support.build import Build


@pytest.mark.parametrize(
    ("operator", "searches"), [("aten::cudnn_convolution", True), ("aten::item", False)]
)
def test_waits_inside_a_convolution_are_its_search(
    operator: str, searches: bool, tmp_path: Path
) -> None:
    build = Build()
    for i in range(8):
        at = 10_000.0 * i
        build.range(at, at + 9_999, f"step_{i}")
        build.operator(at + 100, at + 6_000, operator)
        for k in range(10):
            begin = at + 200 + 550 * k
            build.api(begin, begin + 150, "cudaMalloc")
            build.kernel(begin + 400, begin + 440, call=(begin + 380, begin + 390), name=f"algo{k}")
            build.api(begin + 400, begin + 460, "cudaEventSynchronize")
        build.kernel(at + 6_100, at + 9_900, call=(at + 6_050, at + 6_060), name="gemm")
    found = diagnosed(build, tmp_path)
    assert (found.verdict == "compilation_or_warmup") == searches, found.verdict


def test_a_program_without_a_framework_is_told_of_no_framework(tmp_path: Path) -> None:
    build = Build()
    for i in range(12):
        at = 1_000.0 * i
        build.range(at, at + 999, f"step_{i}")
        for k in range(10):
            begin = at + 95 * k
            build.api(begin, begin + 30, "cudaMalloc")
            build.kernel(begin + 40, begin + 60, call=(begin + 32, begin + 36), name="solve")
            build.api(begin + 62, begin + 90, "cudaFree")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "allocator_churn"
    said = " ".join([found.findings[0].message, *found.findings[0].recommendations])
    assert "torch" not in said.lower()
    assert "before the loop" in said
