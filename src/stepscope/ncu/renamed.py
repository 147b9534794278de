"""Which kernel of one report is which of another when its name has changed.

Another tile, other template arguments, another generation of a library: the name differs and the
work is the same. What tells is the words of the name without its numbers, its numbers, the shape of
the launch, the place among kernels that both reports have, and the number of launches. A pair is
made only where each side is clearly the other's best; how sure that is, is said with it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stepscope.ncu.model import Launch
from stepscope.trace.text import LONGEST_JUDGED
from stepscope.trace.units import percent

LEAST: Final = 0.6
"""Similarity from which on kernels are taken for one. Names that share half their words need the
same launch shape, place and number of launches to reach it; those that share none cannot."""

_MARGIN: Final = 0.05
"""How much better than any other the best must be: equally similar kernels are left apart."""
# numbers of tiles decide nothing alone: what they are changes with the shape that was given
_WEIGHTS: Final = {"words": 0.55, "numbers": 0.05, "shape": 0.15, "place": 0.15, "launches": 0.1}
_FEW: Final = 10  # among fewer launches, the place in the report says little
_MOST: Final = 400  # kernels a side: all pairs are looked at
_TOKENS = re.compile(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NOISE: Final = frozenset(("void", "kernel", "const", "int", "native", "at", "impl", "the"))


@dataclass(frozen=True)
class Renamed:
    """A kernel under two names.

    Attributes:
        before: its name in the first report.
        after: its name in the other.
        confidence: similarity, from 0 to 1.
        evidence: what agrees and what does not, in words.
    """

    before: str
    after: str
    confidence: float
    evidence: list[str]


@dataclass(frozen=True)
class _Kernel:
    """What a kernel is judged by.

    Attributes:
        name: its whole name.
        words: words of the function's name without numbers, and how often each occurs.
        numbers: what else the whole name holds: its numbers, its template arguments.
        grid: blocks.
        block: threads of a block.
        launches: how many there are.
        before: the kernel of both reports that was launched last before it; empty for none.
        after: the first one launched after it.
        place: position of its first launch, from 0 to 1.
    """

    name: str
    words: Counter[str]
    numbers: Counter[str]
    grid: int
    block: int
    launches: int
    before: str
    after: str
    place: float


def renamed(
    before: Mapping[str, Sequence[Launch]], after: Mapping[str, Sequence[Launch]]
) -> list[Renamed]:
    """Pair kernels that only one report has.

    Args:
        before: launches by name, all of the first report.
        after: the same of the other.
    """
    both = before.keys() & after.keys()
    left, right = (_kernels(side, both) for side in (before, after))
    if not left or not right or max(len(left), len(right)) > _MOST:
        return []
    scores = [[_similarity(a, b) for b in right] for a in left]
    totals = [[_total(score) for score in row] for row in scores]
    found = []
    for i, row in enumerate(totals):
        j = max(range(len(right)), key=lambda k: row[k])
        rivals = [row[k] for k in range(len(right)) if k != j]
        rivals += [totals[k][j] for k in range(len(left)) if k != i]
        if row[j] >= LEAST and row[j] >= max(rivals, default=0.0) + _MARGIN:
            evidence = _evidence(left[i], right[j], scores[i][j])
            found.append(Renamed(left[i].name, right[j].name, round(row[j], 2), evidence))
    return found


def _kernels(side: Mapping[str, Sequence[Launch]], both: set[str]) -> list[_Kernel]:
    """The kernels that only this side has."""
    order = sorted(
        ((launch.number, name) for name, launches in side.items() for launch in launches)
    )
    names = [name for _, name in order]
    first = {name: at for at, name in reversed(list(enumerate(names)))}
    found = []
    for name, launches in side.items():
        if name in both:
            continue
        at = first[name]
        words = Counter(
            token
            for token in _tokens(launches[0].function)
            if not token.isdigit() and len(token) > 1 and token not in _NOISE
        )
        found.append(
            _Kernel(
                name=name,
                words=words,
                numbers=Counter(_tokens(name)) - words,
                grid=math.prod(launches[0].grid),
                block=math.prod(launches[0].block),
                launches=len(launches),
                before=next((n for n in reversed(names[:at]) if n in both), ""),
                after=next((n for n in names[at:] if n in both), ""),
                place=at / max(len(names) - 1, _FEW),
            )
        )
    return found


def _tokens(text: str) -> list[str]:
    return [token.lower() for token in _TOKENS.findall(text[:LONGEST_JUDGED])]


def _similarity(a: _Kernel, b: _Kernel) -> dict[str, float]:
    """How far each property agrees, from 0 to 1."""
    neighbours = ((a.before == b.before) + (a.after == b.after)) / 2
    # without neighbours in both reports, the place in the report alone tells less
    near = 1 - abs(a.place - b.place)
    return {
        "words": _alike(a.words, b.words),
        "numbers": _alike(a.numbers, b.numbers) if a.numbers or b.numbers else 1.0,
        "shape": (_ratio(a.block, b.block) + _ratio(a.grid, b.grid)) / 2,
        "place": (neighbours + near) / 2,
        "launches": _ratio(a.launches, b.launches),
    }


def _total(score: Mapping[str, float]) -> float:
    # nothing but the name says that the work is the same
    return sum(_WEIGHTS[key] * value for key, value in score.items()) if score["words"] else 0.0


def _alike(a: Counter[str], b: Counter[str]) -> float:
    """Shared part of two bags of words."""
    whole = (a | b).total()
    return (a & b).total() / whole if whole else 0.0


def _ratio(a: int, b: int) -> float:
    return min(a, b) / max(a, b) if a and b else 0.0


def _evidence(a: _Kernel, b: _Kernel, score: Mapping[str, float]) -> list[str]:
    stated = [
        "the same words in the name"
        if score["words"] == 1
        else f"{percent(score['words'])} of the words of the name"
    ]
    if score["numbers"] < 1:
        stated.append("other template arguments or tile sizes")
    stated.append("the same launch shape" if score["shape"] == 1 else "another launch shape")
    if a.before == b.before and a.after == b.after and (a.before or a.after):
        stated.append("between the same kernels")
    if a.launches != b.launches:
        stated.append("another number of launches")
    return stated
