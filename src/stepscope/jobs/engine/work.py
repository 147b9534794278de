"""One task on one input, in whatever process: it ends in an outcome and never in an exception."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepscope import __version__
from stepscope.jobs.engine.remote import fetched, is_remote
from stepscope.trace.errors import StepscopeError, StorageError

DONE: Final = "done"
LACKING: Final = "lacking"
FAILED: Final = "failed"
KILLED: Final = "killed"
NO_ROOM: Final = "no_room"
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a disk, a quota or a limit on files that is used up."""


@dataclass(frozen=True)
class Task:
    """What is done with every input.

    Attributes:
        function: ``package.module:function``; it takes an input, the file to write, the options.
        options: what it is told, in types of JSON.
    """

    function: str
    options: dict[str, Any]

    def called(self) -> Callable[[Path, Path, dict[str, Any]], None]:
        """The function itself."""
        module, _, name = self.function.partition(":")
        found: Callable[[Path, Path, dict[str, Any]], None] = getattr(
            importlib.import_module(module), name
        )
        return found

    def key(self, item: Item) -> str:
        """Name of the result of one input: another input, option or version gives another."""
        stated = [self.function, self.options, item.place, item.identity, __version__]
        text = json.dumps(stated, sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Item:
    """One input.

    Attributes:
        place: its path or URL.
        identity: what tells whether it has changed, such as size and time.
        bytes: its size; 0 where unknown.
    """

    place: str
    identity: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of one input.

    Attributes:
        state: ``done``; ``lacking`` where the input holds none of what is asked; ``failed``;
            ``killed`` where its process ended; ``no_room`` where the result cannot be written.
        message: why it is not done, one line.
        seconds: how long it took.
    """

    state: str
    message: str = ""
    seconds: float = 0.0


def perform(task: Task, item: Item, output: Path) -> Outcome:
    """Do the task; the output appears under its name when it is whole."""
    began = time.monotonic()
    partial = output.with_suffix(".part")
    try:
        with _local(item.place) as path:
            task.called()(path, partial, task.options)
        partial.replace(output)
        return Outcome(DONE, "", time.monotonic() - began)
    except StorageError as error:
        state, message = NO_ROOM, str(error)
    except StepscopeError as error:
        # an error may say of itself that nothing is wrong with the input
        state, message = getattr(error, "state", FAILED), str(error)
    except OSError as error:
        full = error.errno in FULL
        state = NO_ROOM if full else FAILED
        message = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        if full:
            message = f"cannot write {output}: {message}"
    except MemoryError:
        state, message = FAILED, "the memory is not enough; run fewer at a time with --jobs"
    except Exception as error:
        state = FAILED
        message = f"internal error, a bug in Stepscope or in the task: {type(error).__name__}: "
        message += str(error)
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
    return Outcome(state, " ".join(message.split())[:1000], time.monotonic() - began)


def perform_away(task: Task, item: Item) -> tuple[Outcome, bytes]:
    """Do the task on another machine: the result travels, so that no folder need be shared."""
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        output = Path(folder) / "result.parquet"
        outcome = perform(task, item, output)
        return outcome, output.read_bytes() if outcome.state == DONE else b""


@contextlib.contextmanager
def _local(place: str) -> Iterator[Path]:
    """The input as a path of this machine."""
    if not is_remote(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        yield fetched(place, Path(folder))
