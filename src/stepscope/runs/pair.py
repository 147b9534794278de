"""Two runs that are looked at together, step by step."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from stepscope.session import OpenOptions, Session
from stepscope.trace.errors import UsageError
from stepscope.trace.one_job import refuse_ranks_as_runs

if TYPE_CHECKING:
    from stepscope.compare.result import Comparison
    from stepscope.compare.step_rows import Matched

SIDES = ("before", "after")


class Pair:
    """Two runs that are looked at together.

    Args:
        before: the earlier run: a capture, or a folder with the ranks of a job.
        after: the later run.
        opening: how captures are opened.

    Raises:
        InputError: a path cannot be read as a capture.
    """

    def __init__(
        self, before: str | Path, after: str | Path, **opening: Unpack[OpenOptions]
    ) -> None:
        self.sessions = {
            side: Session([path], **opening)
            for side, path in zip(SIDES, (before, after), strict=True)
        }
        refuse_ranks_as_runs([session.job.traces for session in self.sessions.values()])

    @cached_property
    def comparison(self) -> Comparison:
        """What ``stepscope compare`` says of them.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.compare.comparison import compare

        return compare(*([self.sessions[side].profile()] for side in SIDES))

    @cached_property
    def _matched(self) -> dict[str, Matched]:
        from stepscope.compare.kernels import rows_of_kernels
        from stepscope.compare.step_rows import Matched

        c = self.comparison
        rows = rows_of_kernels(*c.runs)
        ranges, operators = [p.name for p in c.ranges], [p.name for p in c.operators]
        sides = zip(SIDES, c.runs, rows, strict=True)
        return {
            side: Matched(profile, kernels, ranges, operators) for side, profile, kernels in sides
        }

    def devices(self, side: str) -> list[dict[str, Any]]:
        """The devices of a side, and how long their steps are, ns."""
        aligned = self._session(side).aligned
        return [
            {
                "title": title,
                "count": len(device.explanation.steps),
                "first": device.explanation.first,
                "last": device.explanation.last,
                "median": device.median,
                "lengths": device.explanation.durations_ns.tolist(),
            }
            for title, device in zip(aligned.titles, aligned.devices, strict=True)
        ]

    def step(self, side: str, device: int, step: int) -> dict[str, Any]:
        """One step, each of its operations with its row of the comparison.

        Raises:
            UsageError: there is no such side, device or step.
        """
        from stepscope.compare.step_rows import step_rows

        return step_rows(self._session(side).aligned.of(device), step, self._matched[side])

    def _session(self, side: str) -> Session:
        if side not in SIDES:
            raise UsageError(f"{side[:40]!r} is neither before nor after")
        return self.sessions[side]
