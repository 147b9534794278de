"""A statement ends: in time, in memory, also one that heeds no interrupt."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import Stepscope, is_one_line

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.sql import limits
from stepscope.trace.errors import LimitError, UsageError

ENDLESS = (
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b",
    "SELECT sleep FROM (SELECT count(*) AS sleep FROM range(10000000000000))",
)
HEEDLESS = "SELECT levenshtein(repeat('a', 10000000), repeat('b', 10000000))"
"""One piece of work of days, in which DuckDB does not look for an interrupt."""
LARGE = (
    "SELECT a.range FROM range(1000000000) a ORDER BY hash(a.range)",
    "SELECT range FROM range(10000000000)",  # the answer itself
    "SELECT list(range) FROM range(1000000000)",
    "SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)",
)


@pytest.fixture(scope="module")
def job() -> Job:
    return Job([bundled_capture()])


@pytest.mark.parametrize("sql", ENDLESS)
def test_an_endless_statement_ends(sql: str, job: Job) -> None:
    with pytest.raises(LimitError, match=r"^the statement was ended after 0\.2 s; "):
        job.query(sql, timeout_s=0.2)
    assert job.query("SELECT count(*) AS n FROM gpu_op").to_pydict()["n"][0] > 5000


@pytest.mark.parametrize("sql", LARGE)
def test_a_large_statement_ends_without_a_file(
    sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_QUERY_MEMORY", "64MB")
    monkeypatch.chdir(tmp_path)
    job = Job([bundled_capture()])
    with pytest.raises(LimitError, match="it needs more than 64 MB of memory; "):
        job.query(sql)
    assert list(tmp_path.iterdir()) == []
    assert job.query("SELECT count(*) AS n FROM gpu_op").to_pydict()["n"][0] > 5000


def test_the_command_ends_also_where_no_interrupt_is_heeded(reader: Stepscope) -> None:
    done = reader("query", bundled_capture(), HEEDLESS, "--timeout", "0.1", expect=2)
    assert done.stdout == ""
    assert is_one_line(done.stderr).startswith("the statement was ended after 0.1 s; ")
    variable = {"STEPSCOPE_QUERY_TIMEOUT": "0.1"}
    done = reader("query", bundled_capture(), ENDLESS[0], expect=2, **variable)
    assert "after 0.1 s" in is_one_line(done.stderr)


def hostile(job: Job, statements: list[str]) -> bytes:
    """A stored diagnosis with some statements."""
    report = json.loads(msgspec.json.encode(job.diagnose()))
    report["evidence"] = [
        {"figure": f"f{n}", "value": 0, "unit": "ns", "sql": sql, "rows": 1}
        for n, sql in enumerate(statements)
    ]
    return json.dumps(report).encode()


def test_verifying_ends(job: Job, tmp_path: Path, reader: Stepscope) -> None:
    report = tmp_path / "report.json"
    report.write_bytes(hostile(job, [ENDLESS[0]]))
    words = ["verify", report, bundled_capture(), "--timeout", "0.5"]
    done = reader(*words, expect=2)
    assert done.stdout == ""
    assert "the report's statements took more than 0.5 s" in is_one_line(done.stderr)


def test_the_time_of_verifying_is_that_of_all_statements(job: Job) -> None:
    """Many that each stay below the limit do not add up to for ever."""
    some = [f"SELECT count(*) FROM range({10_000_000 + n}), range(20)" for n in range(1000)]
    with pytest.raises(LimitError, match="took more than 1 s"):
        job.verify(hostile(job, some), timeout_s=1)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_no_such_time(value: float, job: Job) -> None:
    with pytest.raises(UsageError, match="give seconds above 0"):
        job.query("SELECT 1", timeout_s=value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("STEPSCOPE_QUERY_TIMEOUT", "soon", "no number of seconds"),
        ("STEPSCOPE_QUERY_TIMEOUT", "0", "give seconds above 0"),
        ("STEPSCOPE_QUERY_TIMEOUT", "nan", "give seconds above 0"),
        ("STEPSCOPE_QUERY_MEMORY", "much", "give a size of at least 32 MB, such as 4GB"),
        ("STEPSCOPE_QUERY_MEMORY", "1MB", "at least 32 MB"),
        ("STEPSCOPE_QUERY_MEMORY", "-4GB", "at least 32 MB"),
        ("STEPSCOPE_QUERY_MEMORY", "9999999999999TB", "at least 32 MB"),
    ],
)
def test_wrong_variables(
    name: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=message) as refused:
        limits.from_environment()
    assert str(refused.value).startswith(f"{name} is ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64MB", 64 << 20), ("1.5 GiB", 3 << 29), ("100000000", 100_000_000), ("2g", 2 << 30)],
)
def test_sizes(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_QUERY_MEMORY", text)
    assert limits.from_environment().memory_bytes == expected
