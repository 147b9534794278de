"""Which tool when: the guide, with what this machine can do and what captures at hand hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from stepscope.knowledge.goal import find_goal
from stepscope.knowledge.guidance import (
    Capture,
    GoalList,
    Guidance,
    GuideBook,
    Machine,
    advise,
    goal_list,
    guide_book,
    machine_of,
)

if TYPE_CHECKING:
    from stepscope.trace.trace import RankTrace


def guide_goals() -> GoalList:
    """Every goal that the guide knows, and the method."""
    return goal_list()


def guide(
    goal: str,
    program: Sequence[str] = (),
    captures: Sequence[str] = (),
    machine: Machine | None = None,
) -> Guidance:
    """Which tool answers a question, with exact commands for this machine.

    Args:
        goal: id of a goal, its number, or words of the question, such as "idle gpu".
        program: the program that is to be looked at, word by word.
        captures: captures at hand; what they answer comes first.
        machine: what is known of the machine; this one is examined by default.

    Raises:
        UsageError: the words mean no goal, or several.
        InputError: a capture cannot be read.
    """
    found = find_goal(goal)  # before the machine is examined: that takes its time
    capture = _capture(captures) if captures else None
    return advise(found, machine or this_machine(tuple(program)), program, capture)


def guide_about(paths: Sequence[str], ranks: Sequence[RankTrace]) -> GuideBook:
    """The answers to all goals, for captures that are open already."""
    return guide_book(this_machine(), _held(paths, ranks))


@cache
def this_machine(program: tuple[str, ...] = ()) -> Machine:
    """What ``stepscope doctor`` finds here, for the guide."""
    from stepscope.api.recording import examine_machine

    return machine_of(examine_machine(program))


def _capture(paths: Sequence[str]) -> Capture:
    from stepscope.api.job import Job

    return _held(paths, Job(paths).ranks)


def _held(paths: Sequence[str], ranks: Sequence[RankTrace]) -> Capture:
    """What the tables of all ranks hold together."""
    rows: dict[str, int] = {}
    missing: dict[str, str] = {}
    for rank in ranks:
        meta = rank.trace.meta
        for table, count in meta.rows.items():
            rows[table] = rows.get(table, 0) + count
        missing |= {table.table: table.reason for table in meta.missing}
    rows["ranks"] = len(ranks) if len(ranks) > 1 else 0
    missing["ranks"] = "it is the capture of one rank; give those of all ranks"
    return Capture(list(paths), ranks[0].trace.meta.command if ranks else "", rows, missing)
