"""Exported tables, however they are stored: recognised by content, read by name, ahead of time."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar
from urllib.parse import quote

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 16
"""Rows a batch holds; with the columns of the widest table that is some 10 MB."""

Raw = Literal["int", "float", "text"]
"""How a column is delivered: int64, float64 or (clean) string."""

BadValues = Callable[[int, str], None]
"""Called with a number of values that had another type, and where the first one stands."""

Where = tuple[str, Sequence[int]]
"""Only rows whose integer column has one of these values."""


@dataclass(frozen=True)
class Declared:
    """How the source itself declares a column."""

    raw: Raw
    nullable: bool


class Source(Protocol):
    """Exported tables, read by name in batches."""

    def tables(self) -> list[str]:
        """Names of all tables."""

    def columns(self, table: str) -> Mapping[str, Declared]:
        """The columns of a table."""

    def batches(
        self,
        table: str,
        columns: Mapping[str, Raw],
        bad: BadValues,
        where: Where | None = None,
        order: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a table, as batches of at most ``BATCH_ROWS`` rows.

        Args:
            table: a name from :meth:`tables`.
            columns: names from :meth:`columns`, or ``rowid``; and the form each is wanted in.
            bad: receives values of another type; they are delivered as null.
            where: keep only these rows.
            order: a column to sort by, where the source can do so in bounded memory; without it
                the rows come as they are stored.

        Raises:
            InputError: the table cannot be read whole.
        """

    def close(self) -> None:
        """Release files and temporary folders."""


def find_table(source: Source, name: str) -> str | None:
    """The table ``name`` or its newest versioned variant (``NAME_V2``)."""
    pattern = re.compile(re.escape(name) + r"(?:_V(\d+))?", re.IGNORECASE)
    matches = [match for table in source.tables() if (match := pattern.fullmatch(table))]
    if not matches:
        return None
    # the plain name first: it is what every documented version has
    return min(matches, key=lambda match: -int(match[1] or 1 << 30)).string


SQLITE_MAGIC = b"SQLite format 3\0"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
STREAM_MAGIC = b"NVIDIA Nsight Systems Stream"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged database raises: its error messages quote bytes of the file."""
TABLE_SUFFIXES = (".arrow", ".parquet")
_OURS = re.compile(
    r"(StringIds|NVTX_EVENTS|CUPTI_ACTIVITY_KIND_\w+|TARGET_INFO_\w+|META_DATA_(EXPORT|CAPTURE)"
    r"|ANALYSIS_DETAILS|OSRT_API|SCHED_EVENTS|COMPOSITE_EVENTS|GPU_METRICS)(_V\d+)?",
    re.IGNORECASE,
)


class Kind(Enum):
    """The forms in which a capture comes."""

    SQLITE = "SQLite export"
    REPORT = "report"
    STREAM = "raw stream"
    ARROW_STREAM = "Arrow export"
    TABLE_FOLDER = "folder of tables"


def kind_of(path: Path, head: bytes) -> Kind | None:
    """Which form ``path`` has by its first bytes; None when it is none of them.

    A SQLite file may still be somebody else's database.
    """
    if path.is_dir():
        return Kind.TABLE_FOLDER if any(is_ours(file.stem) for file in table_files(path)) else None
    if head.startswith(SQLITE_MAGIC):
        return Kind.SQLITE
    if head.startswith(REPORT_MAGIC):
        return Kind.REPORT
    if STREAM_MAGIC in head[:64]:
        return Kind.STREAM
    if head.startswith(ARROW_STREAM_MAGIC) and b"table_name" in head:
        return Kind.ARROW_STREAM
    return None


def confidence(path: Path, head: bytes) -> float:
    """How sure it is that ``path`` comes from Nsight Systems, from 0 to 1."""
    kind = kind_of(path, head)
    if kind is None:
        return 0.0
    if kind is not Kind.SQLITE:
        return 0.9
    try:
        names = sqlite_table_names(path)
    except SQLITE_ERRORS:
        return 0.1  # damaged: nobody else can read it, and the reader says what is wrong
    return 0.9 if any(is_ours(name) for name in names) else 0.0


def is_ours(table: str) -> bool:
    """Whether a table name is one that Nsight Systems exports."""
    return _OURS.fullmatch(table) is not None


def table_files(folder: Path) -> list[Path]:
    """The Arrow or Parquet files directly in a folder, by name; empty when it is unreadable."""
    with contextlib.suppress(OSError):
        return sorted(file for file in folder.iterdir() if file.suffix in TABLE_SUFFIXES)
    return []


def sqlite_uri(path: Path) -> str:
    """The URI that opens a database without ever writing to or beside it."""
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"


def sqlite_table_names(path: Path) -> list[str]:
    """Names of the tables of a database.

    Raises:
        SQLITE_ERRORS: it cannot be read.
    """
    connection = sqlite3.connect(sqlite_uri(path), uri=True)
    try:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    finally:
        connection.close()
    return [str(row[0]) for row in rows]


Item = TypeVar("Item")
Part = TypeVar("Part")
_AHEAD = 2  # finished items that wait; bounds the memory
_POLL_S = 0.1


def prefetched(make: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """The items of an iterator that a thread of its own creates, runs and finishes.

    An error of the iterator is raised here, after the items before it. When the consumer stops
    early, the thread ends after the item it works on.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(_AHEAD)
    stop = threading.Event()

    def put(item: Item | _End) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=_POLL_S)
                return

    def work() -> None:
        end = _End()
        try:
            items = make()
            for item in items:
                put(item)
                if stop.is_set():
                    break
        except BaseException as error:
            end.error = error
        put(end)

    thread = threading.Thread(target=work, name="stepscope-reader", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        thread.join()


def in_order(work: Callable[[Part], Item], parts: Iterable[Part], threads: int) -> Iterator[Item]:
    """What several threads make of some parts, in the order of the parts.

    At most one item more than there are threads waits, which bounds the memory. An error is
    raised here, after the items before it.
    """
    from concurrent.futures import Future, ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads, thread_name_prefix="stepscope-reader")
    pending: deque[Future[Item]] = deque()
    try:
        for part in parts:
            pending.append(pool.submit(work, part))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _End:
    """No more items; with the error that ended them, if one did."""

    error: BaseException | None = None
