"""The program that is recorded: whether it can be started, and why not."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from stepscope.capture.errors import LaunchError


def check_program(name: str) -> None:
    """Refuse a program that cannot be started; called before anything is written.

    Raises:
        LaunchError: there is none of that name, or it may not be executed.
    """
    if name and shutil.which(name):
        return
    found = _place_of(name)
    if found is None:
        raise LaunchError(
            f"{name or 'an empty name'} is no program that can be found; check its name"
        )
    if found.is_dir():
        raise LaunchError(f"{found} is a folder, not a program; name the program")
    raise LaunchError(
        f"{found} may not be executed; chmod +x makes it a program, or name what runs it, as in: "
        f"-- python {found}"
    )


def start_failure(name: str, error: OSError) -> LaunchError:
    """What the system's refusal to start a program means."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        why = "its first line names an interpreter that is not there; correct that line"
        return LaunchError(f"cannot run {name}: {why}")
    why = error.strerror or "unknown error"
    if error.errno == errno.ENOEXEC:
        why = (
            "it is no program for this machine; a script needs a first line such as #!/bin/sh, or "
            f"name its interpreter, as in: -- sh {name}"
        )
    return LaunchError(f"cannot run {name}: {why}")


def _place_of(name: str) -> Path | None:
    """Where a file of that name is that is no program for us; None where there is none."""
    if not name:
        return None
    folders = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = Path(folder) / name
        try:
            path.stat()
        except PermissionError:
            return path
        except (OSError, ValueError):
            continue
        return path
    return None
