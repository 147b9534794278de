"""Captures hold command lines and environments: only their owner may read them.

While a capture is made, the launcher's own umask lets nobody else in, so that no file stands open
even for a moment, whoever writes it and however; the program that is recorded keeps the user's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PRIVATE = 0o077
_of_user: list[int] = []


@contextlib.contextmanager
def only_owner() -> Iterator[None]:
    """What this process makes meanwhile is its owner's alone."""
    _of_user.append(os.umask(_PRIVATE))
    try:
        yield
    finally:
        os.umask(_of_user.pop())


def umask_of_user() -> int:
    """The umask that programs of the user are started with; -1 for this process's own."""
    return _of_user[0] if _of_user else -1


def close_results(results: list[Path]) -> None:
    """Take from others the right to read what another tool wrote into a capture."""
    for path in results:
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode & ~_PRIVATE)
