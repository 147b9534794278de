"""Goals: what somebody wants to know, and the ways to find out; one file each in ``entries/goal``.

``stepscope guide`` is made from them. A way names a tool of the knowledge base, what it needs of
the machine, the commands in order, what to look for, and what comes next. Commands hold
placeholders in braces, which :mod:`stepscope.knowledge.guidance` fills in.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from stepscope.trace.errors import UsageError

_FOLDER: Final = Path(__file__).parent / "entries" / "goal"

METHOD: Final = (
    "Baseline: some steady steps, recorded after the warm-up; the same input in every run.",
    "Gap: what of the step is not compute. Read the gaps, not the utilisation.",
    "Cause: the one with the largest predicted gain, with its evidence.",
    "One change: the first recommendation of that cause, nothing else.",
    "Re-trace: the same command, the same steps.",
    "Compare: is it more than noise, and did the prediction come true? Then the next gap.",
)
"""How to find out why a step is slow, whatever the goal is."""

ANNOTATION: Final = (
    "Annotate on two levels: ranges for the phases of a step first; finer ones only inside the "
    "phase that turned out slow. More of them cost time and hide the picture."
)


@dataclass(frozen=True)
class Way:
    """One way to find out.

    Attributes:
        tool: id of a tool of the knowledge base.
        when: when it is the right one.
        look_for: what in the result answers the question.
        next: what comes then; it holds a command.
        needs: checks of ``stepscope doctor`` that must not be missing; ``gpus``: two GPUs.
        tables: canonical tables that a capture at hand must have for ``read`` to answer; ``ranks``:
            the captures of several ranks.
        record: commands that make a capture or look at the machine, in order.
        read: commands that only read a capture.
        overhead: what recording costs, where it is not that of the tool.
        source: where that is from.
    """

    tool: str
    when: str
    look_for: str
    next: str
    needs: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    record: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    overhead: str = ""
    source: str = ""


@dataclass(frozen=True)
class Goal:
    """What somebody wants to know.

    Attributes:
        id: file name without suffix.
        order: place in the list of goals.
        title: the question, as a user asks it.
        meaning: what is behind it, in some sentences; Markdown.
        words: single words that name it.
        ways: the ways to find out, the best first.
        see: ids of entries, causes and other terms to look at.
    """

    id: str
    order: int
    title: str
    meaning: str
    words: list[str]
    ways: list[Way]
    see: list[str] = field(default_factory=list)


@cache
def goals() -> dict[str, Goal]:
    """Every goal by id, in order.

    Raises:
        TypeError: a file lacks a field or has an unknown one.
    """
    found = []
    for path in sorted(_FOLDER.glob("*.toml")):
        try:
            fields: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
            ways = [Way(**way) for way in fields.pop("ways")]
            found.append(Goal(id=path.stem, ways=ways, **fields))
        except (tomllib.TOMLDecodeError, TypeError, KeyError) as error:
            raise TypeError(f"entries/goal/{path.name}: {error}") from error
    return {goal.id: goal for goal in sorted(found, key=lambda goal: goal.order)}


def find_goal(asked: str) -> Goal:
    """The goal that a user means: by id, by number, else by the words of the question.

    Raises:
        UsageError: none is meant, or several are equally likely; the message names them.
    """
    known = goals()
    plain = re.sub(r"[^a-z0-9]+", "_", asked.lower()).strip("_")
    if plain in known:
        return known[plain]
    if plain.isdecimal():
        if 0 < int(plain) <= len(known):
            return list(known.values())[int(plain) - 1]
        raise UsageError(f"there are goals 1 to {len(known)}, not {plain}")
    asked_words = set(plain.split("_"))
    hits = {
        goal.id: len(asked_words & {*goal.words, *goal.id.split("_")}) for goal in known.values()
    }
    most = max(hits.values())
    best = [name for name, count in hits.items() if count == most and most]
    if len(best) == 1:
        return known[best[0]]
    choice = ", ".join(best or known)
    why = "means several goals" if best else "names no goal"
    raise UsageError(f"{asked!r} {why}; choose one of: {choice}")
