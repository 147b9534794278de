"""Many Parquet files put together by SQL, a few at a time: the memory is that of one group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stepscope.sql.database import compiled
from stepscope.sql.engine import MANY_ROWS
from stepscope.sql.files import plain_table
from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

FAN_IN: Final = 64
"""Files that are put together at once."""


class Reduction:
    """Tables made of the results of many inputs, each of those before it.

    Args:
        connection: of DuckDB.
        folder: for what lies between.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._between: list[Path] = []

    def make(self, name: str, statement: str) -> pa.Table:
        """Make a table of a statement, and give it a name for later ones.

        Raises:
            UsageError: the statement is wrong.
            StorageError: there is no room.
        """
        self._run(f'CREATE TABLE "{name}" AS {statement}')
        return self.table(f'SELECT * FROM "{name}"')

    def add(self, name: str, table: pa.Table) -> None:
        """Give a table a name."""
        import pyarrow.parquet as pq

        path = self.between(name)
        pq.write_table(table, path)
        self._run(f'CREATE OR REPLACE TEMP VIEW "{name}" AS SELECT * FROM {_read(path)}')

    def between(self, name: str) -> Path:
        """A file for what lies between, until the end."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._between.append(self._folder / f"{name}.parquet")
        return self._between[-1]

    def table(self, statement: str) -> pa.Table:
        """What a statement gives."""
        return self._with_readable_errors(lambda: self._arrow(statement))

    def _arrow(self, statement: str) -> pa.Table:
        rows = self._connection.execute(f"SELECT count(*) FROM ({statement})").fetchall()[0][0]
        if rows <= MANY_ROWS:
            found = plain_table(self._connection.execute(statement))
            if found is not None:
                return found
        import duckdb  # noqa: F401 - gives connections their way to Arrow

        return self._connection.sql(statement).to_arrow_table()

    def cell(self, statement: str) -> Any:
        """The first cell of what a statement gives; None without rows."""
        rows = self._run(statement)
        return rows[0][0] if rows else None

    def write(self, name: str, path: Path) -> None:
        """Write a table as Parquet."""
        self._run(f'COPY "{name}" TO {_text(path)} (FORMAT parquet, COMPRESSION zstd)')

    def _run(self, statement: str) -> Any:
        return self._with_readable_errors(lambda: self._connection.execute(statement).fetchall())

    def _with_readable_errors(self, action: Callable[[], Any]) -> Any:
        known = compiled()
        try:
            return action()
        except known.IOException as error:
            raise StorageError(
                f"cannot read the answers or write the result: {_line(error)}; make room, then run "
                "the same again"
            ) from error
        except known.Error as error:
            raise UsageError(f"the reduction failed: {_line(error)}") from error


@contextmanager
def reduction(
    files: Mapping[int, Path], captures: pa.Table, merge: str, folder: Path, columns: Sequence[str]
) -> Iterator[Reduction]:
    """Tables over the results of many inputs.

    ``part`` holds the rows of all files with the columns of ``captures`` that it shares:
    ``input``, ``rank`` and ``capture``; without the latter two where rows of inputs are merged.

    Args:
        files: number of an input -> its result.
        captures: one row an input, with its number ``input``.
        merge: statement over ``part`` that joins rows of several inputs; empty to keep all.
        folder: for what lies between.
        columns: of the files, for when there are none.
    """
    spill = folder / "spill"
    connection = compiled().connect(
        ":memory:",
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False,
                "temp_directory": str(spill)},
    )  # fmt: skip
    made = Reduction(connection, folder)
    try:
        made.add("capture", captures)
        parts = [f"SELECT {number}::BIGINT AS input, * FROM {_read(file)}"
                 for number, file in files.items()]  # fmt: skip
        level = 0
        while len(parts) > FAN_IN or (merge and level == 0 and parts):
            groups = [parts[i : i + FAN_IN] for i in range(0, len(parts), FAN_IN)]
            parts = []
            for number, group in enumerate(groups):
                target = made.between(f"level{level}-{number}")
                made._run(f"CREATE OR REPLACE TEMP VIEW part AS {_below(group)}")
                rows = merge or "SELECT * FROM part"
                made._run(f"COPY ({rows}) TO {_text(target)} (FORMAT parquet)")
                parts.append(f"SELECT * FROM {_read(target)}")
            level += 1
        rows = _below(parts) if parts else _nothing(columns)
        if merge:
            made._run(f"CREATE OR REPLACE TEMP VIEW part AS {rows}")
            made._run(f"CREATE TABLE merged AS {merge if parts else 'SELECT * FROM part'}")
            rows = "SELECT * FROM merged"
        else:
            rows = f"SELECT rank, capture, part.* FROM ({rows}) AS part JOIN capture USING (input)"
            if not files:
                rows = (
                    f"SELECT NULL AS rank, NULL AS capture, part.* FROM ({_nothing(columns)}) part"
                )
        made._run(f"CREATE OR REPLACE TEMP VIEW part AS {rows}")
        yield made
    finally:
        connection.close()
        for path in made._between:
            path.unlink(missing_ok=True)
        if spill.is_dir():
            spill.rmdir()


def _below(parts: Sequence[str]) -> str:
    return " UNION ALL BY NAME ".join(f"({part})" for part in parts)


def _nothing(columns: Sequence[str]) -> str:
    names = "".join(f', NULL::DOUBLE AS "{name}"' for name in columns)
    return f"SELECT 0::BIGINT AS input{names} WHERE false"


def _read(path: Path) -> str:
    from stepscope.sql.engine import literally

    return f"read_parquet({_text(literally(str(path)))}, hive_partitioning=false)"


def _text(path: Path | str) -> str:
    from stepscope.sql.engine import quoted

    return quoted(str(path))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
