"""Measured ceilings instead of the datasheet's: what is taken, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.support.build import Build
from tests.support.captures import DATA, unpack

from stepscope.api import Job
from stepscope.api.inputs import ceilings_beside_data_sheet, read_ceilings
from stepscope.kernels.ceilings import Ceilings, peaks_from, peaks_of
from stepscope.trace.errors import InputError

MEASURED: dict[str, Any] = {
    "schema": "stepscope.ceilings/2",
    "device": "NVIDIA H200",
    "measured_at": "2026-11-21T12:00:00Z",
    "dram_bytes_per_s": 4.4e12,
    "fp32_flop_per_s": 6e13,
    "fp64_flop_per_s": 3e13,
    "bf16_flop_per_s": 8e14,
    "warnings": [],
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "c.json"
    path.write_text(json.dumps({**MEASURED, **changes}))
    return path


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = DATA / "kineto/gpt1024_unfused_attention.json.xz"
    return unpack(packed)


@pytest.fixture(scope="module")
def stepscope(tmp_path_factory: pytest.TempPathFactory) -> Stepscope:
    return Stepscope(tmp_path_factory.mktemp("cache"))


def test_what_was_not_measured_stays_the_data_sheets(tmp_path: Path) -> None:
    found = peaks_from(read_ceilings(written(tmp_path)))
    sheet = peaks_of("NVIDIA H200")
    assert sheet is not None
    assert (found.half, found.bandwidth, found.measured) == (8e14, 4.4e12, True)
    assert (found.tf32, found.eight) == (sheet.tf32, sheet.eight)
    assert "TF32" in found.source
    assert sheet.source in found.source


def test_an_unknown_product_has_what_was_measured_only() -> None:
    found = peaks_from(Ceilings(**{**MEASURED, "device": "Some GPU"}))
    assert (found.half, found.tf32) == (8e14, 0.0)
    assert "datasheet" not in found.source


def test_beside_the_data_sheet(tmp_path: Path) -> None:
    rows = ceilings_beside_data_sheet(written(tmp_path).read_bytes()).to_pylist()
    by_name = {row["ceiling"]: row for row in rows}
    assert by_name["DRAM"]["share"] == pytest.approx(4.4 / 4.8)
    assert by_name["BF16 GEMMs"]["data_sheet"] == 989.5e12
    assert "TF32 GEMMs" not in by_name


def test_rooflines_take_them(stepscope: Stepscope, attention: Path, tmp_path: Path) -> None:
    plain = stepscope.json("kernels", attention, "--roofline")
    taken = stepscope.json("kernels", attention, "--roofline", "--ceilings", written(tmp_path))
    assert taken["source"].startswith("measured on 2026-11-21")
    assert taken["mfu"] == plain["mfu"]  # over the datasheet's peak by definition
    bound = [o for o in taken["operators"] if o["bound"] == "compute" and o["math"] == "16bit"]
    before = {(o["operator"], o["shapes"]): o["achieved"] for o in plain["operators"]}
    assert bound
    for operator in bound:
        was = before[operator["operator"], operator["shapes"]]
        assert operator["achieved"] == pytest.approx(was * 989.5 / 800, rel=1e-6)


def test_another_device_is_said(stepscope: Stepscope, attention: Path, tmp_path: Path) -> None:
    path = written(tmp_path, device="NVIDIA A100-SXM4-80GB")
    plain = stepscope.json("diagnose", attention)
    found = stepscope.json("diagnose", attention, "--ceilings", path)
    assert found["findings"] == plain["findings"]
    assert any("measured on NVIDIA A100-SXM4-80GB" in warning for warning in found["warnings"])


def test_a_capture_that_names_no_device_takes_them(tmp_path: Path) -> None:
    build = Build()
    for k in range(24):
        at, names = 600.0 * k, ["volta_sgemm_128x128_nn", "elementwise"]
        for i, name in enumerate(names):
            begin, launched = at + 300 * i, at / 2 + 10 * i
            build.kernel(begin + 20, begin + 320, call=(launched, launched + 5), name=name)
    trace = build.trace(tmp_path).folder
    asked = Job([trace]).diagnose()
    found = Job([trace], ceilings=written(tmp_path)).diagnose()
    assert "low_precision_unused" not in [f.cause for f in asked.findings]
    assert any("--ceilings FILE, predicts it" in warning for warning in asked.warnings)
    assert "low_precision_unused" in [f.cause for f in found.findings]
    assert any("the capture names no GPU" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "x"}', json.dumps({**MEASURED, "dram_bytes_per_s": 0}),
             json.dumps({**MEASURED, "schema": "stepscope.ceilings/9"}),
             json.dumps({**MEASURED, "bf16_flop_per_s": "fast"})]
)  # fmt: skip
def test_bad_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(InputError, match="holds no ceilings"):
        read_ceilings(path)


def test_misplaced_options_are_refused(attention: Path, tmp_path: Path) -> None:
    stepscope = Stepscope(tmp_path / "cache")  # nothing is imported: the options come first
    assert "no-such" in stepscope.refuses("diagnose", attention, "--ceilings", "no-such")
    assert "--roofline" in stepscope.refuses("kernels", attention, "--ceilings", written(tmp_path))
