"""The run history: nothing is lost, changes are marked, damage is one sentence."""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.compare.profiles import profile

from stepscope.api.history import history_bisect, history_entries, history_parquet, history_plot
from stepscope.compare.changepoints import change_points
from stepscope.compare.history import Entry, History, Mark, Plot, suspects
from stepscope.compare.history import sqlite as module
from stepscope.render import history as render
from stepscope.trace.errors import InputError, StorageError, UsageError


def run(ms: float) -> object:
    return profile([round(ms * 1e6)] * 6)


def filled(path: Path, times: list[float]) -> Path:
    with History(path, create=True) as history:
        for number, ms in enumerate(times):
            history.add(run(ms), name="gpt", revision=f"c{number:03}")  # type: ignore[arg-type]
    return path


# --- change points -------------------------------------------------------------------------------


def test_a_change_of_level_is_marked_where_it_is() -> None:
    noise = np.random.default_rng(1).normal(0, 0.01, 30)
    level = np.where(np.arange(30) < 17, 20.0, 21.5)
    (point,) = change_points((level * (1 + noise)).tolist())
    assert point.at == 17
    assert point.ratio == pytest.approx(1.075, abs=0.01)


def test_two_changes_are_both_marked() -> None:
    noise = np.random.default_rng(2).normal(0, 0.01, 36)
    level = np.repeat([20.0, 23.0, 19.0], 12)
    points = change_points((level * (1 + noise)).tolist())
    assert [p.at for p in points] == [12, 24]


def test_noise_alone_is_seldom_marked() -> None:
    rng = np.random.default_rng(3)
    marked = sum(bool(change_points((20 * (1 + rng.normal(0, 0.03, 20))).tolist()))
                 for _ in range(200))  # fmt: skip
    assert marked <= 6  # 1 % is stated


def test_series_without_level_have_no_change() -> None:
    assert change_points([]) == []
    assert change_points([1.0] * 5) == []
    assert change_points([1.0] * 50) == []
    assert change_points([1, 1.005] * 3 + [1.01, 1.012] * 3) == []  # certain, but too small


# --- the file ------------------------------------------------------------------------------------


def test_what_was_added_comes_back(tmp_path: Path) -> None:
    path = filled(tmp_path / "h.sqlite", [10, 11])
    entries = history_entries(str(path))
    assert [(e.id, e.name, e.revision) for e in entries] == [(1, "gpt", "c000"), (2, "gpt", "c001")]
    assert entries[1].figures["step_ms"] == 11
    with History(path) as history:
        assert history.profile(2).step_ns == 11e6
        with pytest.raises(UsageError, match="no entry 9"):
            history.profile(9)
    rows = list(csv.DictReader(io.StringIO(render.entries_csv(entries))))
    assert [float(row["step_ms"]) for row in rows] == [10, 11]
    history_parquet(entries, str(tmp_path / "x.parquet"))
    assert pq.read_table(tmp_path / "x.parquet").column("step_ms").to_pylist() == [10, 11]
    with pytest.raises(StorageError):
        history_parquet(entries, str(tmp_path / "no" / "x.parquet"))


def add_many(path: Path, name: str, count: int) -> None:
    with History(path, create=True) as history:
        for number in range(count):
            history.add(run(10 + number), name=name)  # type: ignore[arg-type]


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=add_many, args=(path, name, 20)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    for name in "ab":
        found = [e.figures["step_ms"] for e in history_entries(str(path), name)]
        assert found == [10 + number for number in range(20)]


def test_a_writer_that_is_killed_leaves_whole_entries(tmp_path: Path) -> None:
    path = filled(tmp_path / "h.sqlite", [10])
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=add_many, args=(path, "b", 100_000))
    writer.start()
    try:
        deadline = time.monotonic() + 60
        while len(history_entries(str(path))) < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        assert writer.pid
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(30)
    entries = history_entries(str(path))
    assert len(entries) >= 5
    with History(path) as history:
        for entry in entries:
            assert history.profile(entry.id).step_ns / 1e6 == entry.figures["step_ms"]
        history.add(run(12), name="after")  # type: ignore[arg-type]


def test_a_file_that_stays_locked_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path / "h.sqlite", [10])
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with History(path) as history, pytest.raises(StorageError, match="another process"):
        history.add(run(11), name="gpt")  # type: ignore[arg-type]
    other.execute("ROLLBACK")
    other.close()
    assert len(history_entries(str(path))) == 1


@pytest.mark.parametrize(
    ("statement", "output"),
    [
        ("UPDATE entry SET name = x'ff' WHERE id = 2", "entry 2 of .*a name is no text"),
        ("UPDATE entry SET name = CAST(x'ff' AS TEXT) WHERE id = 2", "damaged or no history"),
        ("UPDATE entry SET added_ns = 'soon' WHERE id = 2", "entry 2 of .*its time is none"),
        ("UPDATE figure SET value = 9e999 WHERE entry = 2", "entry 2 of .*a figure is no number"),
        ("UPDATE figure SET value = 'x' WHERE entry = 2", "entry 2 of .*a figure is no number"),
        ("UPDATE figure SET value = -1 WHERE entry = 2", "entry 2 of .*has no step_ms"),
        ("DELETE FROM figure WHERE entry = 2", "entry 2 of .*has no step_ms"),
        ("UPDATE entry SET profile = 7 WHERE id = 2", "entry 2 of .* is damaged"),
        ("ALTER TABLE figure RENAME COLUMN value TO v", "no such column"),
        ("DROP TABLE figure", "no such table"),
    ],
)
def test_cells_of_other_types_are_one_sentence(statement: str, output: str, tmp_path: Path) -> None:
    path = filled(tmp_path / "h.sqlite", [10, 11, 12])
    with sqlite3.connect(path) as other:
        other.execute(statement)
    other.close()
    with History(path) as history, pytest.raises(InputError, match=output):
        assert not history.entries() or history.profile(2)


def test_names_of_tables_that_are_no_text_are_one_sentence(tmp_path: Path) -> None:
    """SQLite quotes them in its error, which Python then cannot decode."""
    path = filled(tmp_path / "h.sqlite", [10])
    whole = path.read_bytes()
    assert whole.count(b"tableentryentry") == 1
    path.write_bytes(whole.replace(b"tableentryentry", b"table\x9cntryentry"))
    with pytest.raises(InputError, match="damaged or no history"):
        history_entries(str(path))


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    path = filled(tmp_path / "h.sqlite", [10] * 30)
    whole = path.read_bytes()
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 50)
    with pytest.raises(InputError, match="damaged or no history"):
        history_entries(str(path))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged"):
        history_entries(str(path))
    path.write_bytes(whole)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE entry SET profile = x'00' WHERE id = 3")
    other.close()
    with History(path) as history, pytest.raises(InputError, match="entry 3 of"):
        history.profile(3)
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(InputError, match="later Stepscope"):
        History(path)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as other:
        other.execute("CREATE TABLE x (a)")
    other.close()
    with pytest.raises(InputError, match="another program's"):
        History(foreign, create=True)
    with pytest.raises(InputError, match="does not exist"):
        History(tmp_path / "none.sqlite")
    with pytest.raises(StorageError, match="cannot use"):
        History(tmp_path / "no" / "such.sqlite", create=True)


def test_only_the_latest_are_kept(tmp_path: Path) -> None:
    path = filled(tmp_path / "h.sqlite", [10, 11, 12, 13])
    with History(path) as history:
        assert history.keep(2) == 2
    assert [e.figures["step_ms"] for e in history_entries(str(path))] == [12, 13]


# --- plot and bisect -----------------------------------------------------------------------------


def test_plot_and_bisect_name_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = [10, 10.1, 9.9, 10.05, 10.1, 9.95, 10]
    path = str(filled(tmp_path / "h.sqlite", [*before, *(ms + 3 for ms in before)]))
    plot = history_plot(path, "", "step_ms")
    assert [(m.previous.revision, m.entry.revision) for m in plot.marks] == [("c006", "c007")]
    assert "changed by +30" in render.plot_text(plot)
    page = render.plot_html(plot)
    assert "<script" not in page
    assert "stroke-dasharray" in page
    output = history_bisect(path, "gpt", "step_ms")
    assert "c006" in output
    assert "c007" in output
    assert "the step is 30 % longer" in output
    assert "No change" in history_bisect(path, "", "step_ms", bad="c003")
    with pytest.raises(UsageError, match="no run of revision"):
        history_bisect(path, "", "step_ms", good="zzz")
    with pytest.raises(UsageError, match="does not come before"):
        suspects(plot.marks, "c009", "c001", plot.entries)
    with pytest.raises(UsageError, match="no figure"):
        history_plot(path, "", "foo")
    with pytest.raises(UsageError, match="has peak_memory_bytes"):
        history_plot(path, "", "peak_memory_bytes")
    with History(Path(path)) as history:
        history.add(run(1), name="other")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--name"):
        history_plot(path, "", "step_ms")


@pytest.mark.parametrize(
    ("values", "head", "last"),
    [
        ((10.0,), "1 run, too few to find a change of level: that takes about 12 runs", ""),
        ((10.0, 10.0, 18.0), "3 runs, too few", "entry 3, is +80.0 % against the median of the 2"),
        ((10.0,) * 11 + (18.0,), "12 runs, 0 changes of level", "entry 12, is +80.0 %"),
        ((10.0,) * 7 + (18.0,) * 6, "13 runs, 1 change of level", ""),
        ((0.0, 0.0, 1.0), "3 runs, too few", ""),
    ],
)
def test_a_plot_says_what_few_runs_cannot_show(
    values: tuple[float, ...], head: str, last: str
) -> None:
    entries = [Entry(i, 0, "gpt", "", "", {"step_ms": v}) for i, v in enumerate(values, 1)]
    marks = [
        Mark(entries[point.at], entries[point.at - 1], point.ratio, point.chance)
        for point in (change_points(values) if min(values) else [])
    ]
    text = render.plot_text(Plot("stepscope.history/1", "gpt", "step_ms", entries, marks), 80)
    assert " ".join(text.split()).startswith(f"step_ms of gpt, {head}")
    assert ("the last run" in text) == bool(last)
    assert last in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
