"""Results of AMD's rocprofv3: its JSON (``PID_results.json``) and its database (rocpd, ``.db``).

Recognised by content: the object ``rocprofiler-sdk-tool``, or tables ``rocpd_info_agent...``.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from stepscope.importers.base import Importer
from stepscope.importers.common.stream import unpacked_head
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_JSON: Final = re.compile(rb'\{\s*"rocprofiler-sdk-tool"\s*:')
_DATABASE: Final = b"SQLite format 3\0"


def _sniff(path: Path, head: bytes) -> float:
    head = unpacked_head(path, head)
    if head.startswith(_DATABASE):
        return 0.99 if _holds_rocpd(path) else 0.0
    return 0.97 if _JSON.match(head.removeprefix(b"\xef\xbb\xbf").lstrip()) else 0.0


def _holds_rocpd(path: Path) -> bool:
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            found = connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE name LIKE 'rocpd_info_agent%'"
            ).fetchone()
    except (sqlite3.Error, UnicodeError):
        return False
    return bool(found[0])


def _read(path: Path, writer: TraceWriter) -> Meta:
    from stepscope.importers.rocprof.read import read

    return read(path, writer)


IMPORTER = Importer(name="rocprof", title="rocprofv3 result", revision=1, sniff=_sniff, read=_read)
