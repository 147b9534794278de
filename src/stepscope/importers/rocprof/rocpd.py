"""The database of rocprofv3 (rocpd), in both of its layouts.

Earlier ones keep begin and end in the rows, later ones (schema 4) in ``rocpd_timestamp``, and where
something ran in ``rocpd_track``. Names of tables end in an id of the run; views of the same rows
have names without it. Several processes may be in one database.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from stepscope.trace.errors import InputError

_ROWS: Final = 1 << 17


class Database:
    """One database.

    Args:
        connection: to it.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = [
            str(name)
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            )
        ]
        self._tables = {
            kind: [name for name in names if name == kind or name.startswith(f"{kind}_")]
            for kind in _KINDS
        }

    def runs(self) -> list[str]:
        """What the names of each run's tables end in."""
        return [name.removeprefix(_AGENTS) for name in self._tables[_AGENTS]]

    def rows(self, sql: str) -> Iterator[dict[str, list[Any]]]:
        """Columns of a query's answer, some rows at a time."""
        cursor = self._connection.execute(sql)
        names = [item[0] for item in cursor.description]
        while found := cursor.fetchmany(_ROWS):
            yield dict(zip(names, map(list, zip(*found, strict=True)), strict=True))

    def table(self, kind: str, run: str) -> str | None:
        """The quoted name of a table of a run; None where there is none."""
        name = f"{kind}{run}"
        return _quoted(name) if name in self._tables[kind] else None

    def columns(self, table: str) -> set[str]:
        """Names of the columns of a (quoted) table."""
        return {str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({table})")}


_AGENTS: Final = "rocpd_info_agent"
_KINDS: Final = (
    _AGENTS, "rocpd_info_process", "rocpd_info_node", "rocpd_info_kernel_symbol",
    "rocpd_info_thread", "rocpd_string", "rocpd_event", "rocpd_region", "rocpd_kernel_dispatch",
    "rocpd_memory_copy", "rocpd_timestamp", "rocpd_track", "rocpd_metadata",
)  # fmt: skip


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """A database, read only.

    Raises:
        InputError: it is damaged, or laid out otherwise.
    """
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    _refuse_cut(path)
    connection = None
    try:
        connection = sqlite3.connect(uri, uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        yield Database(connection)
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        raise InputError(
            f"{path} is no whole database of rocprofv3 ({error}); the run or a copy did not "
            "finish, make it again"
        ) from error
    finally:
        if connection is not None:
            connection.close()


def _refuse_cut(path: Path) -> None:
    """Refuse a file that is shorter than its header says: SQLite misses pages when it needs them.

    Raises:
        InputError: it is.
    """
    with path.open("rb") as file:
        head = file.read(100)
    size = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    if len(head) < 100 or path.stat().st_size < (1 << 16 if size == 1 else size) * pages:
        raise InputError(f"{path} is cut short; the run or a copy did not finish, copy it again")


def timed(database: Database, table: str, run: str, wanted: dict[str, str]) -> str:
    """A query for rows with begin, end and place, in whichever layout.

    Args:
        database: the database.
        table: quoted name of the table.
        run: what the names of the run's tables end in.
        wanted: name in the answer -> expression over ``r`` (the row), ``p`` (its place: process,
            thread, agent, queue, stream) and ``e`` (its event).
    """
    event = database.table("rocpd_event", run)
    columns = database.columns(table)
    joins = [f"{table} r"]
    if "start_id" in columns:
        stamps = database.table("rocpd_timestamp", run)
        joins += [f"JOIN {stamps} b ON b.id = r.start_id", f"JOIN {stamps} f ON f.id = r.end_id"]
        start, end = "b.value", "f.value"
    else:
        start, end = "r.start", 'r."end"'
    place = "r"
    if "track_id" in columns:
        joins.append(f"LEFT JOIN {database.table('rocpd_track', run)} p ON p.id = r.track_id")
        place = "p"
    if event is not None and "event_id" in columns:
        joins.append(f"LEFT JOIN {event} e ON e.id = r.event_id")
    texts = {**wanted, "start": start, "end": end}
    selected = ", ".join(f'{text.replace("@", place)} AS "{name}"' for name, text in texts.items())
    return f"SELECT {selected} FROM {' '.join(joins)} ORDER BY r.id"
