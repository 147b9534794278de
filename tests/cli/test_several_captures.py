"""``stats`` and ``analyze`` of several captures: each answer tells of which it is."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from tests.cli.command import Stepscope
from tests.support.build import Build

from stepscope.render.several import origins


def capture(folder: Path, name: str, kernels: int) -> Path:
    build = Build()
    for number in range(kernels):
        build.kernel(number * 100, number * 100 + 50, call=(number * 100 - 5, number * 100 - 3))
    made = build.trace(folder).folder
    return Path(shutil.move(made, folder / f"{name}.stepscope"))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ranks")
    return [capture(folder, f"run.rank{rank}", 3 + rank) for rank in (1, 0)]


@pytest.fixture(scope="module")
def unranked(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("unranked")
    return [capture(folder, name, 3) for name in ("before", "after")]


REPORT = ("--report", "cuda_gpu_kern_sum")


def tables(text: str) -> list[list[dict[str, str]]]:
    parts = [part for part in text.split("\n\n") if part.strip()]
    return [list(csv.DictReader(io.StringIO(part.strip() + "\n"))) for part in parts]


def test_one_capture_is_as_nsys_prints_it(reader: Stepscope, ranks: list[Path]) -> None:
    text = reader("stats", ranks[0], *REPORT, "-f", "csv").stdout
    assert text.startswith("Time (%),")
    assert "=====" not in reader("stats", ranks[0], *REPORT).stdout


def test_a_heading_names_each_capture(reader: Stepscope, ranks: list[Path]) -> None:
    text = reader("stats", *ranks, *REPORT, "--report", "cuda_gpu_sum").stdout
    heads = [line for line in text.splitlines() if line.startswith("rank ")]
    assert heads == [f"rank 0: {ranks[1]}", f"rank 1: {ranks[0]}"]
    assert text.count(" ** ") == 4


def test_a_column_names_rank_and_capture(reader: Stepscope, ranks: list[Path]) -> None:
    first, second = tables(reader("stats", *ranks, *REPORT, "-f", "csv").stdout)
    assert {(row["Rank"], row["Capture"]) for row in first} == {("0", str(ranks[1]))}
    assert {(row["Rank"], row["Capture"]) for row in second} == {("1", str(ranks[0]))}
    assert {row["Instances"] for row in second} == {"4"}
    found = json.loads(reader("stats", *ranks, *REPORT, "-f", "json").stdout)["reports"]
    assert [(one["rank"], one["capture"]) for one in found] == [
        (0, str(ranks[1])), (1, str(ranks[0])),
    ]  # fmt: skip
    assert [one["rows"][0]["Instances"] for one in found][1] == 4
    assert reader("stats", *ranks, *REPORT, "-f", "hdoc").stdout.count("<th>Rank</th>") == 2


def test_without_ranks_the_capture_tells(reader: Stepscope, unranked: list[Path]) -> None:
    first, second = tables(reader("stats", *unranked, *REPORT, "-f", "csv").stdout)
    assert {(row["Rank"], row["Capture"]) for row in first + second} == {
        ("", str(path)) for path in unranked
    }
    text = reader("stats", *unranked, *REPORT).stdout
    assert [line for line in text.splitlines() if line.startswith("/")] == [*map(str, unranked)]


def test_rules_and_what_is_missing_tell_it_too(reader: Stepscope, ranks: list[Path]) -> None:
    done = reader("analyze", *ranks, "--rule", "gpu_gaps")
    assert f"\nrank 0: {ranks[1]}\n" in done.stdout
    done = reader("stats", *ranks, "--report", "osrt_sum")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "SKIPPED osrt_sum of rank 0", "SKIPPED osrt_sum of rank 1",
    ]  # fmt: skip


def test_each_capture_has_files_of_its_own(
    reader: Stepscope, ranks: list[Path], unranked: list[Path], tmp_path: Path
) -> None:
    reader("stats", *ranks, *REPORT, "-o", str(tmp_path / "x"), "-f", "csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "x_rank0_cuda_gpu_kern_sum.csv", "x_rank1_cuda_gpu_kern_sum.csv",
    ]  # fmt: skip
    written = (tmp_path / "x_rank1_cuda_gpu_kern_sum.csv").read_text()
    assert written.splitlines()[1].startswith(f"1,{ranks[0]},")
    reader("stats", *unranked, *REPORT, "-o", str(tmp_path / "y"), "-f", "csv")
    assert {path.name for path in tmp_path.glob("y*")} == {
        "y_after_cuda_gpu_kern_sum.csv", "y_before_cuda_gpu_kern_sum.csv",
    }  # fmt: skip


def test_names_of_files_never_meet() -> None:
    same = [(Path("a/x.sqlite"), None), (Path("a/x.json.gz"), None), (Path("b/x.sqlite"), None)]
    found = origins(same)
    assert [origin.stem for origin in found] == ["x.sqlite", "x.json.gz", "x"]
    assert len({origin.part for origin in found}) == 3
    twins = origins([(Path("a/x.sqlite"), 0), (Path("b/x.sqlite"), 0)])
    assert [(origin.rank, origin.part) for origin in twins] == [(None, "x.0"), (None, "x.1")]
