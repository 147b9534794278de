"""Begin and end recording from outside, while the program runs."""

from __future__ import annotations

import struct
from pathlib import Path

from stepscope.capture.errors import CaptureError
from stepscope.capture.process_tree import children, configuration_of

CONTROL_FILE = "control"
_ORDER = struct.Struct("<II")
ORDERS = {"start": 1, "stop": 2}


def prepare(folder: Path) -> None:
    """Write a control file without an order."""
    (folder / CONTROL_FILE).write_bytes(_ORDER.pack(0, 0))


def give_order(folder: Path, order: str) -> None:
    """Tell all processes of a run to begin ("start") or end ("stop") recording.

    They look every 50 ms.

    Raises:
        CaptureError: the file cannot be written.
    """
    path = folder / CONTROL_FILE
    try:
        _, count = _ORDER.unpack(path.read_bytes())
        path.write_bytes(_ORDER.pack(ORDERS[order], count + 1))
    except (OSError, struct.error) as error:
        raise CaptureError(
            f"cannot write {path}: {error}; is the capture still running, and yours?"
        ) from error


def folder_of(process: int) -> Path:
    """The raw folder that a process, or a child of it (for a launcher), records into.

    Raises:
        CaptureError: it is not recorded.
    """
    pending = [process]
    while pending:
        one = pending.pop()
        if (configuration := configuration_of(one)) is not None:
            return configuration.parent
        pending += children(one)
    raise CaptureError(
        f"process {process} is not recorded by stepscope run, has ended, or belongs to somebody "
        "else; start it with: stepscope run --paused -- COMMAND"
    )
