"""The contract ``stepscope.explain/1``: what is known of a term, and how it is found."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stepscope.knowledge.entry import Entry, also_called
from stepscope.knowledge.goal import Goal
from stepscope.trace.errors import UsageError

SCHEMA: Final = "stepscope.explain/1"

_MOST_NEAR = 5
_UNIT: Final = re.compile(r"_(ns|ms|us|bytes)$")


class Detail(msgspec.Struct, frozen=True):
    """A further fact under a heading of its own.

    Attributes:
        name: the heading, such as the name of a column.
        text: the fact.
    """

    name: str
    text: str


class Meaning(msgspec.Struct, frozen=True):
    """What is known of one thing.

    Attributes:
        kind: what it is: cause, lever, report, rule, table, column, limiter, stall reason, kernel
            category, import problem, or a kind of the knowledge base.
        id: its public id.
        title: for people.
        meaning: the definition; Markdown.
        reading: what it says where it is seen; may be empty.
        remedies: what to do, the most effective first.
        details: further facts: columns of a report, what separates a cause from others.
        see: ids to look at next.
        reference: where it comes from; may be empty.
    """

    kind: str
    id: str
    title: str
    meaning: str
    reading: str = ""
    remedies: list[str] = []
    details: list[Detail] = []
    see: list[str] = []
    reference: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """The answer to ``stepscope explain TERM``.

    Attributes:
        schema: name and version of this contract.
        term: what was asked for.
        found: everything of that name.
    """

    schema: str
    term: str
    found: list[Meaning]


def of_entry(entry: Entry) -> Meaning:
    """An entry of the knowledge base as an answer."""
    return Meaning(
        kind=entry.kind,
        id=entry.id,
        title=entry.title,
        meaning=entry.meaning,
        reading=entry.reading,
        remedies=entry.remedies,
        see=entry.see,
        reference=entry.reference,
    )


def of_goal(goal: Goal) -> Meaning:
    """A goal of the guide as an answer."""
    return Meaning(
        kind="goal",
        id=goal.id,
        title=goal.title,
        meaning=goal.meaning,
        remedies=[f"`stepscope guide --goal {goal.id}`"],
        see=goal.see,
    )


def find(
    term: str, known: Sequence[Meaning], entries: Iterable[Entry], columns: Iterable[Meaning]
) -> list[Meaning]:
    """What a term names: by id or title, else by a name that captures show, else columns.

    Args:
        term: as the user wrote it: case, hyphens and spaces do not matter.
        known: what is known, from all registries.
        entries: the entries among them, with the names by which captures show them.
        columns: columns of tables and reports, looked at where nothing else has the name.

    Raises:
        UsageError: nothing has that name; the message gives the nearest.
    """
    asked = _plain(term)
    if not asked:
        raise UsageError("name a term, as in: stepscope explain host_sync")
    loose = _loose(term)
    found = [m for m in known if asked in (_plain(m.id), _plain(m.title))]
    found += [m for m in known if m not in found and loose in (_loose(m.id), _loose(m.title))]
    if not found:
        name = " ".join(term.split())
        named = {entry.id for entry in entries if entry.is_named(name)} | {*also_called(name)}
        found = [m for m in known if m.id in named]
    if not found:
        held = list(columns)
        found = [m for m in held if asked in (_plain(m.id), _plain(m.title))]
        found = found or [m for m in held if asked == _UNIT.sub("", _plain(m.title))]
    if not found:
        found = [m for m in known if f"_{asked}_" in f"_{_plain(m.title)}_"]
    if found:
        return found
    words = {word: m.id for m in known for word in (_plain(m.id), _plain(m.title))}
    near = dict.fromkeys(words[w] for w in difflib.get_close_matches(asked, words, n=_MOST_NEAR))
    hint = f"; near: {', '.join(near)}" if near else ""
    raise UsageError(f"nothing is known by the name {term!r}{hint}; --list shows all names")


def _loose(name: str) -> str:
    """A name without what people write differently: camel case, plural, -ize, a prefix."""
    words = _plain(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name))
    words = re.sub(r"iz(?=e|ation|ing)", "is", words)
    words = re.sub(r"^(warp_|issue_)?stall(ed)?_", "", words)
    return "_".join(re.sub(r"(?<=[a-rt-z]{3})s$", "", word) for word in words.split("_"))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "_", name.lower()).strip("_")
