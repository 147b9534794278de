"""What a history holds, wherever it is kept: entries, and series of them with their changes."""

from __future__ import annotations

import math
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from stepscope.compare.budgets import BUDGETS
from stepscope.compare.changepoints import change_points
from stepscope.compare.profile import Profile
from stepscope.compare.stored import read_profile
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.text import JsonError, from_json

SCHEMA: Final = "stepscope.history/1"
ALWAYS: Final = "step_ms"
"""The figure that every run has."""


class Entry(msgspec.Struct, frozen=True):
    """One recorded run.

    Attributes:
        id: number in the history, ascending in the order of adding; in a Parquet folder the time
            of adding, us since 1970.
        added_ns: when it was added, ns since 1970.
        name: what was run; runs of one name form a series.
        revision: the code's revision; empty where not given.
        label: free text.
        figures: figures by name, those of the budgets.
    """

    id: int
    added_ns: int
    name: str
    revision: str
    label: str
    figures: dict[str, float]


def entry_of(
    where: str, number: Any, added_ns: Any, texts: Sequence[Any], figures: Mapping[Any, Any]
) -> Entry:
    """An entry as a history gave it.

    Args:
        where: the history, for messages.
        number: its number.
        added_ns: when it was added, ns since 1970.
        texts: name, revision and label.
        figures: figures by name.

    Raises:
        InputError: a cell does not hold what it must.
    """
    wrong = ""
    if not (isinstance(number, int) and isinstance(added_ns, int)):
        wrong = "its number or its time is none"
    elif not all(isinstance(text, str) for text in (*texts, *figures)):
        wrong = "a name is no text"
    elif not all(isinstance(v, int | float) and math.isfinite(v) for v in figures.values()):
        wrong = "a figure is no number"
    elif not figures.get(ALWAYS, 0) > 0:
        wrong = f"it has no {ALWAYS}"
    if wrong:
        raise InputError(
            f"entry {str(number)[:40]} of {where} is damaged ({wrong}); put back a copy of it"
        )
    name, revision, label = texts
    return Entry(number, added_ns, name, revision, label, dict(figures))


class Mark(msgspec.Struct, frozen=True):
    """A change of level in a series.

    Attributes:
        entry: first run after it.
        previous: last run before it.
        ratio: level after over level before.
        chance: of such a change by noise alone.
    """

    entry: Entry
    previous: Entry
    ratio: float
    chance: float


class Plot(msgspec.Struct, frozen=True):
    """A series with its changes: the contract ``stepscope.history/1``.

    Attributes:
        schema: name and version of this contract.
        name: what was run.
        figure: name of the figure.
        entries: runs that have it, in the order of their commits where Git knows them all, else in
            that of adding.
        marks: where its level changed.
    """

    schema: str
    name: str
    figure: str
    entries: list[Entry]
    marks: list[Mark]


class Record(msgspec.Struct, frozen=True):
    """A run on its way into a history.

    Attributes:
        key: made up once for the run, so that no attempt to write it again doubles it.
        added_ns: when it was added, ns since 1970.
        name: what was run.
        revision: the code's revision.
        label: free text.
        figures: figures by name.
        packed: the profile, compressed.
    """

    key: str
    added_ns: int
    name: str
    revision: str
    label: str
    figures: dict[str, float]
    packed: bytes

    def entry(self, number: int) -> Entry:
        """The entry that it became."""
        return Entry(number, self.added_ns, self.name, self.revision, self.label, self.figures)


def record_of(profile: Profile, *, name: str, revision: str = "", label: str = "") -> Record:
    """A run as it is kept: its figures, and its profile without what is only drawn."""
    slim = msgspec.structs.replace(profile, timeline=[], marks=[], idle=[])
    return Record(
        key=uuid.uuid4().hex,
        added_ns=time.time_ns(),
        name=storable(name),
        revision=storable(revision),
        label=storable(label),
        figures={n: v for n, b in BUDGETS.items() if (v := b.value(profile)) is not None},
        packed=zlib.compress(msgspec.json.encode(slim), 6),
    )


def storable(text: str) -> str:
    """Text that every kind of history can hold: no NUL, no bytes that are no text."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def unpacked(packed: bytes, where: str) -> Profile:
    """The profile of an entry.

    Args:
        packed: as kept.
        where: the entry and its history, for messages.

    Raises:
        InputError: it is damaged.
    """
    try:
        return read_profile(from_json(zlib.decompress(packed)), where)
    except (zlib.error, JsonError) as error:
        raise InputError(f"{where} is damaged; record that run again") from error


def series(
    entries: Sequence[Entry],
    name: str,
    figure: str,
    where: str,
    order: Callable[[list[Entry]], list[Entry]] | None = None,
) -> Plot:
    """A series and where it changed.

    Args:
        entries: all entries, the earliest first.
        name: what was run; may be empty where there is only one name.
        figure: a figure of the budgets.
        where: the history, for messages.
        order: puts the runs in order; that of adding by default.

    Raises:
        UsageError: no run has that figure, or several names are there and none is given.
    """
    if figure not in BUDGETS:
        raise UsageError(f"no figure {figure!r}; known: {', '.join(BUDGETS)}")
    name = name or _only_name(entries, where)
    chosen = [e for e in entries if e.name == name and e.figures.get(figure, 0) > 0]
    if not chosen:
        raise UsageError(f"no run of {name!r} in {where} has {figure}")
    chosen = order(chosen) if order else chosen
    points = change_points([e.figures[figure] for e in chosen])
    marks = [Mark(chosen[p.at], chosen[p.at - 1], round(p.ratio, 4), p.chance) for p in points]
    return Plot(SCHEMA, name, figure, chosen, marks)


def _only_name(entries: Sequence[Entry], where: str) -> str:
    names = list(dict.fromkeys(e.name for e in entries))
    if len(names) != 1:
        known = ", ".join(names[:8]) or "none"
        raise UsageError(f"say which runs with --name; {where} has: {known}")
    return names[0]


def suspects(marks: Sequence[Mark], good: str, bad: str, entries: Sequence[Entry]) -> Mark | None:
    """The change between two revisions: the largest one, in either direction.

    Args:
        marks: changes of the series.
        good: revision of the earlier end; the first run where empty.
        bad: revision of the later end; the last run where empty.
        entries: runs of the series.

    Raises:
        UsageError: a revision was not recorded, or they stand in the wrong order.
    """
    if len(entries) < 2:
        raise UsageError(f"bisect needs two runs at least, and there is {len(entries)}")
    first, last = 0, len(entries) - 1
    if good:
        first = _positions(entries, good)[-1]
    if bad:
        last = _positions(entries, bad)[0]
    if first >= last:
        raise UsageError(f"{good or 'the first run'} does not come before {bad or 'the last'}")
    inside = {entry.id for entry in entries[first + 1 : last + 1]}
    between = [m for m in marks if m.entry.id in inside]
    return max(between, key=lambda m: abs(m.ratio - 1), default=None)


def _positions(entries: Sequence[Entry], revision: str) -> list[int]:
    found = [at for at, entry in enumerate(entries) if entry.revision.startswith(revision)]
    if not found:
        raise UsageError(f"no run of revision {revision!r} was recorded")
    return found
