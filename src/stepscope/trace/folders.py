"""Folders of the user that Stepscope writes to, and files that only the user may read."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

from stepscope.trace.errors import StorageError


def user_folder(variable: str, what: str, *, xdg: str, usual: str, macos: str) -> Path:
    """A folder of the user, named by a variable, else where the platform keeps such things.

    Args:
        variable: environment variable that names it.
        what: what it is for, in words.
        xdg: environment variable of the XDG Base Directory Specification that names its parent.
        usual: the parent below the home folder where that variable is not set.
        macos: the parent below the home folder on macOS.

    Raises:
        StorageError: it is not named, and the user has no home folder.
    """
    named = os.environ.get(variable)
    if named:
        return Path(named)
    try:
        if sys.platform == "darwin":
            return Path.home() / macos / "stepscope"
        return Path(os.environ.get(xdg) or Path.home() / usual) / "stepscope"
    except RuntimeError as error:
        raise StorageError(
            f"this user has no home folder for {what}; set {variable} to a writable folder"
        ) from error


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter, whatever the umask; one that is there stays.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, mode: str = "wb") -> IO[bytes]:
    """Open a file for writing, so that only its owner may read it from its first moment on.

    Raises:
        OSError: it cannot be written.
    """
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read.

    Raises:
        OSError: it cannot be written.
    """
    with open_private(path) as file:
        file.write(content)
