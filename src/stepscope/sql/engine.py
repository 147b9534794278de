"""Open DuckDB over the Parquet files of one or several traces, read-only and shut in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from stepscope.trace.errors import UsageError
from stepscope.trace.schema import TABLES, arrow_schema
from stepscope.trace.store import damaged

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from stepscope.trace.trace import Trace

_INTERRUPT_POLL_S = 0.05
_WORD = re.compile(r"[A-Za-z_]\w*")


class Engine:
    """Runs SQL over the canonical tables of some ranks.

    Every canonical table is a view with an additional first column ``rank``; a table that no
    rank holds is there without rows. Statements can read nothing else: no files, no network, no
    extensions.

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
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._views: set[str] = set()

    def tables(self) -> list[str]:
        """Names of all tables that a statement may use."""
        return list(dict.fromkeys((*TABLES, *self._derived)))

    def query(self, sql: str) -> pa.Table:
        """Run one statement that returns rows.

        Raises:
            UsageError: the statement is wrong, with DuckDB's reason in one line.
        """
        import duckdb

        connection = self._open(sql)
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in (
                duckdb.StatementType.SELECT,
                duckdb.StatementType.EXPLAIN,
            ):
                raise UsageError("give exactly one SELECT statement; traces are never changed")
            return _interruptible(connection, sql)
        except duckdb.Error as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"SQL: {reason[:400]}") from error

    def _open(self, sql: str) -> duckdb.DuckDBPyConnection:
        """The connection, with views for the tables that the statement names."""
        wanted = {word.lower() for word in _WORD.findall(sql)}
        names = {name for name in self.tables() if name in wanted}
        if re.search(r"information_schema|duckdb_|show\s|describe\s", sql, re.IGNORECASE):
            names = set(self.tables())
        if self._connection is None:
            self._connection = self._connect()
        for name in sorted(names - self._views):
            self._show(name, self._connection)
            self._views.add(name)
        return self._connection

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """A connection that reads the traces' folders and nothing else, without tables yet."""
        import duckdb

        shut_in: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        connection = duckdb.connect(":memory:", config=shut_in)
        paths = [str(trace.folder.resolve()) for _, trace in self._ranks]
        # a pattern is compared as it is written, before it is resolved
        folders = [_quoted(p) for path in paths for p in dict.fromkeys((path, _literally(path)))]
        connection.execute("SET python_enable_replacements=false")
        connection.execute(f"SET allowed_directories=[{', '.join(folders)}]")
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
            read = f"read_parquet({_quoted(_literally(str(file)))}, hive_partitioning=false)"
            query = f"SELECT {rank}::BIGINT AS rank, * FROM {read}"
            try:
                found = connection.execute(f"SELECT count(*) FROM {read}").fetchone()
            except duckdb.Error as error:
                raise damaged(file, " ".join(str(error).split())[:300]) from error
            if found != (trace.rows(name),):
                raise damaged(file, "it holds another number of rows than it should")
            parts.append(query)
        return " UNION ALL ".join(parts)


def _interruptible(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """Run a statement in a thread of its own, so that this one hears Ctrl+C meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: connection.sql(sql).to_arrow_table())
        try:
            return future.result()
        except KeyboardInterrupt:
            while not future.done():
                connection.interrupt()
                wait([future], timeout=_INTERRUPT_POLL_S)
            raise


def _literally(path: str) -> str:
    """A path without characters that would make it a pattern."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def _without_rows(name: str) -> pa.Table:
    import pyarrow as pa

    fields = [pa.field("rank", pa.int64()), *arrow_schema(name)]
    return pa.schema(fields).empty_table()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
