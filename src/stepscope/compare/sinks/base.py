"""What a sink is, and the list of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stepscope.compare.history.model import Entry
from stepscope.trace.errors import StepscopeError, StorageError, UsageError

PREFIX: Final = "stepscope/"
"""Before the name of every figure, so that they stand together among others."""


@dataclass(frozen=True)
class Sink:
    """An experiment tracker.

    Attributes:
        name: what ``--log`` calls it.
        where: what may follow as ``NAME=WHERE``.
        send: sends entries of one or several names to a place; an empty place is the default.
    """

    name: str
    where: str
    send: Callable[[Sequence[Entry], str], None]


NAMES: Final = ("tensorboard", "mlflow", "wandb")


def send(asked: str, entries: Sequence[Entry]) -> str:
    """Send recorded runs to a tracker.

    Args:
        asked: ``NAME`` or ``NAME=WHERE``.
        entries: runs; several names become several series.

    Returns:
        The tracker's name.

    Raises:
        UsageError: there is no such tracker, or its package is not installed.
        StorageError: it cannot be written or reached.
    """
    name, _, where = asked.partition("=")
    if name not in NAMES:
        raise UsageError(f"no tracker {name!r}; known: {', '.join(NAMES)}")
    sink: Sink = importlib.import_module(f"stepscope.compare.sinks.to_{name}").SINK
    try:
        sink.send(entries, where)
    except StepscopeError:
        raise
    except Exception as error:  # a tracker may raise anything
        stated = " ".join(str(error).split())[:200] or type(error).__name__
        raise StorageError(
            f"{name} did not take the figures ({stated}); the history has them, send them again "
            f"with stepscope history log --log {asked}"
        ) from error
    return name


def by_name(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries of each name, in order."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.name, []).append(entry)
    return found
