"""The inputs of a task over many captures: files, folders, URLs, with what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.api.inputs import CAPTURE_SUFFIXES, expand
from stepscope.jobs.engine.remote import is_remote, listed, without_secret
from stepscope.jobs.engine.run import Engine
from stepscope.jobs.engine.work import FAILED, Item, Outcome
from stepscope.trace.errors import InputError, UsageError

__all__ = ["Asked", "Engine", "asked_of", "shown_place"]


@dataclass
class Asked:
    """The inputs of a run, with what became of each.

    Attributes:
        items: all of them.
        outcomes: of each; None while it is not known.
        facts: what is known of each that could be read.
    """

    items: list[Item]
    outcomes: list[Outcome | None]
    facts: list[dict[str, Any] | None]


def asked_of(paths: Sequence[str | Path]) -> Asked:
    """The captures that paths stand for; what cannot be found is an outcome, too."""
    items: list[Item] = []
    outcomes: list[Outcome | None] = []

    def add(place: str, outcome: Outcome | None = None, identity: str = "", size: int = 0) -> None:
        items.append(Item(place, identity, size))
        outcomes.append(outcome)

    for given in map(str, paths):
        left_out: list[str] = []
        try:
            if is_remote(given):
                for url, identity, size in listed(given, CAPTURE_SUFFIXES):
                    add(url, None, identity, size)
                continue
            for path in expand(Path(given), left_out):
                try:
                    add(str(path), None, *_identity(path))
                except OSError as error:  # it went away after the folder was listed
                    add(str(path), Outcome(FAILED, f"{path} cannot be read: {error.strerror}"))
        except InputError as error:
            add(shown_place(given), Outcome(FAILED, str(error)))
        for name in left_out:
            add(
                str(Path(given, name)),
                Outcome(FAILED, f"{name} looks like a capture by its name only; look at it"),
            )
    places = [item.place for item in items]
    if len(set(places)) < len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise UsageError(f"{twice} is given twice; give each capture once")
    return Asked(items, outcomes, [None] * len(items))


def shown_place(place: str) -> str:
    """A path or URL for messages: without password."""
    return without_secret(place) if is_remote(place) else place


def _identity(path: Path) -> tuple[str, int]:
    """What tells whether a file or the files of a folder have changed, and their size."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [file.stat() for file in files if file.is_file()]
    size = sum(stat.st_size for stat in stats)
    return f"{size} {max((stat.st_mtime_ns for stat in stats), default=0)}", size
