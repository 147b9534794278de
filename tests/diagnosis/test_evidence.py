"""Figures of the same rows are computed together."""

from __future__ import annotations

from stepscope.diagnosis.evidence import Compute, Numbers
from stepscope.trace.errors import UsageError

STEPS = "(SELECT count(*) FROM step WHERE steady)"
ROWS = "FROM idle_gap WHERE cause = 'a FROM (b'"


def test_statements_over_the_same_rows_run_as_one() -> None:
    asked: list[str] = []

    def run(sql: str) -> Numbers:
        asked.append(sql)
        return tuple(range(1, 5))

    compute = Compute(run)
    statements = [
        f"SELECT count(*) / {STEPS} {ROWS}",
        f"SELECT sum(ns), count(*) {ROWS}",
        f"SELECT round(sum(ns) / {STEPS}) {ROWS}",
    ]
    compute.together(statements)
    assert asked == [
        f"SELECT count(*) / {STEPS}, sum(ns), count(*), round(sum(ns) / {STEPS}) {ROWS}"
    ]
    assert [compute(sql) for sql in statements] == [(1,), (2, 3), (4,)]
    assert len(asked) == 1


def test_what_is_refused_together_runs_one_by_one() -> None:
    asked: list[str] = []

    def run(sql: str) -> Numbers:
        asked.append(sql)
        if "a, b" in sql:
            raise UsageError("no")
        return (1,)

    compute = Compute(run)
    statements = ["SELECT a FROM x", "SELECT b FROM x", "SELECT a FROM y", "SELECT 1"]
    compute.together(statements)
    assert asked == ["SELECT a, b FROM x"]
    assert [compute(sql) for sql in statements] == [(1,)] * 4
    assert asked[1:] == statements
