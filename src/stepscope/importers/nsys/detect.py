"""Recognise Nsight Systems files by their content."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from enum import Enum
from pathlib import Path
from urllib.parse import quote

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
