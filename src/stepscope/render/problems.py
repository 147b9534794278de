"""Problems of imports in sentences, the same in every format for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.trace.problems import Problem


def problem_notes(problems: Sequence[Problem]) -> list[str]:
    """One sentence a kind of problem, as :func:`counted_problems` counts them."""
    return [f"{stated}: {remedy}" for stated, remedy in counted_problems(problems)]


def counted_problems(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """(what was counted, what to do) a kind; the captures of a job are counted together.

    What lost nothing (``info``) is left out: the JSON holds it.
    """
    counted: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        if problem.severity != "info":
            counted.setdefault((problem.id, problem.remedy), []).append(problem)
    return [(_stated(same), same[0].remedy) for same in counted.values()]


def _stated(same: list[Problem]) -> str:
    count = sum(problem.count for problem in same)
    scope = dict.fromkeys(table for problem in same for table in problem.scope)
    where = f" in {len(same)} captures" if len(same) > 1 else ""
    one, named = same[0], ", ".join(scope)
    return f"{one.severity}: {count:,} x {one.message} ({named}){where}"
