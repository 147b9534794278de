"""``stepscope kernels REPORT`` on the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from tests.cli.command import CONTROL, Stepscope
from tests.support.ncu import LIMITERS, Row, bundled, changed, written
from tests.test_docs import fits

from stepscope.ncu.limiters import LIMITERS as KNOWN

LIMITER_TITLES = {limiter.id: limiter.title for limiter in KNOWN.values()}
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    return Stepscope(tmp_path / "cache")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("ncu") / "k.csv", *bundled(), before="==PROF== hi\n")


def schema(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((REFERENCE / f"{name}.schema.json").read_text())
    return found


def test_the_table_in_every_format(stepscope: Stepscope, report: Path) -> None:
    text = stepscope("kernels", report).stdout
    assert text.startswith("NVIDIA H200\n")
    assert "contended atomics" in text
    rows = list(csv.DictReader(io.StringIO(stepscope("kernels", report, "-f", "csv").stdout)))
    assert {row["function"]: row["limiter"] for row in rows} == LIMITERS
    assert rows[0]["grid"] == "1048576x1x1"
    printed = stepscope.json("kernels", report)
    wanted = schema("ncu-kernels")
    fits(printed, wanted, wanted["$defs"])  # type: ignore[arg-type]
    assert printed["kernels"][0]["duration_ns"] == 781408.0
    assert "| limiter |" in stepscope("kernels", report, "-f", "markdown").stdout


def test_one_kernel_in_every_format(stepscope: Stepscope, report: Path) -> None:
    text = stepscope("kernels", report, "--kernel", "k_bank_conflict").stdout
    assert "Limited by bank conflicts (memory-bound)" in text
    assert "L1/TEX Cache Throughput" in text
    assert "2.59 ms" in text
    assert "Short Scoreboard" in text
    assert "gap to the nearest roof" in text
    printed = stepscope.json("kernels", report, "-k", "4")
    wanted = schema("ncu-explanation")
    fits(printed, wanted, wanted["$defs"])  # type: ignore[arg-type]
    assert printed["kernel"]["limiter"] == "bank_conflicts"
    rows = csv.DictReader(io.StringIO(stepscope("kernels", report, "-k", "4", "-f", "csv").stdout))
    assert any(row["metric"] == "gpu__time_duration.sum" for row in rows)


def test_two_reports(stepscope: Stepscope, report: Path, tmp_path: Path) -> None:
    def coalesced(row: Row) -> None:
        row["gpu__time_duration.sum"] = "1000"

    after = changed(tmp_path / "after.csv", coalesced)
    drawing = tmp_path / "r.svg"
    done = stepscope("kernels", report, "--against", after, "--plot", drawing)
    assert "Duration" in done.stdout
    assert "stroke-dasharray" in drawing.read_text()
    printed = stepscope.json("kernels", report, "--against", after)
    wanted = schema("ncu-report-diff")
    fits(printed, wanted, wanted["$defs"])  # type: ignore[arg-type]


def test_hostile_names_stay_text(stepscope: Stepscope, tmp_path: Path) -> None:
    def rename(row: Row) -> None:
        row["Kernel Name"] = 'k\x1b[31m\u202e</svg><script>"|`$(rm)`" \u2028(int)'

    path = changed(tmp_path / "k.csv", rename)
    for arguments in ([], ["-k", "0"], ["--against", str(path)], ["-f", "markdown"]):
        out = stepscope("kernels", path, *arguments).stdout
        assert not (CONTROL - {ord("\n")}) & set(map(ord, out))
    page = tmp_path / "r.html"
    stepscope("kernels", path, "--plot", page)
    assert "<script" not in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-k", "nothing"], "no kernel 'nothing'"),
        (["-k", "10"], "from 0 to 9"),
        (["--plot", "x.png"], ".svg or .html"),
        (["--plot", f"{__file__}/x.svg"], "cannot write"),
        (["--against", "missing.csv"], "cannot read missing.csv"),
        (["--roofline"], "about traces"),
    ],
)
def test_wrong_use_is_one_line(
    stepscope: Stepscope, report: Path, arguments: list[str], message: str
) -> None:
    assert message in stepscope.refuses("kernels", report, *arguments)


def test_options_of_reports_are_refused_for_traces(stepscope: Stepscope, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    trace.write_text("{}")
    assert "Nsight Compute" in stepscope.refuses("kernels", trace, "-k", "x")


def test_a_report_in_place_of_a_trace_is_explained(stepscope: Stepscope, tmp_path: Path) -> None:
    path = tmp_path / "k.ncu-rep"
    path.write_bytes(b"NVR\0")
    for command in ("diagnose", "steps", "operators"):
        assert "stepscope kernels" in stepscope.refuses(command, path)


def test_a_cut_csv_is_one_line(stepscope: Stepscope, report: Path, tmp_path: Path) -> None:
    whole = report.read_bytes()
    path = tmp_path / "cut.csv"
    path.write_bytes(whole[: len(whole) // 2])
    assert "cut.csv" in stepscope.refuses("kernels", path)


def test_markdown_says_what_the_text_says(
    stepscope: Stepscope, report: Path, tmp_path: Path
) -> None:
    def other(row: Row) -> None:
        row["Kernel Name"] = row["Kernel Name"].replace("k_bank_conflict", "k_new")
        clock = "gpc__cycles_elapsed.avg.per_second"
        row[clock] = str(float(row[clock]) / 2)

    after = changed(tmp_path / "after.csv", other)
    found = stepscope.json("compare", report, after)
    assert found["warnings"]
    assert found["only_before"]
    assert found["only_after"]
    for arguments in (("compare", report, after), ("kernels", report, "--against", after)):
        text = stepscope(*arguments, "-f", "markdown").stdout.replace("\\", "")
        for output in (*found["warnings"], *found["only_before"], *found["only_after"]):
            assert output in text
        assert f"limited by {LIMITER_TITLES[found['pairs'][0]['limiter_before']]}" in text
    explained = stepscope.json("kernels", report, "-k", "4")
    text = stepscope("kernels", report, "-k", "4", "-f", "markdown").stdout.replace("\\", "")
    for output in (
        explained["title"],
        *explained["reasons"],
        *explained["recommendations"],
        "| Duration |",
    ):
        assert output in text
    table = stepscope.json("kernels", after)
    text = stepscope("kernels", after, "-f", "markdown").stdout.replace("\\", "")
    assert all(output in text for output in (*table["missing"], *table["warnings"]))


def test_compare_takes_reports(stepscope: Stepscope, report: Path, tmp_path: Path) -> None:
    def faster(row: Row) -> None:
        row["gpu__time_duration.sum"] = str(float(row["gpu__time_duration.sum"]) / 2)

    after = changed(tmp_path / "after.csv", faster)
    text = stepscope("compare", report, after).stdout
    assert "0.50x" in text
    printed = stepscope.json("compare", report, after)
    wanted = schema("ncu-report-diff")
    fits(printed, wanted, wanted["$defs"])  # type: ignore[arg-type]
    assert printed == stepscope.json("kernels", report, "--against", after)
    assert "| Duration |" in stepscope("compare", report, after, "-f", "markdown").stdout
    page = tmp_path / "page.html"
    stepscope("compare", "--before", report, "--after", after, "-f", "html", "-o", page)
    html = page.read_text()
    assert "<svg" in html
    assert "<td>Duration</td>" in html
    assert html.count("<table>") == len(LIMITERS)
    fresh = Stepscope(tmp_path / "fresh")
    assert "two Nsight Compute reports" in fresh.refuses("compare", report, after, report)
    trace = tmp_path / "x.sqlite"
    trace.write_bytes(b"")
    assert "not with a trace" in fresh.refuses("compare", report, trace)
    assert "--run-noise" in fresh.refuses("compare", report, after, "--run-noise", "0.1")
