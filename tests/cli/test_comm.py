"""``stepscope comm`` on two ranks of a real job."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from tests.cli.command import Stepscope
from tests.support.captures import unpack

DATA = Path(__file__).parents[1] / "data"
RANKS = DATA / "ranks"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ranks")
    return [unpack(RANKS / f"ddp_imbalance.rank{r}.sqlite.xz", folder) for r in range(2)]


def test_formats_say_the_same(ranks: list[Path], reader: Stepscope) -> None:
    document = reader.json("comm", *ranks)
    assert document["schema"] == "stepscope.comm/2"
    assert (document["ranks"], len(document["arrivals"])) == (2, 2)
    (operation,) = document["operations"]
    parts = operation["waiting_ns"] + operation["transfer_ns"] + operation["missing_ns"]
    assert parts == pytest.approx(operation["time_ns"], abs=2)  # each is a rounded mean
    rows = list(csv.DictReader(io.StringIO(reader("comm", *ranks, "-f", "csv").stdout)))
    assert [row["kind"] for row in rows] == ["all_reduce"]
    assert int(rows[0]["waiting_ns"]) == operation["waiting_ns"]
    assert rows[0]["bus_bandwidth"] == ""
    by_rank = reader("comm", *ranks, "-f", "csv", "--by", "rank").stdout
    arrivals = list(csv.DictReader(io.StringIO(by_rank)))
    assert [int(row["last"]) for row in arrivals] == [a["last"] for a in document["arrivals"]]
    for form in ("column", "markdown"):
        text = reader("comm", *ranks, "-f", form).stdout
        assert "all" in text
        assert "data parallel" in text
        assert "message sizes" in text


def test_ranks_of_one_job_are_not_runs(
    ranks: list[Path], stepscope: Stepscope, tmp_path: Path
) -> None:
    budget = ("--budget", "step_ms=1e9")
    history = ("history", "add", "--file", tmp_path / "h.sqlite")
    for command in (("compare", *ranks), ("gate", *ranks, *budget), (*history, *ranks),
                    ("compare", ranks[0], "--repeat-before", ranks[1], ranks[0]),
                    ("gate", ranks[0], *(f"--baseline={rank}" for rank in ranks))):  # fmt: skip
        done = stepscope(*command, expect=2)
        assert done.stdout == ""
        assert "are ranks of one job (ranks 0, 1, captured at the same time)" in done.stderr
    assert not (tmp_path / "h.sqlite").exists()
    named = ("--before", ranks[0], "--before", ranks[1], "--after", ranks[0], "--after", ranks[1])
    assert stepscope.json("compare", *named)["verdict"] == "no_difference"


def test_unrelated_captures_are_no_job(
    ranks: list[Path], stepscope: Stepscope, tmp_path: Path
) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    for name in ("cnn_small", "lstm_tiny"):
        unpack(DATA / "captures" / "nsys" / f"{name}.sqlite.xz", folder)
    for command in ("diagnose", "steps", "whatif"):
        more = ("--launches-free",) if command == "whatif" else ()
        done = stepscope(command, folder, *more, expect=2)
        assert "these are not the ranks of one job" in done.stderr
        assert done.stderr.count("\n") == 1
    for command in ("stats", "info", "analyze"):  # these look at each capture by itself
        stepscope(command, folder)


def test_one_rank_says_what_it_cannot_tell(ranks: list[Path], reader: Stepscope) -> None:
    document = reader.json("comm", ranks[0])
    assert any("only one rank" in warning for warning in document["warnings"])
    assert any("rank 1 is not there" in warning for warning in document["warnings"])
    assert document["operations"][0]["waiting_ns"] == 0


def test_a_job_that_does_not_communicate(reader: Stepscope, tmp_path: Path) -> None:
    capture = unpack(RANKS.parent / "captures/nsys/cnn_small.sqlite.xz", tmp_path)
    document = reader.json("comm", capture)
    assert document["operations"] == []
    assert "no communication kernels" in document["warnings"][0]
    assert "no communication kernels" in reader("comm", capture).stdout
