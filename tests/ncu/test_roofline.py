"""Rooflines by hand, drawings, comparisons, and how a kernel is chosen."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests.support.ncu import Row, bundled, changed, written

from stepscope.ncu.choose import chosen
from stepscope.ncu.match import matched
from stepscope.ncu.metrics import METRICS
from stepscope.ncu.model import Launch, Report
from stepscope.ncu.reading import read_report
from stepscope.ncu.report_diff import report_diff
from stepscope.ncu.roofline import roofline_of
from stepscope.render.ncu import report_diff_text
from stepscope.render.roofline import roofline_text
from stepscope.render.roofline_svg import Point, roofline_page, roofline_svg
from stepscope.trace.errors import UsageError


def launch(name: str = "k", number: int = 0, **values: float) -> Launch:
    named = {METRICS[key].names[0]: value for key, value in values.items()}
    return Launch(number, name, name.split("(", maxsplit=1)[0], values=named)


GPU = {"smsp_rate": 1e9, "sm_rate": 1e9, "peak_flops32": 10_000.0, "dram_peak": 1000.0,
       "dram_frequency": 1e9, "l2_peak": 4000.0, "l2_rate": 1e9}  # fmt: skip


def test_a_roofline_by_hand() -> None:
    """2 FLOP a multiply-add: 1000 a cycle at 1 GHz; 10 TFLOP/s and 1 TB/s ceilings."""
    found = roofline_of(launch(**GPU, flops_add32=100, flops_mul32=100, flops_fma32=400,
                               dram_bandwidth=0.5e12, l2_bandwidth=1e12))  # fmt: skip
    assert found is not None
    assert (found.precision, found.flop_per_s, found.peak_flop_per_s) == ("fp32", 1e12, 1e13)
    l2, dram = found.roofs
    assert (dram.level, dram.intensity) == ("dram", 2.0)
    assert dram.roof_flop_per_s == 2e12
    assert dram.achieved == 0.5
    assert l2.intensity == 1.0
    assert l2.achieved == 0.25
    assert (found.nearest, found.gap) == ("dram", 2.0)


def test_a_copy_has_a_roof_of_bytes_only() -> None:
    found = roofline_of(launch(**GPU, flops_fma32=0, dram_bandwidth=0.8e12))
    assert found is not None
    assert found.precision == ""
    assert found.flop_per_s == 0
    assert found.roofs[0].achieved == 0.8
    assert found.gap == pytest.approx(1.25)
    assert "no arithmetic" in roofline_text([found])


def test_tensor_cores_have_their_own_ceiling() -> None:
    found = roofline_of(launch(**GPU, flops_fma32=100, tensor_bf16=9e13, tensor_bf16_peak=1e5,
                               dram_bandwidth=0.5e12))  # fmt: skip
    assert found is not None
    assert found.precision == "tensor_bf16"
    assert found.peak_flop_per_s == 1e14
    assert found.nearest == "compute"
    # 90 % of the tensor peak and 2 % of the FP32 peak
    assert found.gap == pytest.approx(1 / (0.9 + 0.02))


def test_nothing_to_draw() -> None:
    assert roofline_of(launch()) is None
    assert "no launch does arithmetic" in roofline_svg([], "empty")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("ncu") / "k.csv", *bundled())


def test_ceilings_are_those_of_the_device(report: Path) -> None:
    """An H200: 132 x 128 x 2 operations a cycle at 1.98 GHz; 6016 bits twice a cycle at 3.2 GHz."""
    found = roofline_of(read_report(report).launches[2])
    assert found is not None
    assert found.peak_flop_per_s == pytest.approx(132 * 128 * 2 * 1.98e9, rel=0.01)
    assert found.roofs[-1].peak_bytes_per_s == pytest.approx(6016 / 8 * 2 * 3.2e9, rel=0.01)
    # the datasheet's dense 989 TFLOP/s are at 1.83 GHz
    assert found.ceilings_flop_per_s["tensor_bf16"] == pytest.approx(989e12 * 1.98 / 1.83, rel=0.01)
    assert found.ceilings_flop_per_s["fp64"] == pytest.approx(found.peak_flop_per_s / 2, rel=0.01)


def test_drawings_are_sound_and_escape_names(report: Path) -> None:
    lines = [roofline_of(one) for one in read_report(report).launches]
    points = [Point("</svg><script>x\x1b[31m", one, lines[2]) for one in lines if one is not None]
    svg = roofline_svg(points, "<b>title")
    root = ET.fromstring(svg)
    circles = root.findall(".//{*}circle")
    drawn = [p for p in points if p.roofline.flop_per_s]
    assert len(circles) == 2 * 3 * len(drawn)
    assert "<script" not in svg
    assert "\x1b" not in svg
    for circle in circles:
        assert 0 <= float(circle.get("cx", "-1")) <= 860
        assert 0 <= float(circle.get("cy", "-1")) <= 520
    assert roofline_page(points, "t").startswith("<!DOCTYPE html>")
    text = roofline_text([one for one in lines if one is not None and one.flop_per_s])
    assert {"1", "2", "D"} <= set(text)


# --- comparisons ---------------------------------------------------------------------------------


def test_a_change_shows_metric_by_metric(tmp_path: Path, report: Path) -> None:
    def faster(row: Row) -> None:
        row["gpu__time_duration.sum"] = repr(float(row["gpu__time_duration.sum"]) / 2)
        row["gpc__cycles_elapsed.avg.per_second"] = "1.1e9"
        row["device__attribute_display_name"] = "NVIDIA A100"

    found = report_diff(read_report(report), read_report(changed(tmp_path / "b.csv", faster)))
    assert len(found.pairs) == 10
    assert not found.only_before
    for pair in found.pairs:
        by_label = {change.label: change for change in pair.changes}
        assert by_label["Duration"].ratio == pytest.approx(0.5)
        assert by_label["L2 Hit Rate"].ratio == pytest.approx(1.0)
        assert pair.limiter_before == pair.limiter_after
    assert found.pairs[0].name.startswith("k_strided_copy")
    text = report_diff_text(found)
    assert text.count("0.50x") >= 10
    assert "clocks differ" in text
    assert "devices differ" in text


def test_kernels_that_only_one_report_has(tmp_path: Path, report: Path) -> None:
    units, rows = bundled()
    rows[0]["Kernel Name"] = "new_kernel(int)"
    found = report_diff(read_report(report), read_report(written(tmp_path / "b.csv", units, rows)))
    assert found.only_after == ["new_kernel(int)"]
    assert [name.split("(")[0] for name in found.only_before] == ["k_coalesced_copy"]
    assert len(found.pairs) == 9


# --- which kernel --------------------------------------------------------------------------------


def test_a_kernel_by_number_name_part_or_pattern() -> None:
    launches = [launch("void gemm<float>(int)", 0, duration=5), launch("copy(int)", 1, duration=9),
                launch("void gemm<half>(int)", 2, duration=7)]  # fmt: skip
    launches[0].function = launches[2].function = "gemm"
    assert chosen(launches, "1") == (launches[1], 0)
    assert chosen(launches, "gemm") == (launches[2], 1)
    assert chosen(launches, "gemm<float>") == (launches[0], 0)
    assert chosen(launches, "^co.y") == (launches[1], 0)
    for wrong in ("3", "99999999999999999999", "nothing", "[", "*x"):
        with pytest.raises(UsageError):
            chosen(launches, wrong)


def test_a_traces_kernel_is_found_by_name_and_grid() -> None:
    a, b, c = (launch("void copy<(int)4, float>(float *)", i, duration=d)
               for i, d in enumerate((5.0, 9.0, 7.0)))  # fmt: skip
    a.grid, b.grid, c.grid = (64, 1, 1), (32, 1, 1), (64, 1, 1)
    name = "void copy<4, float>(float*)"
    found = matched([a, b, c], name, (64, 1, 1))
    assert found is not None
    assert (found.launch, found.same_grid) == (c, True)
    other = matched([a, b, c], name, (8, 1, 1))
    assert other is not None
    assert (other.launch, other.same_grid) == (b, False)
    assert matched([a, b, c], "void copy<8, float>(float*)", (64, 1, 1)) is None
    assert matched([a], "copy", (64, 1, 1)) is not None
    assert matched([], name, None) is None


def test_a_function_with_other_template_arguments_is_matched() -> None:
    def named(*names: str) -> Report:
        return Report("r", "csv raw", [launch(name, duration=1e3) for name in names])

    found = report_diff(named("f<1>(int)", "g(int)"), named("f<2>(int)", "g(int)"))
    # names of the tests' launches keep template arguments in the function, as no report does
    assert found.only_before == ["f<1>(int)"]
    before, after = named("f<1>(int)", "g(int)"), named("f<2>(int)", "g(int)")
    for each in (*before.launches, *after.launches):
        each.function = each.name[0]
    found = report_diff(before, after)
    assert [pair.name for pair in found.pairs] == ["f<1>(int)", "g(int)"]
    assert not found.only_before
    assert not found.only_after
    twice = named("f<2>(int)", "f<3>(int)", "g(int)")
    for each in twice.launches:
        each.function = each.name[0]
    assert report_diff(before, twice).only_before == ["f<1>(int)"]  # which of two is not known
