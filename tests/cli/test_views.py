"""``steps``, ``kernels`` and ``operators`` for people: units, width, the first rows."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest
from tests.cli.command import Stepscope

from stepscope.render import views
from stepscope.render.fitted import (
    PROSE_WIDTH,
    Column,
    fitted,
    folded,
    more_rows,
    name_column,
    wrapped,
)

KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::add>"


def steps(devices: int, count: int, *, steady_from: int = 0) -> pa.Table:
    rows = [
        {
            "rank": rank, "process_id": 1, "device": rank, "step": step,
            "start_ns": step * 20_000_000, "end_ns": (step + 1) * 20_000_000,
            "steady": step >= steady_from, "wall_ns": 20_000_000, "compute_ns": 15_000_000,
            "exposed_communication_ns": 1_234_567, "exposed_copy_ns": 0, "memset_ns": 1_000,
            "idle_ns": 3_764_433,
        }
        for rank in range(devices) for step in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


def kernels(count: int) -> pa.Table:
    rows = [
        {
            "category": "elementwise", "kernel": f"{KERNEL}_{number}", "math": "16bit",
            "calls": 120, "calls_per_step": 10.0 + number / 2, "time_ns": 123_456_789,
            "time_ns_per_step": 10_288_066, "share_of_step": 0.5144, "median_ns": 14_208,
            "bytes": None, "bytes_per_s": 3_149_992_931_836 if number else None,
            "mean_ns": 15_432, "min_ns": 1_000, "max_ns": 2_000_000,
        }
        for number in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


def test_steps_are_in_milliseconds_and_percent() -> None:
    lines = views.steps_text(steps(1, 2), 0, None).splitlines()
    assert lines[2].split() == ["step", "start", "length", "compute", "comm", "memset", "idle"]
    assert lines[4].split() == [
        *("0", "0.000", "20.000", "15.000", "75.0", "%", "1.235", "6.2", "%"),
        *("0.001", "0.0", "%", "3.764", "18.8", "%"),
    ]  # fmt: skip
    assert "copy" not in lines[2]  # there is none in any step
    assert "steady" not in lines[2]  # all are


def test_the_same_step_of_all_devices_stands_together() -> None:
    table = views.in_step_order(steps(4, 12, steady_from=1))
    lines = views.steps_text(table, 20, 130).splitlines()
    assert lines[2].split()[:2] == ["step", "rank"]
    assert [line.split()[:2] for line in lines[4:8]] == [["0", str(rank)] for rank in range(4)]
    assert [line.split()[-1] for line in lines[4:9]] == ["no"] * 4 + ["yes"]
    assert lines[-1] == "28 more steps (--limit 0 or --format csv shows all)"
    assert len(lines) == 4 + 20 + 2


def test_ranks_that_count_from_another_step_are_put_beside_it() -> None:
    table = views.in_step_order(steps(2, 3), {0: 0, 1: 1})
    both = zip(table.column("step").to_pylist(), table.column("rank").to_pylist(), strict=True)
    assert list(both) == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1)]
    assert "since each rank's own recording began" in views.steps_text(table, 0, 130)
    assert "recording" not in views.steps_text(steps(1, 3), 0, None)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_views_fit_the_width(width: int) -> None:
    texts = [views.steps_text(steps(4, 12, steady_from=1), 20, width),
             views.kernels_text(kernels(30), 20, width)]  # fmt: skip
    for text in texts:
        assert max(map(len, text.splitlines())) <= width
        for left_out in [line for line in text.splitlines() if "not shown" in line]:
            assert width < 200, left_out
    assert "10 more kernels" in texts[1]
    assert "idle" in texts[0]
    assert "  51.4   10.288" in texts[1]


def test_what_finds_no_room_is_named() -> None:
    columns = [Column("a", ["1,000"]), Column("often", ["22"], 5), Column("seldom", ["333"], 1),
               name_column("name", ["n" * 50], least=10, weight=99)]  # fmt: skip
    assert fitted(columns, 80)[0].split() == ["a", "often", "seldom", "name"]
    narrow = fitted(columns, 26)
    assert narrow[0].split() == ["a", "often", "name"]
    assert narrow[2] == "1,000     22  nnnnnnnnnnn…"
    assert narrow[-1] == "not shown at this width: seldom" or "seldom" in narrow[-1]
    assert fitted(columns, 17)[0].split() == ["a", "name"]
    assert all(len(line) <= 19 for line in fitted(columns, 17)[:3])


def test_more_rows_are_counted() -> None:
    assert more_rows(20, 20) == ""
    assert more_rows(500, 0) == ""
    assert more_rows(21, 20) == "1 more row (--limit 0 or --format csv shows all)"
    assert more_rows(2_020, 20, noun="kernel").startswith("2,000 more kernels ")


def test_prose_is_wrapped_at_words() -> None:
    assert wrapped("a b", None) == ["a b"]
    long = "words " * 40
    assert max(map(len, wrapped(long, None))) <= PROSE_WIDTH  # text is also read in files
    assert wrapped("- one two three four five six", 22, hang=2) == [
        "- one two three four",
        "  five six",
    ]
    assert wrapped("x" * 40, 10) == ["x" * 40]  # a path can be copied
    # where it finds room in the line, it gives up its indentation
    assert wrapped("name  " + "x" * 27, 30, hang=6) == ["name", "   " + "x" * 27]


def test_a_figure_stays_with_its_unit() -> None:
    assert wrapped("it takes as much as 12 % more", 23) == ["it takes as much as", "12 % more"]
    assert wrapped("from 0.51 ms, 2 steps", 20) == ["from 0.51 ms, 2", "steps"]


def test_sentences_in_a_table_are_broken_instead_of_cut() -> None:
    columns = [
        Column("n", ["1", "22"]),
        Column("meaning", ["a b c d e f", "short"], least=4, prose=True),
    ]
    assert fitted(columns, 9) == [" n  mean…", "--  -----", " 1  a b c", "    d e f", "22  short"]


def test_notes_are_folded_but_tables_and_commands_are_not() -> None:
    row = "  " + "kernel  " * 10
    command = "stepscope diagnose " + "x" * 60
    text = f"{row}\n  · one two three four five six seven\n{command}\n"
    assert folded(text, 25).split("\n") == [
        row,
        "  · one two three four",
        "    five six seven",
        command,
        "",
    ]
    assert folded(text, 200) == text


def test_programs_get_nanoseconds_and_all_rows(reader: Stepscope, sqlite_capture: Path) -> None:
    shown = reader("kernels", sqlite_capture).stdout
    rows = list(csv.DictReader(io.StringIO(reader("kernels", sqlite_capture, "-f", "csv").stdout)))
    assert len(rows) > 20
    assert f"{len(rows) - 20} more kernels (--limit 0" in shown
    assert "ms/step" in shown
    assert "_ns" not in shown
    everything = reader("kernels", sqlite_capture, "--limit", "0").stdout
    assert len(everything.splitlines()) == len(rows) + 2
    few = reader.json("kernels", sqlite_capture, "--limit", "3")
    assert len(few["rows"]) == 3
    assert few["schema"] == "stepscope.kernels/2"
    first = dict(zip(few["columns"], few["rows"][0], strict=True))
    assert first["min_ns"] <= first["median_ns"] <= first["max_ns"]
    assert abs(first["mean_ns"] * first["calls"] - first["time_ns"]) <= first["calls"]
    for command in ("steps", "operators"):
        markdown = reader(command, sqlite_capture, "-f", "markdown", "--limit", "2").stdout
        table = [line for line in markdown.splitlines() if line.startswith("|")]
        assert len(table) == 4, markdown
        assert " more " in markdown
