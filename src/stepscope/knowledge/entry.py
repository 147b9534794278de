"""Entries of the knowledge base: what they hold, how they are read, how a name finds them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

KINDS: Final = {
    "term": "a term of the field",
    "thread": "a thread or process of a training job, by the name that a capture shows",
    "call": "a call of CUDA, NCCL or the C library",
    "error": "a message of a profiler or of the framework",
    "tool": "a tool, and when it is the right one",
}
"""Every kind of entry, which is also the name of its folder."""

_FOLDER: Final = Path(__file__).with_name("entries")
_SYNONYMS: Final = Path(__file__).with_name("synonyms.toml")


@dataclass(frozen=True)
class Entry:
    """One thing that is known.

    Attributes:
        kind: one of ``KINDS``.
        id: file name without suffix; unique among all kinds.
        title: as people write it.
        meaning: what it is; Markdown, links are relative to ``docs``.
        reading: what it says where it is seen; empty where nothing is to be added.
        remedies: what to do, the most effective first; commands begin with the program.
        see: ids of other entries, causes, reports or limiters.
        names: regular expressions, in any case, for the whole of a name or message that a user may
            see.
        reference: where the facts come from; empty for terms.
        overhead: of a tool: what it costs the program, measured where a figure stands.
        programs: of a foreign tool: the programs that commands may name.
        flags: of a foreign tool: all options and subcommands that commands may use, from its
            reference; a test holds every command to them.
        flags_from: where these are documented.
    """

    kind: str
    id: str
    title: str
    meaning: str
    reading: str = ""
    remedies: list[str] = field(default_factory=list)
    see: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    reference: str = ""
    overhead: str = ""
    programs: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    flags_from: str = ""

    def is_named(self, name: str) -> bool:
        """Whether a name as a capture or a terminal shows it means this entry."""
        return _fits(self.names, name)


@cache
def entries() -> dict[str, Entry]:
    """Every entry by id, ordered by kind and title.

    Raises:
        TypeError: a file lacks a field or has an unknown one, or two files share an id.
    """
    found: dict[str, Entry] = {}
    for kind in KINDS:
        for path in sorted((_FOLDER / kind).glob("*.toml")):
            if path.stem in found:
                raise TypeError(f"two entries are called {path.stem!r}; rename {path.name}")
            try:
                fields = tomllib.loads(path.read_text(encoding="utf-8"))
                entry = Entry(kind=kind, id=path.stem, **fields)
            except (tomllib.TOMLDecodeError, TypeError) as error:
                raise TypeError(f"entries/{kind}/{path.name}: {error}") from error
            found[path.stem] = entry
    order = list(KINDS)
    return dict(sorted(found.items(), key=lambda i: (order.index(i[1].kind), _letters(i[1].title))))


@cache
def synonyms() -> dict[str, list[str]]:
    """What people call causes, levers, limiters and tables, by the id of these: expressions."""
    found: dict[str, list[str]] = tomllib.loads(_SYNONYMS.read_text(encoding="utf-8"))
    return found


def also_called(name: str) -> list[str]:
    """Ids of what people call so although it has another name here."""
    return [id_ for id_, patterns in synonyms().items() if _fits(patterns, name)]


def _fits(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name, re.IGNORECASE) for pattern in patterns)


def _letters(title: str) -> str:
    return re.sub(r"\W", "", title.lower())
