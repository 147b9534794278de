"""What a statement may not do: every way out that we know, tried through each door.

``{table}`` is a table's own file, ``{folder}`` its capture's folder, ``{out}`` a file that does not
exist, ``{secret}`` a file that no statement may read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec
import pytest
from tests.cli.command import snapshot
from tests.support.build import Build

from stepscope.api import Job
from stepscope.sql.engine import Engine
from stepscope.sql.statement import checked
from stepscope.trace.errors import UsageError

WRITES = (
    "COPY (SELECT 1) TO '{out}'",
    "COPY gpu_op TO '{table}'",
    "COPY (SELECT 1) TO '{table}' (FORMAT parquet)",
    "COPY (SELECT 1 AS x) TO '{folder}' (FORMAT parquet, PARTITION_BY (x), OVERWRITE)",
    "EXPORT DATABASE '{out}'",
    "ATTACH '{out}' AS other",
    "ATTACH '{table}' AS other",
    "CREATE TABLE gpu_op AS SELECT 1",
    "CREATE OR REPLACE VIEW gpu_op AS SELECT 1",
    "CREATE MACRO count(x) AS 1",
    "CREATE SECRET (TYPE s3, KEY_ID 'x')",
    "DROP VIEW gpu_op",
    "DELETE FROM gpu_op",
    "INSERT INTO gpu_op SELECT * FROM gpu_op",
    "UPDATE gpu_op SET id = 1",
    "MERGE INTO gpu_op USING gpu_op AS b ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE gpu_op",
    "CHECKPOINT",
    "INSTALL httpfs",
    "LOAD '{out}'",
    "SET memory_limit = '1TB'",
    "SET temp_directory = '{folder}'",
    "SET VARIABLE x = 1",
    "RESET memory_limit",
    "PRAGMA enable_profiling = 'json'",
    "PRAGMA profile_output = '{out}'",
    "PRAGMA database_list",
    "USE memory",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "CALL enable_logging(storage := 'file', storage_path := '{out}')",
    "CALL force_checkpoint()",
    "VACUUM",
    "IMPORT DATABASE '{folder}'",
    "SELECT 1; COPY (SELECT 1) TO '{out}'",
    "COPY (SELECT 1) TO '{out}'; SELECT 1",
    "WITH x AS (DELETE FROM gpu_op RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO gpu_op SELECT * FROM gpu_op RETURNING *) SELECT * FROM x",
    "SELECT * FROM (DELETE FROM gpu_op RETURNING *)",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{out}''')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM enable_logging(storage := 'file', storage_path := '{out}')",
    "SELECT * FROM enable_profiling(save_location := '{out}')",
    "SELECT * FROM force_checkpoint()",
    "SELECT write_log('x')",
    "SELECT nextval('x')",
    "DESCRIBE (COPY (SELECT 1) TO '{out}')",
    "PIVOT gpu_op ON kind USING count(*)",
    "SELECT 1 INTO x",
)
"""Statements that change something, or would."""

READS = (
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_text('{folder}/meta.json')",
    "SELECT * FROM read_blob('{table}')",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_csv_auto('{secret}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM read_json('{folder}/meta.json')",
    "SELECT * FROM read_ndjson('{folder}/meta.json')",
    "SELECT * FROM read_parquet('{table}')",
    "SELECT * FROM parquet_scan('{table}')",
    "SELECT * FROM parquet_metadata('{table}')",
    "SELECT * FROM parquet_kv_metadata('{table}')",
    "SELECT * FROM parquet_schema('{table}')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM main.read_text('{secret}')",
    "SELECT * FROM system.main.read_text('{secret}')",
    "SELECT * FROM READ_TEXT('{secret}')",
    "SELECT * FROM \"read_text\"('{secret}')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM '{table}'",
    "SELECT * FROM '{folder}/*.parquet'",
    'SELECT * FROM "{table}"',
    "FROM '{table}'",
    "TABLE '{table}'",
    "DESCRIBE '{table}'",
    "DESCRIBE SELECT * FROM read_text('{secret}')",
    "SUMMARIZE '{table}'",
    "SUMMARIZE SELECT * FROM read_text('{secret}')",
    "SHOW '{table}'",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "SELECT 1 WHERE EXISTS (FROM read_text('{secret}'))",
    "SELECT 1 IN (SELECT size FROM read_text('{secret}'))",
    "WITH x AS (FROM read_text('{secret}')) SELECT * FROM x",
    "WITH x AS MATERIALIZED (FROM read_text('{secret}')) SELECT 1",
    "SELECT * FROM gpu_op, LATERAL (SELECT * FROM read_text('{secret}'))",
    "SELECT * FROM gpu_op JOIN read_text('{secret}') ON true",
    "SELECT 1 UNION ALL SELECT size FROM read_text('{secret}')",
    "SELECT [x FOR x IN (SELECT list(content) FROM read_text('{secret}'))]",
    "SELECT 1 ORDER BY (SELECT size FROM read_text('{secret}'))",
    "SELECT 1 LIMIT (SELECT size FROM read_text('{secret}'))",
    "SELECT count(*) FILTER ((SELECT size > 0 FROM read_text('{secret}')))",
    "SELECT sum(1) OVER (ORDER BY (SELECT size FROM read_text('{secret}')))",
    "SELECT list_transform([1], lambda x: (SELECT size FROM read_text('{secret}')))",
    "VALUES ((SELECT size FROM read_text('{secret}')))",
    "PIVOT read_text('{secret}') ON size IN (1) USING count(*)",
    "UNPIVOT read_text('{secret}') ON size",
    'WITH "{table}" AS (SELECT 1) SELECT * FROM "{table}"',
    "SELECT * FROM (WITH \"{table}\" AS (SELECT 1) SELECT 1), '{table}'",
    "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
    "SELECT * FROM query_table('gpu_op')",
    "SELECT json_serialize_plan('SELECT * FROM read_text(''{secret}'')')",
    "SELECT getenv('HOME')",
    "SELECT current_setting('home_directory')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM duckdb_logs",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM python_map_function(1)",
    "SELECT * FROM seq_scan(1)",
    "SELECT __internal_decompress_string(1)",
    "SELECT * FROM 'https://example.org/x.parquet'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT * FROM 'md:x'",
    "SELECT * FROM 'file:{secret}'",
    "SELECT * FROM read_text(['{secret}'])",
    "SELECT * FROM secret",
    "SELECT * FROM sys.modules",
)
"""Statements that read what is no table."""

PREFIXES = (
    "",
    "EXPLAIN ",
    "EXPLAIN ANALYZE ",
    "EXPLAIN (ANALYZE) ",
    "EXPLAIN (FORMAT json) ",
    "EXPLAIN (ANALYZE, FORMAT json) ",
    "EXPLAIN EXPLAIN ANALYZE ",
    "eXpLaIn/**/analyze\n",
    "/* EXPLAIN */ EXPLAIN -- SELECT 1\n ANALYZE ",
    "EXPLAIN /* /* */ SELECT 1 */ ANALYZE ",
    "EXPLAIN (SELECT 1) ",
    "; EXPLAIN ANALYZE ",
    "SELECT 1; EXPLAIN ANALYZE ",
    "\ufeff",
)


class Place:
    """A capture of one kernel beside a secret."""

    def __init__(self, folder: Path) -> None:
        b = Build()
        b.kernel(0, 10)
        (folder / "capture.stepscope").mkdir(parents=True)
        self.trace = b.trace(folder / "capture.stepscope")
        self.job = Job([self.trace.folder])
        self.folder = folder
        secret = folder / "secret.csv"
        secret.write_text("word\nsecret\n")
        self.words = {
            "table": self.trace.folder / "gpu_op.parquet",
            "folder": self.trace.folder,
            "out": folder / "out.parquet",
            "secret": secret,
        }

    def sql(self, text: str) -> str:
        return text.format_map(self.words)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("sandbox"))


@pytest.fixture
def untouched(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(place.folder)
    before = snapshot(place.folder)
    yield
    assert snapshot(place.folder) == before


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("text", WRITES + READS)
def test_there_is_no_way_out(text: str, place: Place) -> None:
    for prefix in PREFIXES:
        with pytest.raises(UsageError) as refused:
            place.job.query(prefix + place.sql(text))
        assert "\n" not in str(refused.value)
        assert "secret\n" not in str(refused.value)
    count = place.job.query("SELECT count(*) AS n FROM gpu_op").to_pydict()
    assert count == {"n": [1]}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT 1) TO '{out}'",
        "ATTACH '{out}' AS other",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/new.parquet'",
        "FROM read_text('{secret}')",
        "FROM read_text('{folder}/meta.json')",
        "FROM glob('{folder}/*')",
        "FROM '{secret}'",
        "FROM secret",
        "FROM read_parquet('{folder}/*.parquet')",
        "FROM read_text('https://example.org/x')",
        "CALL enable_logging(storage := 'file', storage_path := '{out}')",
        "INSTALL httpfs",
        "LOAD '{secret}'",
        "SET memory_limit = '1TB'",
        "SET temp_directory = '{folder}'",
        "SET enable_external_access = true",
        "SET allowed_paths = ['{secret}']",
        "RESET memory_limit",
    ],
)
def test_without_our_check_duckdb_itself_is_shut_in(text: str, place: Place) -> None:
    """Whatever passes for a SELECT one day opens no file but the tables', and no setting."""
    secret = [1]  # what Python's variables hold is not found either
    connection = Engine([(0, place.trace)])._connect()
    with pytest.raises(duckdb.Error):
        connection.execute(place.sql(text)).fetchall()
    assert secret


def test_every_table_function_that_we_did_not_look_at_is_refused(place: Place) -> None:
    looked_at = {
        *("range", "generate_series", "unnest", "repeat", "json_each", "json_tree"),
        *("duckdb_columns", "duckdb_tables", "duckdb_views", "duckdb_functions"),
    }
    listed = duckdb.connect().execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE function_type IN ('table', 'table_macro')"
    )
    others = {name for (name,) in listed.fetchall()} - looked_at
    assert len(others) > 50
    for name in others:
        with pytest.raises(UsageError, match="declared tables only"):
            place.job.query(f'SELECT * FROM "{name}"()')


@pytest.mark.usefixtures("untouched")
def test_a_hostile_diagnosis_does_nothing_through_verify(
    place: Place, bundled: tuple[Job, bytes]
) -> None:
    job, made = bundled
    report = json.loads(made)
    hostile = [prefix + place.sql(text) for text in WRITES + READS for prefix in PREFIXES[:3]]
    report["evidence"] = [
        {"figure": f"f{n}", "value": 0, "unit": "ns", "sql": sql, "rows": 1}
        for n, sql in enumerate(hostile)
    ]
    result = job.verify(json.dumps(report).encode())
    answer = {item.figure: item for item in result.differences if item.where == "evidence"}
    assert set(answer) == {f"f{n}" for n in range(len(hostile))}
    assert {item.recomputed for item in answer.values()} == {None}


@pytest.fixture(scope="module")
def bundled() -> tuple[Job, bytes]:
    from stepscope.api.inputs import bundled_capture

    job = Job([bundled_capture()])
    return job, msgspec.json.encode(job.diagnose())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT kind FROM gpu_op",
        "select KIND from GPU_OP",
        "FROM gpu_op",
        "TABLE gpu_op",
        "SELECT * FROM main.gpu_op",
        "SELECT * FROM memory.main.gpu_op",
        "SHOW TABLES",
        "DESCRIBE gpu_op",
        "SHOW gpu_op",
        "SUMMARIZE gpu_op",
        "DESCRIBE SELECT id FROM gpu_op",
        "EXPLAIN SELECT * FROM gpu_op",
        "EXPLAIN ANALYZE SELECT * FROM gpu_op",
        "-- first\nEXPLAIN (FORMAT json) SELECT * FROM gpu_op",
        "VALUES (1), (2)",
        "SELECT 1 -- ; COPY",
        "SELECT 1;",
        "SELECT * FROM information_schema.columns WHERE table_name = 'gpu_op'",
        "SELECT * FROM duckdb_columns() WHERE table_name = 'gpu_op'",
        "SELECT * FROM duckdb_tables",
        "WITH a AS (WITH b AS (SELECT id FROM gpu_op) FROM b) SELECT * FROM a",
        'WITH "of mine" AS (SELECT 1) FROM "of mine"',
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) FROM t",
        "SELECT * FROM range(3) r(i), generate_series(1, 2), unnest([1, 2]) u(x)",
        "SELECT * FROM (VALUES (1, 2)) v(a, b)",
        "PIVOT gpu_op ON kind IN ('kernel') USING count(*)",
        "UNPIVOT (SELECT id, start_ns FROM gpu_op) ON id, start_ns",
        "SELECT kind, count(*) FROM gpu_op GROUP BY ROLLUP (kind) HAVING count(*) > 0 ORDER BY ALL",
        "SELECT DISTINCT ON (kind) * FROM gpu_op QUALIFY row_number() OVER (ORDER BY id) = 1",
        "SELECT * FROM gpu_op a ASOF JOIN gpu_op b ON a.start_ns >= b.start_ns LIMIT 10%",
        "SELECT * FROM gpu_op USING SAMPLE 1 ROWS",
        "SELECT 1 AS a UNION ALL BY NAME SELECT 2 AS a EXCEPT SELECT 3 INTERSECT SELECT 4",
        "SELECT id::DECIMAL(9, 2), CAST({{'a': 1}} AS STRUCT(a INTEGER)), [1]::INT[], "
        "'x'::ENUM ('x', 'y'), INTERVAL 1 DAY, CASE WHEN true THEN 1 END, "
        "list_transform([1], lambda x: x + 1), [x FOR x IN [1, 2] IF x > 1], "
        "regexp_matches('a', 'b'), 'read_text', COLUMNS('kind') FROM gpu_op",
    ],
)
def test_what_people_ask_is_answered(sql: str, place: Place) -> None:
    assert place.job.query(sql.format()).num_columns


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM gpu_opp", "there is no table 'gpu_opp'; did you mean 'gpu_op'?"),
        ("SELECT * FROM index", "there is no table 'index'; "),
        ("SELECT * FROM nope", "there is no table 'nope'; tables are gpu_op, api_call, "),
        ("SELECT * FROM kernel", "there is no table 'kernel'; tables are gpu_op, api_call, "),
        ("SELECT * FROM steps", "did you mean 'step'?"),
        ("SELECT * FROM pg_index", "there is no table 'pg_index'; "),
        ("DESCRIBE gpu_opp", "did you mean 'gpu_op'?"),
        ("SHOW gpu_opp", "did you mean 'gpu_op'?"),
        ("SELECT kid FROM gpu_op", '"kind"'),
        ("SELECT " + "(" * 50_000 + "1" + ")" * 50_000, "depth"),
        ("FROM " + "(FROM " * 5_000 + "gpu_op" + ")" * 5_000, "nested too deeply"),
        ("SELECT " + "1, " * 100_000, "longer than 200,000 characters"),
        ("", "the statement is empty"),
        (" ; ", "the statement is empty"),
    ],
)
def test_what_is_wrong_is_said(sql: str, message: str, place: Place) -> None:
    with pytest.raises(UsageError) as refused:
        place.job.query(sql)
    assert message in str(refused.value)
    offered = str(refused.value).partition(";")[2]
    assert not [word for word in ("pg_", "sqlite_", "duckdb_") if word in offered]


def test_what_passed_is_refused_where_its_table_is_not_known() -> None:
    """A statement is checked once; the tables that may be read are part of the question."""
    parser = duckdb.connect(":memory:")
    for _ in range(2):
        assert checked("SELECT * FROM one", ["one", "two"], parser).tables == {"one"}
        with pytest.raises(UsageError, match="no table"):
            checked("SELECT * FROM one", ["two"], parser)
