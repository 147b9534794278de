"""A text file of which only the last part is kept, for recordings that go on for days."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType


class KeptLines:
    """Lines for a file; with a limit, those of the last so many seconds at least.

    The older half lies beside the file while it is written; :func:`whole` reads both.

    Args:
        path: the file; made again.
        keep_s: how many seconds are kept; 0: everything.
        again: called where older lines are dropped; returns lines to begin the newer half with.
    """

    def __init__(
        self, path: Path, keep_s: float, again: Callable[[], Iterable[str]] = lambda: ()
    ) -> None:
        self._path = path
        self._keep_s = keep_s
        self._again = again
        self._since = time.monotonic()
        self._stream = path.open("w", encoding="utf-8", newline="")

    def __enter__(self) -> KeptLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        older = older_of(self._path)
        if older.exists():
            joined = self._path.with_suffix(".joined")
            joined.write_bytes(whole(self._path))
            joined.replace(self._path)
            older.unlink()

    def write(self, line: str) -> int:
        """Write a line; csv calls it."""
        return self._stream.write(line)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines, after having dropped what is too old."""
        if self._keep_s and time.monotonic() - self._since >= self._keep_s:
            self._since = time.monotonic()
            self._stream.close()
            self._path.replace(older_of(self._path))
            self._stream = self._path.open("w", encoding="utf-8", newline="")
            self._stream.writelines(self._again())
        self._stream.writelines(lines)

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._stream.flush()


def older_of(path: Path) -> Path:
    """Where the older half of a file lies."""
    return path.with_name(f"{path.name}.older")


def whole(path: Path) -> bytes:
    """Both halves, up to the last whole line."""
    text = b""
    for part in (older_of(path), path):
        if part.exists():
            text += part.read_bytes()
    return text[: text.rfind(b"\n") + 1]


def copy_whole(path: Path, target: Path) -> None:
    """Copy both halves into one file; nothing where there is none."""
    if not older_of(path).exists() and not path.exists():
        return
    with target.open("wb") as stream:
        for part in (older_of(path), path):
            if part.exists():
                with part.open("rb") as source:
                    shutil.copyfileobj(source, stream)
