"""``stepscope stats`` and ``stepscope analyze`` as a user runs them."""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepscope.cli.main import cli
from stepscope.trace.errors import StepscopeError

ORACLE = Path(__file__).parents[1] / "data" / "oracle"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "made_up.sqlite"
    path.write_bytes(lzma.decompress((ORACLE / "made_up.sqlite.xz").read_bytes()))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=True)


def failure(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, StepscopeError), result.output
    assert result.exception.exit_code == 2
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_the_default_set_skips_what_is_missing(capture: Path) -> None:
    import sqlite3

    with sqlite3.connect(capture) as database:
        database.execute("DELETE FROM OSRT_API")
    result = run("stats", capture)
    assert result.exit_code == 0, result.output
    assert " ** CUDA API Summary (cuda_api_sum):" in result.stdout
    assert "SKIPPED osrt_sum" in result.stderr
    assert "nsys profile -t osrt" in result.stderr
    assert "SKIPPED" not in run("stats", "-q", capture).stderr


def test_formats_hold_the_same_values(capture: Path) -> None:
    text = run("stats", "-q", "-r", "cuda_gpu_kern_sum", "-f", "csv", capture).stdout
    head, *table = [row for row in csv.reader(io.StringIO(text)) if row]
    tabs = run("stats", "-q", "-r", "cuda_gpu_kern_sum", "-f", "tsv", capture).stdout
    assert [line.split("\t") for line in tabs.splitlines() if line] == [head, *table]
    found = json.loads(run("stats", "-q", "-r", "cuda_gpu_kern_sum", "-f", "json", capture).stdout)
    assert [[str(value) for value in row.values()] for row in found] == table
    page = run("stats", "-q", "-r", "cuda_gpu_kern_sum", "-f", "hdoc", capture).stdout
    assert page.startswith("<!DOCTYPE html>")
    assert "void k1&lt;float, 1&gt;(int)" in page
    boxed = run("stats", "-q", "-r", "cuda_gpu_kern_sum", "-f", "table:nofmt", capture).stdout
    for row in table:
        assert all(cell in boxed for cell in row)


def test_units_and_options_of_formats(capture: Path) -> None:
    lines = run("stats", "-q", "-r", "cuda_gpu_mem_size_sum", "-f", "csv:mem=B", capture).stdout
    assert lines.startswith("Total (B),Count,")
    bare = run("stats", "-q", "-r", "cuda_gpu_mem_size_sum", "-f", "csv:mem=B:nohdr", capture)
    assert lines.split("\n", 1)[1] == bare.stdout
    timed = run("stats", "-q", "-r", "osrt_sum", "-f", "csv", "--timeunit", "milli", capture).stdout
    assert "Total Time (ms)" in timed


def test_reports_formats_and_outputs_are_parallel_lists(capture: Path) -> None:
    result = run(
        *("stats", "-r", "cuda_api_sum,gpukernsum:base", "-r", "um_sum:rows=2"),
        *("-f", "csv,json", "-o", f".,{capture.parent / 'out'}", capture),
    )
    assert result.exit_code == 0, result.output
    names = sorted(p.name for p in capture.parent.iterdir() if p.suffix in (".csv", ".json"))
    assert names == [
        "made_up_cuda_api_sum.csv",
        "out_cuda_gpu_kern_sum_base.json",
        "out_um_sum_rows=2.json",
    ]
    assert len(json.loads((capture.parent / "out_um_sum_rows=2.json").read_text())) == 2
    assert "exists" in failure("stats", "-r", "cuda_api_sum", "-o", ".", capture)
    again = run("stats", "-r", "cuda_api_sum", "-o", ".", "--force-overwrite", "true", capture)
    assert again.exit_code == 0


def test_output_into_a_command(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = run("stats", "-q", "-r", "osrt_sum", "-o", "@grep poll", capture)
    assert result.exit_code == 0
    assert capfd.readouterr().out.rstrip().endswith(",poll")
    assert "cannot run" in failure("stats", "-r", "osrt_sum", "-o", "@no_such_command", capture)


def test_an_unknown_range_is_an_empty_answer(capture: Path) -> None:
    result = run("stats", "-r", "nvtx_sum", "--filter-nvtx", "nowhere", capture)
    assert result.exit_code == 0
    assert "no NVTX range 'nowhere'" in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-r", "cuda_api_summ"], "did you mean 'cuda_api_sum'"),
        (["-r", "cuda_api_sum", "-f", "cvs"], "did you mean 'csv'"),
        (["-r", "cuda_api_sum", "-f", "csv:time=days"], "units are ns, us, ms, sec"),
        (["-r", "cuda_api_sum", "-f", "csv:nohead"], "did you mean 'nohdr'"),
        (["-r", "cuda_api_sum", "--timeunit", "fortnight"], "no time unit"),
        (["-r", "cuda_api_sum", "--filter-time", "5"], "a window is"),
    ],
)
def test_wrong_options_are_one_line(capture: Path, arguments: list[str], message: str) -> None:
    assert message in failure("stats", *arguments, capture)


def test_help_on_reports_and_rules() -> None:
    every = run("stats", "--help-reports").stdout
    assert "cuda_gpu_kern_sum[:nvtx-name][:base][:mangled]" in every
    one = run("stats", "--help-reports", "um_sum").stdout
    assert "rows: " in one
    assert "Other names: unifiedmemory" in one
    assert "gpu_gaps[:rows=50][:gap=500]" in run("analyze", "--help-rules").stdout
    assert "chunks" in run("analyze", "--help-rules", "gpu_time_util").stdout


def test_own_reports(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = capture.parent / "own"
    folder.mkdir()
    (folder / "threads.sql").write_text("SELECT count(*) AS n FROM thread")
    found = run("stats", "-q", "-r", "threads", "-f", "csv", "--report-dir", folder, capture)
    assert found.stdout == "n\n6\n\n"
    monkeypatch.setenv("STEPSCOPE_REPORT_PATH", str(folder))
    assert "threads" in run("stats", "--help-reports").stdout


def test_analyze_gives_advice_and_places(capture: Path) -> None:
    result = run("analyze", "-r", "cuda_api_sync:rows=2", capture)
    assert result.exit_code == 0
    assert "the host stands still" in result.stdout
    assert result.stdout.count("Synchronize_v3020") == 2
    nothing = run("analyze", "-r", "gpu_gaps", capture).stdout
    assert "No gap is longer than the limit" in nothing
    every = run("analyze", "-r", "all", capture)
    assert every.exit_code == 0
    assert "did you mean 'gpu_gaps'" in failure("analyze", "-r", "gpu_gap", capture)


def test_the_report_page(capture: Path) -> None:
    text = run("report", capture, "--rows", "2").stdout
    assert "** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):" in text
    assert "more rows: stepscope stats -r cuda_gpu_kern_sum" in text
    marked = run("report", capture, "-f", "markdown").stdout
    assert "## CUDA GPU Kernel Summary" in marked
    assert "void k1&lt;float, 1&gt;" in marked
    page = capture.parent / "page.html"
    assert run("report", capture, "-o", page).exit_code == 0
    written = page.read_text()
    assert written.startswith("<!DOCTYPE html>")
    assert "<float" not in written
    assert "<h2>CUDA GPU Kernel Summary</h2>" in written


def test_the_options_of_nsys_that_scripts_use(capture: Path, tmp_path: Path) -> None:
    asked = ("stats", "-q", "-r", "cuda_api_sum", "-f", "csv")
    expected = run(*asked, capture).stdout
    assert run(*asked, "--sqlite", capture).stdout == expected
    report = tmp_path / "capture.nsys-rep"
    report.write_bytes(b"not needed, as its export is named")
    assert run(*asked, "--sqlite", capture, report).stdout == expected
    assert run(*asked, "--force-export", "true", capture).stdout == expected
    assert run(*asked, "--force-export=false", capture).stdout == expected
    assert "does not exist" in failure(*asked, "--sqlite", tmp_path / "none.sqlite", report)
    assert ".nsys-rep" in failure(*asked, "--sqlite", capture, capture)
    out = tmp_path / "out"
    assert run(*asked, "-o", out, capture).exit_code == 0
    assert "--force-overwrite" in failure(*asked, "-o", out, capture)
    assert run(*asked, "-o", out, "--force-overwrite=true", capture).exit_code == 0
    assert run("analyze", "-q", "-r", "gpu_gaps", "--sqlite", capture).exit_code == 0


def test_formats_describe_themselves() -> None:
    listed = run("stats", "--help-formats").stdout
    assert all(f"  {name} " in listed for name in ("column", "csv", "hdoc"))
    one = run("analyze", "--help-formats", "csv").stdout
    assert one.startswith("csv[")
    assert all(option in one for option in ("nohdr", "mem=", "noconv"))
    assert "colmax" not in one
    everything = run("stats", "--help-formats", "ALL").stdout
    assert one in everything
    assert "did you mean 'csv'?" in failure("stats", "--help-formats", "cvs")


def test_numpy_is_imported_without_a_trace_in_the_environment(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before in ({}, {"OPENBLAS_NUM_THREADS": "3"}):
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        for name, value in before.items():
            monkeypatch.setenv(name, value)
        assert run("stats", "-q", "-r", "cuda_api_sum", capture).exit_code == 0
        found = {k: v for k, v in os.environ.items() if k == "OPENBLAS_NUM_THREADS"}
        assert found == before
