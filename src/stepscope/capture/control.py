"""Begin and end recording from outside, while the program runs."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from stepscope.capture.backends.collector import CONFIGURATION
from stepscope.capture.errors import CaptureError
from stepscope.capture.process_tree import children, configuration_of, is_zombie, members

CONTROL_FILE = "control"
_ORDER = struct.Struct("<II")
ORDERS = {"start": 1, "stop": 2}


def prepare(folder: Path) -> None:
    """Write a control file without an order."""
    (folder / CONTROL_FILE).write_bytes(_ORDER.pack(0, 0))


def orders(folder: Path) -> int:
    """How many orders were given in a run."""
    try:
        _, count = _ORDER.unpack((folder / CONTROL_FILE).read_bytes())
    except (OSError, struct.error):
        return 0
    return int(count)


def close(folder: Path) -> None:
    """Take no more orders: the launcher no longer waits for what the processes record."""
    with contextlib.suppress(OSError):
        (folder / CONTROL_FILE).unlink()


def give_order(folder: Path, order: str) -> None:
    """Tell all processes of a run to begin ("start") or end ("stop") recording.

    They look every 50 ms.

    Raises:
        CaptureError: the run has finished, or the file cannot be written.
    """
    path = folder / CONTROL_FILE
    run = folder.parent
    if not path.exists():
        raise CaptureError(
            f"the run in {run} has finished, so there is nothing to {order}; read what it recorded "
            f"with: stepscope diagnose {run}"
        )
    if not members(folder.resolve() / CONFIGURATION):
        raise CaptureError(
            f"the run in {run} has finished (none of its processes is left), so there is nothing "
            f"to {order}; where its launcher died, read it with: stepscope capture finalise {run}"
        )
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
    if not Path(f"/proc/{process}").is_dir() or is_zombie(process):
        raise CaptureError(
            f"there is no process {process} (any more); a run that has finished cannot be steered"
        )
    pending = [process]
    while pending:
        one = pending.pop()
        if (configuration := configuration_of(one)) is not None:
            if configuration.name != CONFIGURATION:
                raise CaptureError(
                    f"process {process} is recorded by another tool than Stepscope's collector, "
                    "which takes no orders; record it with: stepscope run --backend collector"
                )
            return configuration.parent
        pending += children(one)
    raise CaptureError(
        f"process {process} is not recorded by the collector of stepscope run, or belongs to "
        "somebody else; start it with: stepscope run --paused -- COMMAND"
    )
