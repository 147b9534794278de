"""Open DuckDB over the Parquet files of one or several traces, read-only and shut in."""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stepscope.sql.database import connected
from stepscope.sql.limits import Limits, from_environment, limited, too_large
from stepscope.sql.statement import checked
from stepscope.trace.errors import LimitError, UsageError
from stepscope.trace.schema import TABLES, arrow_schema
from stepscope.trace.store import damaged, table_path

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from stepscope.trace.trace import Trace

T = TypeVar("T")

MANY_ROWS: Final = 1 << 17
"""Up to so many rows one thread is as quick as several, and adds in the order of the rows."""
_KIND: Final = re.compile(r"^(?:[A-Z]\w+ )+Error: ")
"""What DuckDB calls the part of it that refuses; users know no binder."""
_READ: Final = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)")


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
        self._own: list[duckdb.DuckDBPyConnection] = []
        self._own_views: set[str] = set()
        self._known = frozenset(self.tables())
        self.spent_s = 0.0
        """Seconds that statements took so far, without the making of the tables that they read."""

    def tables(self) -> list[str]:
        """Names of all tables that a statement may use."""
        return list(dict.fromkeys((*TABLES, *self._derived)))

    def query(
        self, sql: str, timeout_s: float | None = None, most_rows: int | None = None
    ) -> pa.Table:
        """Run one statement that returns rows.

        Args:
            sql: a SELECT.
            timeout_s: seconds that it may take; by default what the environment says.
            most_rows: rows after which it need not go on; by default all.

        Raises:
            UsageError: the statement is wrong, with DuckDB's reason in one line.
            LimitError: it takes too much time or memory.
        """

        def found(text: str, connection: duckdb.DuckDBPyConnection) -> pa.Table:
            rows = connection.sql(text)
            return (rows if most_rows is None else rows.limit(most_rows)).to_arrow_table()

        return self._answer(sql, timeout_s, found)

    def cells(self, sql: str, timeout_s: float | None = None) -> list[tuple[Any, ...]]:
        """The first two rows of what :meth:`query` gives, in half of its time: for single figures.

        Raises:
            UsageError: the statement is wrong, with DuckDB's reason in one line.
            LimitError: it takes too much time or memory.
        """

        def found(text: str, connection: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
            first: list[tuple[Any, ...]] = connection.execute(text).fetchmany(2)
            return first

        return self._answer(sql, timeout_s, found)

    def own_cells(self, sql: str) -> list[tuple[Any, ...]]:
        """:meth:`cells` of a statement that Stepscope itself made, in half of their time.

        Nobody's statement but ours: it passes no check and no limit of time, and runs in the
        database of all such statements, which needs not be started again.

        Raises:
            UsageError: it cannot be evaluated.
            LimitError: it takes too much memory.
        """
        import duckdb

        if not self._own:
            threads = self._threads()
            few = threads == 1
            self._own.append(connected(threads, self.limits.memory_bytes, few_rows=few))
            # what still lives when Python ends, DuckDB complains of on standard error
            weakref.finalize(self, self._own.clear)
        (connection,) = self._own
        known = self._known.intersection(_READ.findall(sql))
        try:
            self._open(known, connection, self._own_views)
            found: list[tuple[Any, ...]] = connection.execute(sql).fetchmany(2)
        except duckdb.CatalogException:  # a table that is not named right after FROM or JOIN
            return self.cells(sql)
        except duckdb.OutOfMemoryException as error:
            raise too_large(self.limits) from error
        except duckdb.Error as error:
            raise _refused(error) from error
        return found

    def _answer(
        self,
        sql: str,
        timeout_s: float | None,
        found: Callable[[str, duckdb.DuckDBPyConnection], T],
    ) -> T:
        import duckdb

        limits = self.limits.within(timeout_s)
        if self._connection is None:
            self._connection = self._connect()
        statement = checked(sql, self.tables(), self._connection)
        try:
            self._open(statement.tables, self._connection, self._views)
            return self._run(partial(found, statement.text), self._connection, limits)
        except duckdb.OutOfMemoryException as error:
            raise too_large(limits) from error
        except duckdb.Error as error:
            raise _refused(error) from error

    def _run(
        self,
        found: Callable[[duckdb.DuckDBPyConnection], T],
        connection: duckdb.DuckDBPyConnection,
        limits: Limits,
    ) -> T:
        began = time.monotonic()
        try:
            return limited(lambda: found(connection), connection, limits)
        except (LimitError, KeyboardInterrupt):
            self._connection = None  # the statement may still run on it
            self._views = set()
            raise
        finally:
            self.spent_s += time.monotonic() - began

    def _open(
        self, names: Iterable[str], connection: duckdb.DuckDBPyConnection, views: set[str]
    ) -> None:
        """Make the tables that a statement reads known to the connection."""
        for name in sorted(set(names) - views):
            self._show(name, connection)
            views.add(name)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """A connection that reads the traces' tables and nothing else, without views yet."""
        import duckdb

        shut_in: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": "",  # else a large statement writes beside whatever it is called in
            "memory_limit": f"{self.limits.memory_bytes >> 20}MiB",
        }
        if threads := self._threads():
            shut_in["threads"] = threads
        connection = duckdb.connect(":memory:", config=shut_in)
        files = [str(file) for _, trace in self._ranks for file in _files(trace)]
        # a pattern is compared as it is written, before it is resolved
        paths = [quoted(p) for file in files for p in dict.fromkeys((file, literally(file)))]
        connection.execute("SET python_enable_replacements=false")
        connection.execute(f"SET allowed_paths=[{', '.join(paths)}]")
        connection.execute("SET enable_external_access=false")
        connection.execute("SET lock_configuration=true")
        return connection

    def _threads(self) -> int | None:
        """With how many threads statements run; by default one for each CPU."""
        many = any(trace.rows(name) > MANY_ROWS for _, trace in self._ranks for name in TABLES)
        return None if many else 1

    def _show(self, name: str, connection: duckdb.DuckDBPyConnection) -> None:
        """Make one table known to a connection, and to it alone where others share its database."""
        kind = "TABLE" if connection is self._connection else "TEMP TABLE"
        if name in self._derived:
            if name not in self._tables:
                self._tables[name] = self._derived[name]()
            table = self._tables[name]
            if table.num_rows > MANY_ROWS:
                connection.register(name, table)
            else:  # every statement that names a registered one asks Python what it is
                connection.register(f"made_{name}", table)
                connection.execute(f"CREATE {kind} {name} AS SELECT * FROM made_{name}")
                connection.unregister(f"made_{name}")
        elif view := self._view(name, connection):
            connection.execute(f"CREATE {kind.replace('TABLE', 'VIEW')} {name} AS {view}")
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


def _refused(error: Exception) -> UsageError:
    """DuckDB's reason, in one line."""
    reason = _KIND.sub("", " ".join(str(error).split()))
    return UsageError(f"SQL: {reason[:400]}")


def _files(trace: Trace) -> list[Path]:
    """The files of a trace's tables, without those that hold no row."""
    return [table_path(trace.folder, name).resolve() for name in TABLES if trace.rows(name)]


def literally(path: str) -> str:
    """A path without characters that would make it a pattern."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def _without_rows(name: str) -> pa.Table:
    return with_rank(arrow_schema(name).empty_table(), 0)


def with_rank(table: pa.Table, rank: int) -> pa.Table:
    """A table of a trace with its rank before it, in columns named as DuckDB names a view's.

    A column ``rank`` of the table is ``rank_1`` then. Not every DuckDB reads an Arrow table with
    two columns of one name.
    """
    import pyarrow as pa

    names = ["rank_1" if name == "rank" else name for name in table.column_names]
    ranks = pa.repeat(pa.scalar(rank, pa.int64()), table.num_rows)
    return table.rename_columns(names).add_column(0, "rank", ranks)


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
