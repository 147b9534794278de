"""``stepscope gaps``: what people and programs are shown."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA, unpack

from stepscope.render import gaps as views


@pytest.fixture(scope="module")
def capture() -> Path:
    return unpack(DATA / "nsys" / "cnn_disk.sqlite.xz")


def test_people_see_sums_and_the_longest_gaps(reader: Stepscope, capture: Path) -> None:
    lines = reader("gaps", capture).stdout.splitlines()
    assert lines[0].startswith("GPU idle for ")
    assert lines[0].endswith("times in ms")
    assert lines[2].split()[:2] == ["ms/step", "%"]
    assert "input_starvation" in lines[4]
    assert "(upload)" in lines[4]
    longest = lines[lines.index("The longest gaps (--by gap lists all)") + 4 :]
    assert len(longest) == 5
    assert reader("gaps", capture, "-f", "markdown").stdout.count("\n|---:|") == 2


def test_programs_get_nanoseconds_and_all_rows(reader: Stepscope, capture: Path) -> None:
    steps = reader.json("steps", capture)
    idle, steady = (steps["columns"].index(name) for name in ("idle_ns", "steady"))
    whole = sum(row[idle] for row in steps["rows"] if row[steady])
    for by, schema in (("cause", "stepscope.gaps/1"), ("gap", "stepscope.gap_list/1")):
        document = reader.json("gaps", capture, "--by", by)
        assert document["schema"] == schema
        at = document["columns"].index("idle_ns")
        assert sum(row[at] for row in document["rows"]) == whole
        text = reader("gaps", capture, "--by", by, "-f", "csv").stdout
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [int(row["idle_ns"]) for row in rows] == [row[at] for row in document["rows"]]


def test_one_step_is_part_of_all(reader: Stepscope, capture: Path) -> None:
    document = reader.json("gaps", capture, "--by", "gap", "--only-step", "3", "--sort", "start")
    columns = document["columns"]
    starts = [row[columns.index("start_ns")] for row in document["rows"]]
    assert starts == sorted(starts)
    assert {row[columns.index("step")] for row in document["rows"]} == {3}


def test_more_rows_are_counted(reader: Stepscope, capture: Path) -> None:
    text = reader("gaps", capture, "--by", "gap", "--limit", "3").stdout
    assert " more gaps (--limit 0 or --format csv shows all)" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only-step", "99"), "step 99 is no steady step"),
        (("--rank", "1"), "there is no rank 1; the ranks are 0"),
        (("--sort", "start"), "'start' is no order of them"),
        (("--by", "gap", "--sort", "count"), "'count' is no order of them"),
    ],
)
def test_what_cannot_be_shown_is_said(
    reader: Stepscope, capture: Path, options: tuple[str, ...], message: str
) -> None:
    done = reader("gaps", capture, *options, expect=2)
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_sums_of_a_job_say_that_they_are_means(reader: Stepscope) -> None:
    ranks = [unpack(DATA.parent / "ranks" / f"ddp_imbalance.rank{n}.sqlite.xz") for n in (0, 1)]
    assert "% (mean of 2 GPUs); times in ms" in reader("gaps", *ranks).stdout.splitlines()[0]
    one = reader("gaps", *ranks, "--rank", "1").stdout.splitlines()[0]
    assert "mean" not in one


def test_causes_of_no_share_are_left_out() -> None:
    almost = "host_sync 996000, launch_bound 3000, small_kernels 1000"
    assert views._causes(almost) == "host_sync 100 %"
    assert views._causes("host_sync 60, launch_bound 40") == "host_sync 60 %, launch_bound 40 %"


def test_sums_that_would_be_zeros_are_left_out() -> None:
    columns = {"idle_ns_per_step": [9_000.0, 700.0, 300.0, 20.0]}
    table = pa.table(columns)
    assert [views._worth(table, limit) for limit in (1, 3, 20, 0)] == [1, 2, 2, 0]
    assert views._worth(table.slice(3), 20) == 1
