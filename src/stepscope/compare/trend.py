"""Several runs one after the other: the contract ``stepscope.trend/2``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from stepscope.compare.comparison import compare
from stepscope.compare.profile import Profile
from stepscope.compare.result import Verdict
from stepscope.compare.work import WORK

SCHEMA: Final = "stepscope.trend/2"
_REPEATS: Final = "compare two of the runs with --repeat-before and --repeat-after"


class TrendRow(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        paths: its inputs.
        step_ns: mean steady step, ns.
        steps: steady steps.
        ratio_to_first: its step over that of the first run.
        since_first: verdict against the first run.
        since_previous: verdict against the run before; ``no_difference`` for the first.
        moved: part of the step that moved most since the run before; null for the first.
        moved_ns: by how much, ns per step.
    """

    paths: list[str]
    step_ns: int
    steps: int
    ratio_to_first: float
    since_first: Verdict
    since_previous: Verdict
    moved: str | None
    moved_ns: int


class Trend(msgspec.Struct, frozen=True):
    """Runs in the order given.

    Attributes:
        schema: name and version of this contract.
        rows: one a run.
        warnings: what limits it.
    """

    schema: str
    rows: list[TrendRow]
    warnings: list[str]


def trend(runs: Sequence[Profile], *, run_noise: float | None = None) -> Trend:
    """Compare each run with the first and with the one before.

    Args:
        runs: profiles, the earliest first.
        run_noise: as in :func:`~stepscope.compare.comparison.compare`.
    """
    rows = []
    warnings: dict[str, None] = {}
    for number, run in enumerate(runs):
        first = compare(runs[:1], [run], run_noise=run_noise, repeats=_REPEATS)
        before = [runs[max(number - 1, 0)]]
        last = compare(before, [run], run_noise=run_noise, repeats=_REPEATS)
        part = last.parts[0] if number and last.parts else None
        rows.append(
            TrendRow(
                paths=run.paths,
                step_ns=round(run.step_ns),
                steps=len(run.wall_ns),
                ratio_to_first=round(run.step_ns / runs[0].step_ns, 4),
                since_first=first.verdict,
                since_previous=last.verdict if number else "no_difference",
                moved=part.part if part else None,
                moved_ns=part.difference_ns if part else 0,
            )
        )
        warnings |= dict.fromkeys(
            f"{', '.join(run.paths)} and the run before: {item.message}"
            for item in last.setup
            if item.name == WORK
        )
        warnings |= dict.fromkeys(last.warnings)
    return Trend(SCHEMA, rows, list(warnings))
