"""The store: what is written is read back, in order, checked, whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace import table_file
from stepscope.trace.errors import InputError, StorageError, UsageError
from stepscope.trace.meta import Meta, MissingTable
from stepscope.trace.problems import DECLARED, ProblemLog
from stepscope.trace.schema import SCHEMA_VERSION, TABLES, Column, arrow_schema
from stepscope.trace.store import (
    META_NAME,
    TraceWriter,
    is_whole,
    read_meta,
    read_table,
    storage_errors,
    write_meta,
)
from stepscope.trace.trace import Trace

ROWS = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "x.stepscope"
    made.mkdir()
    return made


def sample(column: Column, row: int) -> Any:
    if column.nullable and row % 3 == 2:
        return None
    values: dict[str, Any] = {
        "int64": row * 10 + 2**40,
        "int32": row - 2,
        "float64": row / 7,
        "bool": row % 2 == 0,
        "text": f"näme {row % 2}",
    }
    return values[column.type]


def sample_rows(table: str, first: int = 0, count: int = ROWS) -> dict[str, list[Any]]:
    return {
        column.name: [sample(column, row) for row in range(first, first + count)]
        for column in TABLES[table].columns
        if column.name != "id"
    }


def write(folder: Path, table: str, *batches: dict[str, Any]) -> tuple[dict[str, int], ProblemLog]:
    problems = ProblemLog()
    writer = TraceWriter(folder, problems)
    for batch in batches:
        writer.append(table, batch)
    rows = writer.close()
    write_meta(folder, Meta(source="nsys", rows=rows, problems=problems.problems()))
    return rows, problems


@pytest.mark.parametrize("table", TABLES)
def test_round_trip(table: str, folder: Path) -> None:
    rows = sample_rows(table)
    assert write(folder, table, rows)[0] == {table: ROWS}
    read = Trace(folder).arrow(table)
    assert read.schema.names == TABLES[table].column_names()
    assert read.schema.types == arrow_schema(table).types
    found = read.to_pydict()
    if "id" in found:
        assert found.pop("id") == list(range(ROWS))
    assert found == rows
    assert is_whole(folder)


def spans(starts: list[int], names: list[str] | None = None) -> dict[str, Any]:
    return {
        "api": ["runtime"] * len(starts),
        "process_id": [1] * len(starts),
        "thread_id": [1] * len(starts),
        "start_ns": starts,
        "end_ns": [start + 1 for start in starts],
        "name": names or [f"call{start}" for start in starts],
        "raw_name": ["raw"] * len(starts),
    }


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=20), max_size=6))
def test_rows_are_sorted_on_disk(tmp_path_factory: Any, batches: list[list[int]]) -> None:
    folder = tmp_path_factory.mktemp("sorted")
    write(folder, "api_call", *map(spans, batches))
    read = read_table(folder, "api_call").to_pydict()
    starts = [start for batch in batches for start in batch]
    assert read["start_ns"] == sorted(starts)
    assert read["id"] == list(range(len(starts)))
    assert read["name"] == [f"call{start}" for start in sorted(starts)]
    names = sorted(file.name for file in folder.iterdir())
    assert names == (["api_call.parquet", META_NAME] if starts else [META_NAME])


def test_equal_starts_keep_their_order(folder: Path) -> None:
    write(folder, "api_call", spans([5, 5], ["a", "b"]), spans([1, 5], ["c", "d"]))
    assert read_table(folder, "api_call", ["name"])["name"].to_pylist() == ["c", "a", "b", "d"]


def test_many_row_groups_share_one_dictionary(folder: Path) -> None:
    write(folder, "api_call", *(spans([i], [f"n{i % 3}"]) for i in range(20)))
    column = read_table(folder, "api_call", ["name"])["name"]
    dictionaries = {tuple(chunk.dictionary.to_pylist()) for chunk in column.chunks}
    assert dictionaries == {("n0", "n1", "n2")}


def test_forms_of_columns(folder: Path) -> None:
    """Lists, numpy, Arrow arrays, chunked arrays and dictionaries are all taken."""
    batch = spans([1, 2, 3])
    batch["start_ns"] = np.array([1, 2, 3], np.int32)
    batch["end_ns"] = pa.chunked_array([[2], [3, 4]])
    batch["name"] = pa.DictionaryArray.from_arrays([1, 0, None], ["a", "b"]).fill_null("z")
    batch["thread_id"] = pa.array([1, 2, 3], pa.uint16())
    write(folder, "api_call", batch)
    read = read_table(folder, "api_call").to_pydict()
    assert read["name"] == ["b", "a", "z"]
    assert read["end_ns"] == [2, 3, 4]
    assert read["thread_id"] == [1, 2, 3]
    assert read["correlation_id"] == [None] * 3


def test_negative_durations_are_counted(folder: Path) -> None:
    batch = spans([10, 20, 30])
    batch["end_ns"] = [9, 20, 5]
    rows, problems = write(folder, "api_call", batch)
    assert rows == {"api_call": 1}
    (problem,) = problems.problems()
    assert (problem.id, problem.count, problem.scope) == ("negative_duration", 2, ["api_call"])
    assert problem.severity == "data_loss"
    assert "10 ns" in problem.detail


def test_only_negative_durations(folder: Path) -> None:
    batch = spans([10])
    batch["end_ns"] = [9]
    rows, _ = write(folder, "api_call", batch)
    assert rows == {}
    assert len(Trace(folder).arrow("api_call")) == 0


def test_control_characters_are_replaced_and_counted(folder: Path) -> None:
    names = ["\x1b[31mred", "fine", "\x9bC1", "tab\t", "\x7f", "fine"]
    _, problems = write(folder, "api_call", spans([1, 2, 3, 4, 5, 6], names), spans([7], ["\x00"]))
    read = read_table(folder, "api_call", ["name"])["name"].to_pylist()
    bad = "\ufffd"
    assert read == [f"{bad}[31mred", "fine", f"{bad}C1", f"tab{bad}", bad, "fine", bad]
    (problem,) = problems.problems()
    assert (problem.id, problem.count, problem.scope) == ("invalid_text", 5, ["api_call"])


def test_a_dictionary_that_is_passed_again_is_checked_once(folder: Path) -> None:
    texts = pa.array(["a", "b"])
    batches = [
        {
            **spans([i, i]),
            "name": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), texts),
        }
        for i in range(3)
    ]
    other = pa.array(["a", "\x1b"])
    batches.append(
        {
            **spans([9, 9]),
            "name": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), other),
        }
    )
    _, problems = write(folder, "api_call", *batches)
    assert read_table(folder, "api_call")["name"].to_pylist() == ["a", "b"] * 3 + ["a", "\ufffd"]
    assert [problem.count for problem in problems.problems()] == [1]


def test_wrong_tables_and_columns(folder: Path) -> None:
    writer = TraceWriter(folder, ProblemLog())
    with pytest.raises(KeyError):
        writer.append("nothing", {})
    with pytest.raises(ValueError, match="has no column"):
        writer.append("api_call", {**spans([1]), "colour": ["red"]})
    missing = spans([1])
    del missing["name"]
    with pytest.raises(ValueError, match="needs column name"):
        writer.append("api_call", missing)
    with pytest.raises(ValueError, match="length"):
        writer.append("api_call", {**spans([1, 2]), "thread_id": [1]})
    with pytest.raises(ValueError, match=r"int|conver|parse"):
        writer.append("api_call", {**spans([1]), "thread_id": ["one"]})
    writer.append("api_call", spans([1]))
    assert writer.close() == {"api_call": 1}


def test_reading_what_is_not_there(folder: Path) -> None:
    write(folder, "api_call", spans([1]))
    trace = Trace(folder)
    assert len(trace.arrow("gpu_op")) == 0
    assert trace.arrow("gpu_op").schema.types == arrow_schema("gpu_op").types
    assert trace.rows("gpu_op") == 0
    assert len(trace.frame("gpu_op", "start_ns", "name")) == 0
    with pytest.raises(UsageError, match="no table 'nothing'"):
        trace.arrow("nothing")
    with pytest.raises(UsageError, match="no column 'colour'"):
        trace.arrow("gpu_op", ["colour"])


def test_an_abort_leaves_nothing_readable(folder: Path) -> None:
    writer = TraceWriter(folder, ProblemLog())
    writer.append("api_call", spans([1]))
    writer.abort()
    writer.abort()
    assert not is_whole(folder)
    with pytest.raises(InputError, match="not a Stepscope trace"):
        Trace(folder)


def test_what_fails_while_writing_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that writes reports to the one that appends."""

    def full(self: Any, *args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
    monkeypatch.setattr(table_file, "_SORTED_ROWS", 5)  # more are written before the end
    writer = TraceWriter(folder, ProblemLog())

    def append_many() -> None:
        for start in range(1000):
            writer.append("api_call", spans([start]))

    with pytest.raises(StorageError, match="disk is full"):
        append_many()
    writer.abort()
    with pytest.raises(StorageError, match="disk is full"):
        writer.close()


def test_a_bug_while_writing_is_not_taken_for_a_full_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, *args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", broken)
    writer = TraceWriter(folder, ProblemLog())
    writer.append("api_call", spans([1]))
    with pytest.raises(ZeroDivisionError):
        writer.close()
    writer.abort()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "disk is full; free some space"),
        (errno.EDQUOT, "disk is full"),
        (errno.EACCES, "check the folder's rights"),
        (errno.EROFS, "check the folder's rights"),
        (errno.ENOTDIR, "no folder"),
    ],
)
def test_storage_errors(number: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=message), storage_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_meta_round_trip(folder: Path) -> None:
    problems = ProblemLog()
    problems.count("negative_time", 3, scope="range", detail="first \x1b[31m")
    meta = Meta(
        source="kineto",
        origin_epoch_ns=1_790_857_026_000_000_000,
        window_end_ns=2**60,
        rank=3,
        world_size=8,
        capture_options={"with_stack": "1"},
        rows={"gpu_op": 2},
        missing=[MissingTable("gil", "not captured", "--gil")],
        problems=problems.problems(),
    )
    write_meta(folder, meta)
    assert read_meta(folder) == meta
    assert "\x1b" not in meta.problems[0].detail


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (b"null", "damaged"),
        (b"{}", "damaged"),
        (b'{"schema_version": "1"}', "damaged"),
        (b'{"schema_version": 1, "rows": {"gpu_op": "many"}}', "damaged"),
        (b'{"schema_version": 1, "source": "\xff"}', "damaged"),
        (b'{"schema_version": 99, "unknown": {}}', "newer Stepscope"),
    ],
)
def test_meta_that_cannot_be_used(content: bytes, message: str, folder: Path) -> None:
    (folder / META_NAME).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_meta(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_later_field_of_the_same_layout_is_ignored(folder: Path) -> None:
    (folder / META_NAME).write_bytes(
        msgspec.json.encode({"schema_version": SCHEMA_VERSION, "colour": "red"})
    )
    assert read_meta(folder) == Meta()


@pytest.mark.parametrize("keep", [0, 3, 4, 11, 12, 0.5, -1])
def test_a_table_that_is_cut(keep: float, folder: Path) -> None:
    write(folder, "api_call", spans([1, 2, 3]))
    file = folder / "api_call.parquet"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep) if keep == 0.5 else int(keep)])
    assert not is_whole(folder)
    with pytest.raises(InputError, match=r"api_call\.parquet is damaged"):
        Trace(folder).arrow("api_call")


def restate(folder: Path) -> Trace:
    """The trace, as if its files had been written as they are."""
    write_meta(folder, read_meta(folder))
    return Trace(folder)


def test_a_table_of_other_types(folder: Path) -> None:
    write(folder, "api_call", spans([1]))
    file = folder / "api_call.parquet"
    table = pq.read_table(file)
    at = table.schema.get_field_index("start_ns")
    pq.write_table(table.set_column(at, "start_ns", pa.array(["soon"])), file)
    with pytest.raises(InputError, match="types"):
        restate(folder).arrow("api_call")
    pq.write_table(table.drop_columns("start_ns"), file)
    with pytest.raises(InputError, match=r"damaged \(it has no column start_ns\)"):
        restate(folder).arrow("api_call")


def test_a_table_from_before_a_column_was_introduced(folder: Path) -> None:
    write(folder, "api_call", spans([1, 5]))
    file = folder / "api_call.parquet"
    pq.write_table(pq.read_table(file).drop_columns("callchain_id"), file)
    assert restate(folder).arrow("api_call")["callchain_id"].to_pylist() == [None, None]
    assert (
        Trace(folder).frame("api_call", "id", "callchain_id")["callchain_id"].tolist() == [-1] * 2
    )


def test_rows_must_be_as_many_as_stated(folder: Path) -> None:
    write(folder, "api_call", spans([1, 2, 3]))
    (folder / "api_call.parquet").unlink()
    with pytest.raises(InputError, match="it is gone"):
        Trace(folder).frame("api_call", "start_ns")
    with pytest.raises(InputError, match="0 rows instead of 3"):
        restate(folder).frame("api_call", "start_ns")


def test_frames_are_kept(folder: Path) -> None:
    write(folder, "api_call", spans([1, 2]))
    trace = Trace(folder)
    assert trace.frame("api_call", "start_ns") is trace.frame("api_call", "start_ns")
    assert trace.frame("api_call", "end_ns") is not trace.frame("api_call", "start_ns")


def test_a_column_is_held_once_whoever_asks_for_it(folder: Path) -> None:
    write(folder, "api_call", spans([1, 2]))
    trace = Trace(folder)
    one = trace.frame("api_call", "name", "start_ns")
    other = trace.frame("api_call", "end_ns", "start_ns", "name")
    assert list(other.columns) == ["end_ns", "start_ns", "name"]
    assert other["start_ns"] is one["start_ns"]
    assert other["name"] is one["name"]
    assert other.texts["name"] is one.texts["name"]
    assert trace.frame("api_call")["start_ns"] is one["start_ns"]


# ---- problems ------------------------------------------------------------------------------------


def test_problems_are_counted_by_kind() -> None:
    log = ProblemLog()
    log.count("unclosed_range", 2, scope="range", detail="first")
    log.count("unclosed_range", 3, scope="operator", detail="second")
    log.count("negative_duration", 1, scope="gpu_op")
    log.count("invalid_text", 0, scope="range")
    log.count("bad_value", -1, scope="range")
    first, second = log.problems()
    assert first.id == "negative_duration"  # the worst severity first
    assert (second.count, second.scope, second.detail) == (5, ["operator", "range"], "first")
    assert second.message == DECLARED["unclosed_range"].message
    with pytest.raises(KeyError):
        log.count("undeclared", 1, scope="range")


def test_a_long_detail_is_cut() -> None:
    log = ProblemLog()
    log.count("bad_value", 1, scope="range", detail="\x1b" + "x" * 10_000)
    (problem,) = log.problems()
    assert len(problem.detail) == 300
    assert "\x1b" not in problem.detail


@pytest.mark.parametrize("kind", DECLARED.values(), ids=lambda kind: kind.id)
def test_every_problem_says_what_to_do(kind: Any) -> None:
    assert DECLARED[kind.id] is kind
    assert kind.severity in ("info", "notice", "data_loss", "error")
    assert kind.message
    assert kind.remedy
    assert "\n" not in kind.message + kind.remedy
