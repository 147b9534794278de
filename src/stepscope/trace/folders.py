"""Folders of the user that Stepscope writes to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
