"""What a statement is, seen by DuckDB's own parser: only a SELECT over the declared tables passes.

A list of what is allowed, never one of what is forbidden: whatever a later DuckDB brings (data
changed inside WITH, another function that reads files) is refused until somebody has looked at it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    import duckdb

LONGEST: Final = 200_000
"""Characters of a statement: the parser's work and its depth grow with them."""
_SPACE: Final = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_CHOICE: Final = r"(?:ANALYZE|FORMAT\s+\w+)"
_EXPLAIN: Final = re.compile(
    rf"{_SPACE}*EXPLAIN\b{_SPACE}*(ANALYZE\b|\(\s*{_CHOICE}(?:\s*,\s*{_CHOICE})*\s*\))?",
    re.IGNORECASE | re.DOTALL,
)
_PARTS: Final = frozenset(
    {
        *("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"),
        *("BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "COLUMN_DATA"),
        *("EMPTY", "EMPTY_FROM", "PIVOT", "SHOW_REF"),
        *("ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER"),
        *("ORDER_DEFAULT", "ASCENDING", "DESCENDING"),
    }
)
"""Every part that a SELECT is made of, as the parser names it, beside expressions."""
_WITHOUT_PARTS: Final = frozenset({"cast_type", "type_info", "sample_size"})
_CATALOG: Final = frozenset({"duckdb_columns", "duckdb_tables", "duckdb_views", "duckdb_functions"})
_TABLE_FUNCTIONS: Final = frozenset(
    {"range", "generate_series", "unnest", "repeat", "json_each", "json_tree", *_CATALOG}
)
_FORBIDDEN: Final = frozenset(
    {
        *("write_log", "nextval", "setval", "currval", "setseed", "sleep_ms", "pg_sleep"),
        *("current_setting", "getenv", "getvariable", "json_serialize_plan", "query"),
    }
)
"""Functions of one row that do more than compute, or tell of more than the tables."""
_FORBIDDEN_STARTS: Final = ("__internal", "read_", "parquet_", "glob", "file_")
_SPECIAL: Final = frozenset({"tables", "databases", "__show_tables_expanded", "schemas"})
"""What SHOW knows beside tables."""
_FILE_LIKE: Final = re.compile(r"[./\\:*?\[]")
"""A name with one of these may be a file to DuckDB where the WITH of that name does not reach."""
_NEAR: Final = 0.75
"""Similarity (``difflib``) from which on a table may be what was meant: a letter or two apart."""
_MOST_KEPT: Final = 1024
_LONGEST_KEPT: Final = 4096
_passed: Final[dict[tuple[str, tuple[str, ...]], Statement]] = {}
"""Statements that passed: what one is follows from its text and the names of the tables alone, and
to parse one takes as long as to run most of those that evidence consists of."""


@dataclass(frozen=True)
class Statement:
    """A statement that may run.

    Attributes:
        text: what is run.
        tables: the declared tables that it reads.
    """

    text: str
    tables: frozenset[str]


def checked(text: str, known: Collection[str], parser: duckdb.DuckDBPyConnection) -> Statement:
    """Let a statement pass if it is one SELECT over the declared tables, or EXPLAIN of one.

    Args:
        text: as the user wrote it.
        known: names of the declared tables.
        parser: any connection; it is asked what the statement means, and runs nothing.

    Raises:
        UsageError: it is something else, reads something else, or does not parse.
    """
    asked = (text, tuple(known))
    if (passed := _passed.get(asked)) is not None:
        return passed
    if len(text) > LONGEST:
        raise UsageError(f"the statement is longer than {LONGEST:,} characters; shorten it")
    prefix, inner = "", text
    if match := _EXPLAIN.match(text):
        prefix, inner = f"EXPLAIN {match[1] or ''} ", text[match.end() :]
    statements = _parsed(inner, parser)
    if len(statements) != 1:
        raise _no_select("" if inner.strip(" \t\r\n;") else "; the statement is empty")
    check = _Check(known)
    check.all_of(statements[0])
    found = Statement(prefix + inner, frozenset(check.tables))
    if len(text) <= _LONGEST_KEPT:
        if len(_passed) >= _MOST_KEPT:
            _passed.clear()
        _passed[asked] = found
    return found


def _parsed(text: str, parser: duckdb.DuckDBPyConnection) -> list[Any]:
    # all of it: a result that is not fetched to its end keeps the connection busy
    ((found,),) = parser.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()
    try:
        facts = msgspec.json.decode(found)
    except (RecursionError, msgspec.DecodeError) as error:
        raise UsageError("the statement is nested too deeply; make it simpler") from error
    if facts["error"]:
        if facts.get("error_type") == "not implemented" and "SELECT" in facts["error_message"]:
            raise _no_select()
        reason = " ".join(str(facts["error_message"]).split())
        raise UsageError(f"SQL: {reason[:400]}")
    statements: list[Any] = facts["statements"]
    return statements


def _no_select(more: str = "") -> UsageError:
    return UsageError(f"give exactly one SELECT statement; traces are never changed{more}")


class _Check:
    """Goes through a parsed statement.

    Args:
        known: names of the declared tables.

    Attributes:
        tables: those that the statement reads.
    """

    def __init__(self, known: Collection[str]) -> None:
        self._known = known
        self._named: set[str] = set()
        self.tables: set[str] = set()

    def all_of(self, statement: Any) -> None:
        """Check every part of a statement."""
        parts = list(_parts(statement))
        for part in parts:
            named = (entry["key"].lower() for entry in part.get("cte_map", {}).get("map", []))
            self._named.update(named)
            if part.get("type") == "RECURSIVE_CTE_NODE":
                self._named.add(f"recurring.{part.get('cte_name', '').lower()}")
        for part in parts:
            self._one(part)

    def _one(self, part: dict[str, Any]) -> None:
        kind = part.get("type")
        if "class" in part:
            if isinstance(name := part.get("function_name"), str):
                _scalar(name.lower())
            return
        if not isinstance(kind, str):
            return
        if kind not in _PARTS:
            raise _no_select(f" ({kind.replace('_', ' ').lower()[:40]} is no part of one)")
        if kind == "TABLE_FUNCTION":
            self._table_function(part["function"]["function_name"].lower())
        elif kind == "BASE_TABLE":
            self._table(part)
        elif kind == "SHOW_REF":
            self._shown(part)

    def _table_function(self, name: str) -> None:
        if name not in _TABLE_FUNCTIONS:
            raise UsageError(
                f"a statement reads the declared tables only, not {name[:60]}(...); SHOW TABLES "
                "lists them"
            )
        if name in _CATALOG:
            self.tables.update(self._known)

    def _table(self, part: dict[str, Any]) -> None:
        name, schema = part["table_name"], part.get("schema_name", "").lower()
        lower = name.lower()
        if schema == "information_schema" or (schema in ("", "main") and lower in _CATALOG):
            self.tables.update(self._known)
        elif schema in ("", "main") and lower in self._known:
            self.tables.add(lower)
        elif schema == "recurring" and f"recurring.{lower}" in self._named:
            pass  # what a recursive WITH has found so far
        elif schema or lower not in self._named or _FILE_LIKE.search(name):
            self._unknown(f"{schema}.{name}" if schema else name)

    def _shown(self, part: dict[str, Any]) -> None:
        name = part.get("table_name", "").strip('"').lower()
        if not name or name in _SPECIAL:
            if part.get("query") is None:
                self.tables.update(self._known)
        elif name in self._known:
            self.tables.add(name)
        else:
            self._unknown(name)

    def _unknown(self, name: str) -> None:
        near = difflib.get_close_matches(name.lower(), sorted(self._known), n=1, cutoff=_NEAR)
        hint = f"did you mean {near[0]!r}?" if near else f"tables are {', '.join(self._known)}"
        raise UsageError(f"SQL: there is no table {name[:80]!r}; {hint}")


def _scalar(name: str) -> None:
    if name in _FORBIDDEN or name.startswith(_FORBIDDEN_STARTS):
        raise UsageError(f"a statement only computes: {name[:60]}(...) is not allowed in it")


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    """All objects in a parsed statement that may name something."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict):
            yield found
            if found.get("class") != "CONSTANT":
                waiting += [item for key, item in found.items() if key not in _WITHOUT_PARTS]
