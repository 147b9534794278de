"""Open DuckDB over the Parquet files of one or several traces, read-only and shut in."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.sql.limits import Limits, from_environment, limited, too_large
from stepscope.sql.statement import Statement, checked
from stepscope.trace.errors import LimitError, UsageError
from stepscope.trace.schema import TABLES, arrow_schema
from stepscope.trace.store import damaged, table_path

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from stepscope.trace.trace import Trace


class Engine:
    """Runs SQL over the canonical tables of some ranks.

    Every canonical table is a view with an additional first column ``rank``; a table that no
    rank holds is there without rows. Only a SELECT runs (:mod:`stepscope.sql.statement`). DuckDB
    itself is shut in besides: it may open the tables' files and no others, has no network, no
    extensions and no temporary files, and its settings are locked.

    Args:
        ranks: rank and trace of each member.
        derived: tables that are computed on demand, by name; one with the name of a canonical
            table stands for it.
    """

    def __init__(
        self,
        ranks: list[tuple[int, Trace]],
        derived: Mapping[str, Callable[[], pa.Table]] | None = None,
    ) -> None:
        self._ranks = ranks
        self._derived = dict(derived or {})
        self._tables: dict[str, pa.Table] = {}
        self.limits = from_environment()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._views: set[str] = set()
        self.spent_s = 0.0
        """Seconds that statements took so far, without the making of the tables that they read."""

    def tables(self) -> list[str]:
        """Names of all tables that a statement may use."""
        return list(dict.fromkeys((*TABLES, *self._derived)))

    def query(self, sql: str, timeout_s: float | None = None) -> pa.Table:
        """Run one statement that returns rows.

        Args:
            sql: a SELECT.
            timeout_s: seconds that it may take; by default what the environment says.

        Raises:
            UsageError: the statement is wrong, with DuckDB's reason in one line.
            LimitError: it takes too much time or memory.
        """
        import duckdb

        limits = self.limits.within(timeout_s)
        if self._connection is None:
            self._connection = self._connect()
        statement = checked(sql, self.tables(), self._connection)
        self._open(statement, self._connection)
        try:
            return self._run(statement.text, self._connection, limits)
        except duckdb.OutOfMemoryException as error:
            raise too_large(limits) from error
        except duckdb.Error as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"SQL: {reason[:400]}") from error

    def _run(self, text: str, connection: duckdb.DuckDBPyConnection, limits: Limits) -> pa.Table:
        began = time.monotonic()
        try:
            return limited(lambda: connection.sql(text).to_arrow_table(), connection, limits)
        except (LimitError, KeyboardInterrupt):
            self._connection = None  # the statement may still run on it
            self._views = set()
            raise
        finally:
            self.spent_s += time.monotonic() - began

    def _open(self, statement: Statement, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the tables that a statement reads known to the connection."""
        for name in sorted(statement.tables - self._views):
            self._show(name, connection)
            self._views.add(name)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """A connection that reads the traces' tables and nothing else, without views yet."""
        import duckdb

        shut_in: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": "",  # else a large statement writes beside whatever it is called in
            "memory_limit": f"{self.limits.memory_bytes >> 20}MiB",
        }
        connection = duckdb.connect(":memory:", config=shut_in)
        files = [str(file) for _, trace in self._ranks for file in _files(trace)]
        # a pattern is compared as it is written, before it is resolved
        paths = [quoted(p) for file in files for p in dict.fromkeys((file, literally(file)))]
        connection.execute("SET python_enable_replacements=false")
        connection.execute(f"SET allowed_paths=[{', '.join(paths)}]")
        connection.execute("SET enable_external_access=false")
        connection.execute("SET lock_configuration=true")
        return connection

    def _show(self, name: str, connection: duckdb.DuckDBPyConnection) -> None:
        """Make one table known to a connection."""
        if name in self._derived:
            if name not in self._tables:
                self._tables[name] = self._derived[name]()
            connection.register(name, self._tables[name])
        elif view := self._view(name, connection):
            connection.execute(f"CREATE VIEW {name} AS {view}")
        else:
            connection.register(name, _without_rows(name))

    def _view(self, name: str, connection: duckdb.DuckDBPyConnection) -> str:
        """The statement over the ranks' files; empty when no rank holds the table."""
        import duckdb

        parts = []
        for rank, trace in self._ranks:
            if not trace.rows(name):
                continue
            file = trace.file(name).resolve()  # checked: DuckDB itself notices no damage
            read = f"read_parquet({quoted(literally(str(file)))}, hive_partitioning=false)"
            query = f"SELECT {rank}::BIGINT AS rank, * FROM {read}"
            try:
                found = connection.execute(f"SELECT count(*) FROM {read}").fetchall()
            except duckdb.Error as error:
                raise damaged(file, " ".join(str(error).split())[:300]) from error
            if found != [(trace.rows(name),)]:
                raise damaged(file, "it holds another number of rows than it should")
            parts.append(query)
        return " UNION ALL ".join(parts)


def _files(trace: Trace) -> list[Path]:
    """The files of a trace's tables, without those that hold no row."""
    return [table_path(trace.folder, name).resolve() for name in TABLES if trace.rows(name)]


def literally(path: str) -> str:
    """A path without characters that would make it a pattern."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def _without_rows(name: str) -> pa.Table:
    import pyarrow as pa

    fields = [pa.field("rank", pa.int64()), *arrow_schema(name)]
    return pa.schema(fields).empty_table()


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
