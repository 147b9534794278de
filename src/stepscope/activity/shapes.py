"""Judge many names at once: names that differ in their numbers only are judged together.

A long run has hundreds of thousands of distinct range names (``request 4711``) of a few hundred
shapes (``request 0``). Predicates of ``vocabulary.py`` do not tell one number from another, so a
shape is asked once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.trace.frame import BoolArray, Frame, IntArray
from stepscope.trace.text import LONGEST_JUDGED

_NUMBER: Final = re.compile(r"[0-9]+")
_KEPT: Final = 4
"""Lists of names whose shapes are kept: those of the ranges and operators of two traces."""


@dataclass(frozen=True)
class _Shapes:
    """Shapes of a list of names: the list, the shape of each, and the distinct ones."""

    texts: Sequence[str]
    code: IntArray
    distinct: list[str]


_known: dict[int, _Shapes] = {}


def judged(texts: Sequence[str], holds: Callable[[str], bool]) -> BoolArray:
    """Which names satisfy a predicate that does not tell one number from another.

    Args:
        texts: the names; must not be changed afterwards.
        holds: the predicate.
    """
    found = _shapes(texts)
    return np.array([holds(shape[:LONGEST_JUDGED]) for shape in found.distinct], bool)[found.code]


def hits(frame: Frame, column: str, holds: Callable[[str], bool]) -> BoolArray:
    """Mask of the rows whose text satisfies such a predicate; null does not."""
    mask = np.append(judged(frame.texts[column], holds), False)
    return mask.take(frame[column])


def marking_steps(texts: Sequence[str], step_label: str) -> BoolArray:
    """Which names mark a whole step or more, see :func:`.vocabulary.marks_steps`.

    Args:
        texts: names of ranges.
        step_label: stem of the ranges that were found to mark the steps.
    """
    found = judged(texts, words.holds_a_step)
    if step_label:  # it may hold a number itself, so that it is looked for in the names
        for code, text in enumerate(texts):
            if text.startswith(step_label) and words.is_labelled(text, step_label):
                found[code] = True
    return found


def _shapes(texts: Sequence[str]) -> _Shapes:
    known = _known.get(id(texts))
    if known is not None and known.texts is texts:
        return known
    place: dict[str, int] = {}
    shaped = (_NUMBER.sub("0", text) for text in texts)
    code = np.fromiter(
        (place.setdefault(shape, len(place)) for shape in shaped), np.int64, len(texts)
    )
    made = _Shapes(texts, code, list(place))
    _known[id(texts)] = made  # the list is held, so that no other gets its number
    while len(_known) > _KEPT:
        _known.pop(next(iter(_known)))
    return made
