"""What the commands print: the JSON contract, other formats, hostile names, odd terminals."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import CONTROL, LIMIT_S, Stepscope, forks, is_one_line, python, snapshot
from tests.support.captures import BUNDLED, DATA, unpack

import stepscope as package
from stepscope.trace.units import UNITS, figure_title

CAUSES = re.compile(r"[a-z_]+")
HOSTILE = (
    "\x1b[31mred\x1b[0m \x9b31m\x07 <script>alert(1)</script> <img src=x onerror=y> "
    "[link](javascript:x) | `code` \u202egnp.exe \u2066 @everyone &amp; \U0001f680 ü\r\nnew\t"
    "tab\x00"
)
LONG = "long_" + "x" * 100_000


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(BUNDLED, tmp_path_factory.mktemp("bundled"))


@pytest.fixture(scope="module")
def command(starved: Path, tmp_path_factory: pytest.TempPathFactory) -> Stepscope:
    """The command line with a cache that holds the bundled capture."""
    made = Stepscope(tmp_path_factory.mktemp("bundled_cache") / "cache")
    made("info", starved)
    return made


@pytest.fixture(scope="module")
def document(command: Stepscope, starved: Path) -> Any:
    return command.json("diagnose", starved)


# ---- the contract of diagnose --format json ------------------------------------------------------

NUMBER = (int, float)
CONTRACT: dict[str, Any] = {
    "schema": str,
    "trace": {
        "paths": [str],
        "source": str,
        "ranks": int,
        "devices": int,
        "steps": int,
        "steady_steps": [int],
        "step": {
            "kind": str,
            "from": str,
            "inner": list,
            "coverage_gpu": NUMBER,
            "coverage_time": NUMBER,
        },
    },
    "step_ns": {"median": int, "mean": int, "p95": int, "coefficient_of_variation": NUMBER},
    "accounting": [
        {
            "rank": int,
            "device": int,
            "wall_ns": int,
            "compute_ns": int,
            "exposed_communication_ns": int,
            "exposed_copy_ns": int,
            "memset_ns": int,
            "idle_ns": int,
            "idle_by_cause_ns": dict,
        }
    ],
    "verdict": str,
    "findings": [
        {
            "cause": str,
            "severity": str,
            "share_of_step": NUMBER,
            "time_ns_per_step": int,
            "predicted_step_ns": int,
            "prediction_low_ns": int,
            "prediction_high_ns": int,
            "ranks": [int],
            "where": {
                "range": (str, type(None)),
                "operator": (str, type(None)),
                "source": (str, type(None)),
                "function": (str, type(None)),
            },
            "message": str,
            "recommendations": [str],
            "next_capture": (str, type(None)),
            "root_cause": (str, type(None)),
            "evidence": [{"figure": str, "value": NUMBER, "unit": str, "sql": str, "rows": int}],
        }
    ],
}


def conforms(value: Any, wanted: Any, where: str = "$") -> None:
    if isinstance(wanted, dict):
        assert isinstance(value, dict), where
        for key, inner in wanted.items():
            assert key in value, f"{where}.{key}"
            conforms(value[key], inner, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(value, list), where
        for number, item in enumerate(value):
            conforms(item, wanted[0], f"{where}[{number}]")
    else:
        assert isinstance(value, wanted), (where, value)
        assert not isinstance(value, bool), where
        if isinstance(value, float):
            assert math.isfinite(value), where


def check_document(found: Any) -> None:
    conforms(found, CONTRACT)
    assert found["schema"] == "stepscope.diagnosis/2"
    trace, steps = found["trace"], found["step_ns"]
    first, last = trace["steady_steps"]
    assert 0 <= first <= last < trace["steps"]
    assert 0 < steps["median"] <= steps["p95"]
    assert len(found["accounting"]) == trace["devices"]
    for gpu in found["accounting"]:
        assert "unexplained" in gpu["idle_by_cause_ns"]
        assert all(isinstance(ns, int) for ns in gpu["idle_by_cause_ns"].values())
    for finding in found["findings"]:
        assert CAUSES.fullmatch(finding["cause"])
        assert finding["severity"] in ("high", "medium", "low")
        assert 0 <= finding["share_of_step"] <= 1
        bounds = [finding[f"prediction_{end}_ns"] for end in ("low", "high")]
        assert 0 < bounds[0] <= finding["predicted_step_ns"] <= bounds[1]
        assert finding["recommendations"]
        assert finding["evidence"]
        assert "\n" not in finding["message"]
        for figure in finding["evidence"]:
            assert figure["unit"] in UNITS
            assert figure["rows"] >= 0
    verdict = found["findings"][0]["cause"] if found["findings"] else "gpu_bound_healthy"
    assert found["verdict"] == verdict


def test_the_contract(document: Any) -> None:
    check_document(document)
    assert document["findings"]


def test_the_contract_of_kineto(stepscope: Stepscope, kineto_capture: Path) -> None:
    check_document(stepscope.json("diagnose", kineto_capture))


def test_evidence_can_be_recomputed(
    document: Any, command: Stepscope, starved: Path, stepscope: Stepscope, kineto_capture: Path
) -> None:
    checked = 0
    for runner, path, found in (
        (command, starved, document),
        (stepscope, kineto_capture, stepscope.json("diagnose", kineto_capture)),
    ):
        figures = [item for finding in found["findings"] for item in finding["evidence"]]
        statements = {item["sql"]: item["value"] for item in figures}
        for sql, value in statements.items():
            rows = runner.json("query", path, sql)["rows"]
            assert len(rows) == 1
            assert [0 if cell is None else cell for cell in rows[0]] == [value], sql
            checked += 1
    assert checked >= 6


def test_diagnose_as_markdown(document: Any, command: Stepscope, starved: Path) -> None:
    text = command("diagnose", starved, "--format", "markdown").stdout
    assert text.startswith("### ")
    for finding in document["findings"]:
        assert f"`{finding['cause']}`" in text
        for figure in finding["evidence"]:
            assert f"`{figure['sql']}`" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    for line in tables:
        assert line.endswith("|")


def test_diagnose_on_the_terminal(document: Any, command: Stepscope, starved: Path) -> None:
    text = command("diagnose", starved).stdout
    first = document["findings"][0]
    assert f"{first['predicted_step_ns'] / 1e6:.1f} ms" in text.splitlines()[0]
    assert "evidence" in text
    assert "evidence" not in command("diagnose", starved, "--no-evidence").stdout
    shown = re.findall(r"([a-z][a-z ]+) [\d.]+ (?:ms|%)", text.partition("evidence: ")[2])
    assert "idle input starvation time" in shown
    # what the lines of the finding say is not said again
    names = ("predicted_step_ns", "prediction_low_ns", "time_ns_per_step", "share_of_step")
    assert set(names) <= {e["figure"] for e in first["evidence"]}
    told = set(map(figure_title, names))
    assert not told & set(shown)
    assert all(line == line.rstrip() for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 110


# ---- the other commands --------------------------------------------------------------------------


def test_steps(document: Any, command: Stepscope, starved: Path) -> None:
    found = command.json("steps", starved)
    assert found["schema"] == "stepscope.steps/1"
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    assert len(rows) == document["trace"]["steps"]
    parts = ("compute", "exposed_communication", "exposed_copy", "memset", "idle")
    for row in rows:
        assert row["wall_ns"] == row["end_ns"] - row["start_ns"]
        assert row["wall_ns"] == sum(row[f"{part}_ns"] for part in parts)
    gpu = document["accounting"][0]
    steady = [row for row in rows if row["steady"]]
    for name in ("wall", *parts):
        assert sum(row[f"{name}_ns"] for row in steady) == gpu[f"{name}_ns"]
    shown = command("steps", starved)
    assert len(shown.stdout.splitlines()) == len(rows) + 4
    assert "rank 0" in shown.stderr


SAMPLE = (
    "SELECT name, count(*) AS n, sum(end_ns - start_ns)::BIGINT AS ns, avg(end_ns - start_ns) "
    "AS mean_ns, NULL AS nothing FROM gpu_op GROUP BY name ORDER BY ns DESC, name LIMIT 4"
)


def test_query_formats(command: Stepscope, starved: Path) -> None:
    found = command.json("query", starved, SAMPLE)
    assert found["schema"] == "stepscope.query/1"
    names = ["name", "n", "ns", "mean_ns", "nothing"]
    assert found["columns"] == names
    assert len(found["rows"]) == 4
    with sqlite3.connect(starved) as connection:
        kernels = connection.execute(
            "SELECT s.value, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1 ORDER BY 3 DESC LIMIT 1"
        ).fetchall()
    connection.close()
    assert [tuple(found["rows"][0][:3])] == kernels
    rows = list(csv.reader(io.StringIO(command("query", starved, SAMPLE, "-f", "csv").stdout)))
    assert rows[0] == names
    assert [row[:3] for row in rows[1:]] == [list(map(str, row[:3])) for row in found["rows"]]
    assert [row[4] for row in rows[1:]] == [""] * 4
    columns = command("query", starved, SAMPLE).stdout.splitlines()
    assert columns[0].split() == names
    assert len(columns) == 6
    markdown = command("query", starved, SAMPLE, "-f", "markdown").stdout.splitlines()
    assert markdown[0] == "| name | n | ns | mean\\_ns | nothing |"
    assert len(markdown) == 6


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELEC 1",
        "SELECT * FROM nowhere",
        "SELECT nothing FROM gpu_op",
        "SELECT 1; SELECT 2",
        "SELECT 'infinity'::TIMESTAMP",
        "CREATE TABLE x (a INTEGER)",
        "DROP VIEW gpu_op",
        "DELETE FROM gpu_op",
        "INSERT INTO gpu_op SELECT * FROM gpu_op",
        "WITH x AS (SELECT 1) INSERT INTO gpu_op SELECT * FROM x",
        "COPY (SELECT 1) TO '{here}/out.csv'",
        "COPY gpu_op TO '{here}/out.parquet'",
        "EXPORT DATABASE '{here}/out'",
        "ATTACH '{here}/out.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access=true",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_blob('{secret}')",
        "SELECT * FROM sniff_csv('{secret}')",
        "SELECT * FROM glob('{here}/*')",
        "SELECT * FROM read_parquet('{here}/other.parquet')",
        "SELECT * FROM parquet_metadata('{here}/other.parquet')",
        "SELECT * FROM query('COPY (SELECT 1) TO ''{here}/out.csv''')",
        "SELECT getenv('HOME')",
        "SELECT * FROM statements",
        "SELECT * FROM connection",
        "SELECT '\x1b[31m' FROM nowhere",
    ],
)
def test_query_refuses(sql: str, tmp_path: Path, command: Stepscope, starved: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    before, stored = snapshot(tmp_path), snapshot(command.cache)
    done = command("query", starved, sql.format(here=tmp_path, secret=secret), expect=2)
    assert done.stdout == ""
    assert "hunter2" not in is_one_line(done.stderr)
    assert snapshot(tmp_path) == before
    after = snapshot(command.cache)
    assert {name: content for name, (_, _, content) in after.items()} == {
        name: content for name, (_, _, content) in stored.items()
    }


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW TABLES",
        "DESCRIBE gpu_op",
        "SUMMARIZE device",
        "EXPLAIN SELECT * FROM gpu_op",
        "FROM gpu_op LIMIT 1",
        "VALUES (1, NULL)",
        "SELECT now(), uuid(), 1e400, 'nan'::DOUBLE, [1, NULL], MAP {{'k': 1}}, 'x'::BLOB",
        "SELECT INTERVAL 1 DAY, TIME '10:00', DATE '2026-01-02', 170141183460469231731::HUGEINT",
        "SELECT 1 AS a, 2 AS a WHERE false",
        "SELECT chr(27) || '[31m', chr(8238), chr(155)",
        "SELECT count(*) FROM sched UNION ALL SELECT count(*) FROM operator",
    ],
)
@pytest.mark.parametrize("format_", ["column", "csv", "json", "markdown"])
def test_query_answers(sql: str, format_: str, command: Stepscope, starved: Path) -> None:
    done = command("query", starved, sql.format(), "--format", format_)
    assert done.stderr == ""
    assert done.stdout.endswith("\n")
    allowed = {ord("\n"), *(map(ord, "\u202e\x9b") if format_ == "json" else ())}
    assert not CONTROL - allowed & set(map(ord, set(done.stdout))) - allowed
    if format_ == "json":
        assert json.loads(done.stdout)["schema"] == "stepscope.query/1"


def test_info(command: Stepscope, starved: Path) -> None:
    found = command.json("info", starved)
    assert found["schema"] == "stepscope.info/2"
    (rank_trace,) = found["traces"]
    meta = rank_trace["meta"]
    assert (rank_trace["path"], rank_trace["rank"]) == (str(starved), 0)
    assert meta["source"] == "nsys"
    assert meta["schema_version"] == 1
    assert meta["input_name"] == starved.name
    assert {missing["table"] for missing in meta["missing"]}
    count = " UNION ALL ".join(f"SELECT '{t}', count(*) FROM {t}" for t in meta["rows"])
    assert dict(command.json("query", starved, count)["rows"]) == meta["rows"]
    text = command("info", starved).stdout
    for table in meta["rows"]:
        assert table in text
    assert "missing" in text


def test_cache(tmp_path: Path, sqlite_capture: Path, kineto_capture: Path) -> None:
    runner = Stepscope(tmp_path / "cache")
    empty = runner.json("cache")
    assert (empty["entries"], empty["bytes"]) == ([], 0)
    runner("info", sqlite_capture)
    runner("info", kineto_capture)
    runner("info", sqlite_capture)  # used last
    found = runner.json("cache", "show")
    assert found["schema"] == "stepscope.cache/1"
    assert [entry["input"] for entry in found["entries"]] == [
        sqlite_capture.name,
        kineto_capture.name,
    ]
    assert found["bytes"] == sum(entry["bytes"] for entry in found["entries"]) > 0
    text = runner("cache", STEPSCOPE_CACHE_MAX_BYTES="1000000000").stdout
    assert "2 captures" in text
    assert "of 1.0 GB" in text
    runner("diagnose", sqlite_capture)
    (used, other) = runner.json("cache")["entries"]
    assert set(used["bytes_by_kind"]) == {"captures", "answers"}
    assert sum(used["bytes_by_kind"].values()) == used["bytes"]
    assert set(other["bytes_by_kind"]) == {"captures"}
    assert "answers" in runner("cache").stdout
    assert "0.0 MB freed" in runner("cache", "clear", "--kind", "timeline").stdout
    runner("cache", "clear", "--kind", "answers")
    (used, other) = runner.json("cache")["entries"]
    assert set(used["bytes_by_kind"]) == set(other["bytes_by_kind"]) == {"captures"}
    assert "freed" in runner("cache", "clear").stdout
    assert runner.json("cache")["entries"] == []
    assert "0.0 MB freed" in runner("cache", "clear").stdout
    assert "Invalid value" in is_one_line(runner("cache", "burn", expect=2).stderr)


def test_sql_that_names_no_column_is_told_in_our_words(command: Stepscope, starved: Path) -> None:
    done = command("query", starved, "SELECT nosuch FROM gpu_op", expect=2)
    assert is_one_line(done.stderr).startswith('SQL: Referenced column "nosuch" not found')


def test_help_and_version(command: Stepscope) -> None:
    from stepscope.cli.registry import commands, summary

    text = command("--help").stdout
    assert command("-h").stdout == text
    for name, one in commands().items():
        assert name in text
        assert summary(one) in " ".join(text.split())
        own = command(name, "--help").stdout
        assert own.startswith(f"Usage: stepscope {name}")
        assert "--format" in own or name == "mcp"  # a server, whose protocol is JSON
    assert command("--version").stdout == f"stepscope {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diagnoze", "x"], "did you mean 'diagnose'?"),
        (["step"], "did you mean 'steps'?"),
        (["qwertz"], "commands: run, capture, doctor"),
        (["diagnose"], "Missing argument 'PATH...'; stepscope diagnose --help shows how"),
        (["memory", "x", "--zero", "9"], "'--zero': 9 is not from 1 to 3"),
        (["memory", "x", "--fits", "abc"], "'--fits': 'abc' is no size"),
        (["whatif"], "Missing argument 'PATH...'; stepscope whatif --help"),
        (["job", "no-such-file"], "no-such-file does not exist; check the path"),
        (["job", "x", "--topology", "none.json"], "none.json: No such file or directory; check"),
        (["diagnose", "x", "--fromat", "json"], "--fromat"),
        (["diagnose", "x", "--format", "yaml"], "'yaml' is not one of"),
        (["steps", "x", "--format", "html"], "'html' is not one of"),
        (["query"], "the capture is missing, as in stepscope query CAPTURE"),
        (["query", "SELECT 1"], "the capture is missing"),
        (
            ["query", "x"],
            "the SQL is missing; after the capture write a statement, as in stepscope",
        ),
        (["query", "x", "."], 'query x . "SELECT name, count(*) FROM gpu_op'),
        (["--verbose"], "--verbose"),
        (["\x1b[31mred"], "no command"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, command: Stepscope) -> None:
    done = command(*arguments, expect=2)
    assert done.stdout == ""
    assert message in is_one_line(done.stderr)


def test_without_arguments(command: Stepscope) -> None:
    done = command(expect=2)
    assert "Explain (" in done.stdout + done.stderr


# ---- hostile names -------------------------------------------------------------------------------


def hostile_sqlite(capture: Path, target: Path) -> Path:
    target.write_bytes(capture.read_bytes())
    with sqlite3.connect(target) as connection:
        connection.execute("UPDATE StringIds SET value = ? || value", (HOSTILE,))
        connection.execute("UPDATE StringIds SET value = ? WHERE id % 7 = 0", (LONG,))
        connection.execute("UPDATE NVTX_EVENTS SET text = ? || text", (HOSTILE,))
        connection.execute("UPDATE META_DATA_CAPTURE SET value = ? || value", (HOSTILE,))
        connection.execute("UPDATE TARGET_INFO_GPU SET name = ?", (HOSTILE,))
    connection.close()
    return target


def hostile_kineto(capture: Path, target: Path) -> Path:
    document = json.loads(gzip.decompress(capture.read_bytes()))
    for number, event in enumerate(document["traceEvents"]):
        if event.get("ph") == "X" and event.get("cat") not in ("cuda_runtime", "cuda_driver"):
            event["name"] = LONG if number % 997 == 0 else HOSTILE + event["name"]
    document["deviceProperties"][0]["name"] = HOSTILE
    document["traceName"] = HOSTILE
    target.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return target


COMMANDS_AND_FORMATS = [
    ("diagnose", "terminal"),
    ("diagnose", "markdown"),
    ("diagnose", "json"),
    ("steps", "column"),
    ("info", "text"),
    ("info", "json"),
    ("query", "column"),
    ("query", "csv"),
    ("query", "json"),
    ("query", "markdown"),
]


@pytest.mark.parametrize("form", ["sqlite", "kineto"])
def test_hostile_names_come_out_clean(
    form: str, tmp_path: Path, stepscope: Stepscope, sqlite_capture: Path, kineto_capture: Path
) -> None:
    if form == "sqlite":
        path = hostile_sqlite(sqlite_capture, tmp_path / "names.sqlite")
    else:
        path = hostile_kineto(kineto_capture, tmp_path / "names.json")
    sql = (
        "SELECT name FROM range UNION SELECT name FROM gpu_op UNION SELECT name FROM "
        "operator UNION SELECT name FROM device"
    )
    for command, format_ in COMMANDS_AND_FORMATS:
        more = [sql] if command == "query" else []
        done = stepscope(command, path, *more, "--format", format_)
        text = done.stdout + done.stderr
        found = CONTROL & set(map(ord, set(text))) - {ord("\n")}
        # JSON is for programs: it keeps what changes the direction of text
        found -= set(range(0x202A, 0x206A)) if format_ == "json" else set()
        assert not found, (command, format_, found)
        if format_ == "json":
            json.loads(done.stdout)
        if format_ == "markdown":
            assert "<script" not in text
            assert "<img" not in text
            assert "@everyone" not in text
            assert "](javascript" not in text
        if format_ not in ("csv", "json"):
            assert max(map(len, text.splitlines())) < 2500
    rows = list(csv.reader(io.StringIO(stepscope("query", path, sql, "-f", "csv").stdout)))
    counted = stepscope.json("query", path, f"SELECT count(*) FROM ({sql})")["rows"][0][0]
    assert len(rows) == counted + 1
    assert any("script" in cell for row in rows for cell in row)
    assert any(row == [LONG] for row in rows)


# ---- terminals and pipes -------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8", "utf-16"])
@pytest.mark.parametrize("format_", ["terminal", "markdown", "json"])
def test_encodings(encoding: str, format_: str, command: Stepscope, starved: Path) -> None:
    # Python itself sets the streams up for one format; for the others, what forks does as it would
    run = started if format_ == "terminal" else forked
    done = run(command, "diagnose", starved, "--format", format_, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    assert "starvation" in text
    if format_ == "terminal" and encoding == "ascii":
        assert "###" in text
        assert "-> " in text
        assert "?" not in text


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "LANG": ""},
        {"NO_COLOR": "1"},
        {"FORCE_COLOR": "1", "TERM": "xterm-256color"},
        {"TERM": "dumb"},
        {"COLUMNS": "20"},
        {"COLUMNS": "nonsense", "LINES": "-3"},
    ],
)
def test_environments(environment: dict[str, str], command: Stepscope, starved: Path) -> None:
    run = started if "LC_ALL" in environment else forked
    done = run(command, "diagnose", starved, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Input starvation" in done.stdout
    assert b"\x1b" not in done.stdout


def started(
    command: Stepscope, *arguments: str | Path, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Run by a Python of its own."""
    return subprocess.run(
        python(*map(str, arguments)), capture_output=True, env=command.environment(**env),
        timeout=LIMIT_S, check=False,
    )  # fmt: skip


def forked(
    command: Stepscope, *arguments: str | Path, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Run in a child of the process that has the libraries loaded."""
    words = [*map(str, arguments)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        fork = forks().start(words, command.environment(**env), out.fileno(), err.fileno())
        code = fork.wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def on_terminal(command: Stepscope, *arguments: str, **env: str) -> str:
    """Run with standard output on a pseudo terminal."""
    done = command.on_terminal(*arguments, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_terminals(command: Stepscope, starved: Path) -> None:
    colour = {"TERM": "xterm-256color", "COLUMNS": "100"}
    coloured = on_terminal(command, "diagnose", str(starved), **colour)
    assert "\x1b[" in coloured
    for plain in ({**colour, "NO_COLOR": "1"}, {"TERM": "dumb", "COLUMNS": "100"}):
        text = on_terminal(command, "diagnose", str(starved), **plain)
        assert "\x1b" not in text  # nor bold nor dim
        assert text == re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    empty = on_terminal(command, "diagnose", str(starved), **colour, NO_COLOR="")
    assert empty == coloured  # as no-color.org says
    narrow = on_terminal(command, "diagnose", str(starved), TERM="dumb", COLUMNS="20")
    assert "Input starvation" in narrow
    prose = [line for line in narrow.splitlines() if line.startswith("   ")]
    assert max(map(len, prose)) <= 20


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "{}"],
        ["diagnose", "{}", "-f", "json"],
        ["query", "{}", "SELECT * FROM api_call", "-f", "csv"],
        ["--help"],
        ["info", "{}"],
    ],
)
def test_a_closed_pipe(arguments: list[str], command: Stepscope, starved: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        python(*(argument.format(starved) for argument in arguments)),
        stdout=writing,
        stderr=subprocess.PIPE,
        env=command.environment(),
        timeout=LIMIT_S,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_head(command: Stepscope, starved: Path) -> None:
    query = [sys.executable, "-m", "stepscope", "query", str(starved), "SELECT * FROM api_call"]
    first = subprocess.Popen(
        [*query, "-f", "csv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command.environment(),
    )
    assert first.stdout is not None
    assert first.stderr is not None
    assert first.stdout.readline().startswith(b"rank,id,")
    first.stdout.close()
    assert first.wait(LIMIT_S) == 0
    assert first.stderr.read() == b""
    first.stderr.close()


def test_output_on_a_full_disk(command: Stepscope, starved: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    for arguments in (["diagnose", str(starved)], ["info", str(starved)], ["--help"]):
        with full.open("wb") as stream:
            done = subprocess.run(
                python(*arguments),
                stdout=stream,
                stderr=subprocess.PIPE,
                env=command.environment(),
                timeout=LIMIT_S,
                check=False,
            )
        assert done.returncode == 2
        assert "cannot write the output" in is_one_line(done.stderr.decode())


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream(closed: str, command: Stepscope, starved: Path) -> None:
    number = {"stdout": 1, "stderr": 2}[closed]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {number}>&-', "sh", *python("steps", str(starved))],
        capture_output=True,
        env=command.environment(),
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stdout + done.stderr


def test_a_table_that_is_there_is_missing_in_part_only(command: Stepscope) -> None:
    capture = unpack(DATA / "kineto" / "cnn_small.json.gz")
    text = command("info", capture).stdout
    missing, part = text.partition("  missing\n")[2].split("  missing in part\n")
    assert "python_function" in missing
    assert not {"    gpu_op ", "    api_call "} & {line[:11] + " " for line in missing.splitlines()}
    assert "    gpu_op  " in part
