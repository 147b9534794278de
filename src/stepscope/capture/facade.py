"""What the session calls: make options, plan, record. Standard library only, like all beside it."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

from stepscope.capture import control, dumps
from stepscope.capture.backends.collector import CONFIGURATION, RAW_FOLDER
from stepscope.capture.errors import CaptureError
from stepscope.capture.options import Options


def make_options(*, command: tuple[str, ...], output: str, **rest: Any) -> Options:
    """Options with a folder: the one given, else a new one beside the program's start.

    Raises:
        CaptureError: the folder's name asks for a variable that is not set.
    """
    folder = Path(expanded(output)) if output else _new_folder()
    return Options(command=tuple(command), output=folder, **rest)


def expanded(name: str) -> str:
    """A name with ``%q{VARIABLE}``, ``%h`` (host), ``%p`` (process) and ``%%`` filled in.

    Raises:
        CaptureError: a variable is not set, or a percent sign stands for nothing known.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            found = os.environ.get(match[1])
            if not found:
                raise CaptureError(f"-o {name} asks for {match[1]}, which is not set here")
            return found.replace("/", "_")
        known = {"h": platform.node(), "p": str(os.getpid()), "%": "%"}
        if match[2] not in known:  # a slip in %q{RANK} would make all ranks share a folder
            raise CaptureError(
                f"-o {name} has a % that is none of %q{{VARIABLE}}, %h, %p and %%; write %% for a "
                "percent sign"
            )
        return known[match[2]]

    return re.sub(r"%(?:q\{(\w+)\}|([hp%]|))", value, name)


def _new_folder() -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path(f"stepscope-{stamp}")
    return next(
        path for path in (base, *(Path(f"{base}-{n}") for n in range(2, 1000))) if not path.exists()
    )


def dump(target: str) -> Path:
    """What has been recorded up to now, as a run's folder of its own; the program runs on.

    Args:
        target: a process id, or the folder of a run.

    Raises:
        CaptureError: nothing is recorded there.
    """
    return dumps.ask_for(_raw_folder(target), "asked for by stepscope capture dump")


def steer(order: str, target: str) -> None:
    """Begin or end recording from outside.

    Args:
        order: ``start`` or ``stop``.
        target: a process id, or the folder of a run.

    Raises:
        CaptureError: nothing is recorded there.
    """
    control.give_order(_raw_folder(target), order)


def _raw_folder(target: str) -> Path:
    """The raw folder of a running capture, from a process id or the run's folder."""
    if target.isdigit() and not os.path.isdir(target):  # noqa: PTH112 - a name, not yet a path
        return control.folder_of(int(target))
    folder = Path(target)
    is_raw = (folder / CONFIGURATION).exists()
    raw = folder if is_raw else folder / RAW_FOLDER
    if not is_raw and not (raw / CONFIGURATION).exists() and not _was_run(folder):
        raise CaptureError(
            f"{target} is neither a process nor the folder of a capture that runs; name the "
            "process id of the program or of stepscope run"
        )
    return raw


def _was_run(folder: Path) -> bool:
    """Whether a run of ours has left its traces in a folder."""
    return folder.is_dir() and any(folder.glob("rank*.stepscope"))
