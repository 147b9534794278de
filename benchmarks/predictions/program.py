"""What a program of the exam is: a pair of loops, with a planted fault and with its repair."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Marks = Literal["none", "steps", "phases", "profiler"]
Half = Literal["development", "unseen"]


@dataclass
class Running:
    """One side of a pair, ready to run.

    Attributes:
        step: makes one step; it synchronises with the GPU only where the program itself would.
        enter: called before a stretch of steps: sets what is global (precision), starts threads.
        leave: called after it: nothing of this side may disturb the other one.
        close: ends workers and frees what is kept.
        settle: steps before a stretch is timed: those of batches that workers have ready, too.
    """

    step: Callable[[], object]
    enter: Callable[[], object] = lambda: None
    leave: Callable[[], object] = lambda: None
    close: Callable[[], object] = lambda: None
    settle: int = 2


@dataclass(frozen=True)
class Program:
    """A pair.

    Attributes:
        name: unique.
        cause: id of the cause or lever that the repair removes or applies.
        family: kind of model: vision, language, diffusion, moe, graph, recommender, rl, decode.
        repair: what is changed by hand, in one sentence.
        make: builds a side (``make(False)`` with the fault, ``make(True)`` repaired).
        others: further faults that both sides have.
        marks: what the program says of its steps: nothing, a range a step, ranges for its phases,
            too, or only what torch.profiler's ``step()`` marks.
        period: steps from one occurrence of a rare fault to the next.
        samples: how many times the samples of a step the repaired one handles (larger batches).
        ranks: processes, one a GPU; ``make`` is then called in each, after the process group was
            made.
        record: further options of ``stepscope run`` for the own capture, as ``--gc``.
        compiles: whether the repair compiles, which takes tens of seconds at first.
    """

    name: str
    cause: str
    family: str
    repair: str
    make: Callable[[bool], Running]
    others: tuple[str, ...] = ()
    marks: Marks = "none"
    period: int = 1
    samples: float = 1.0
    ranks: int = 1
    record: tuple[str, ...] = ()
    compiles: bool = False


UNSEEN = ("version 0.1 with 369 pairs", "version 0.1 with 405 pairs")
"""What the programs of the unseen sets were written after."""


def half(written_after: str) -> Half:
    """The half of the exam that a pair belongs to: the newest sets are only scored.

    Once single results of a set were looked at, it is for development.
    """
    return "unseen" if written_after in UNSEEN else "development"


class Marker:
    """Opens the ranges that the program has; harnesses set what they are."""

    open: Callable[[str], object] | None = None
    close: Callable[[], object] | None = None


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A range around a phase of the step, where the program has ranges."""
    if Marker.open is None or Marker.close is None:
        yield
        return
    Marker.open(name)
    try:
        yield
    finally:
        Marker.close()


SMALL = os.environ.get("EXAM_SMALL") == "1"
"""Whether all sizes are tiny, to try the programs without a GPU."""
