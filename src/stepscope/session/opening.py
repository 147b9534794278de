"""Open captures as one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from stepscope.importers.registry import load
from stepscope.session.answers import Answers
from stepscope.session.captures import captures_of
from stepscope.session.ceilings import read_ceilings
from stepscope.steps.model import StepChoice
from stepscope.trace import progress
from stepscope.trace.cache import Cache
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.given import listed
from stepscope.trace.job import assemble
from stepscope.trace.problems import Problem
from stepscope.trace.trace import Job


class OpenOptions(TypedDict, total=False):
    """How captures are opened; see :class:`~stepscope.session.Session`."""

    again: bool
    step: str
    step_kernel: str


class Opening:
    """The opened job: its traces by rank, and what is known without explaining them.

    What it takes and raises is told at :class:`~stepscope.session.Session`.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        cache: Cache | None = None,
        again: bool = False,
        ceilings: str | Path = "",
        apart: bool = False,
        step: str = "",
        step_kernel: str = "",
    ) -> None:
        given = listed(paths)
        if not given:
            raise UsageError("no path is given; name a capture")
        self.choice = StepChoice(step, step_kernel)
        self._ceilings = read_ceilings(ceilings) if ceilings else None
        # a file name need not be valid Unicode, but results are
        self.paths = [str(path).encode("utf-8", "replace").decode() for path in given]
        if "" in self.paths:
            raise InputError("one of the paths is empty; name a capture")
        self.given = given
        self.explains_elsewhere = False  # set by who lets another process explain
        # kept for as long as the session: the cache holds the locks of the entries that it gave
        self._cache = cache or Cache()
        left_out: list[str] = []
        captures = captures_of(given, left_out)
        self.job: Job = assemble(
            [
                load(path, self._cache, again=again)
                for path in progress.each(captures, "Reading", lambda path: path.name)
            ],
            apart=apart,
        )
        if left_out:
            named = ", ".join(left_out[:4]) + (", ..." if left_out[4:] else "")
            self.job.remarks.append(
                f"what could not be read beside the captures was left out: {named}"
            )
        self._answers = Answers(
            self.job.members,
            self._cache,
            [
                *(repr(self.paths), step, step_kernel, repr(self._ceilings), str(apart)),
                *(*self.job.remarks, *map(repr, self.problems)),
            ],
            again=again,
        )

    @property
    def open_options(self) -> OpenOptions:
        """What another process must say to open the same job."""
        return {"step": self.choice.mark, "step_kernel": self.choice.kernel}

    @property
    def cache_folder(self) -> Path:
        """Where imported files are kept."""
        return self._cache.folder

    @property
    def problems(self) -> list[Problem]:
        """Import problems of all traces, one entry a kind and trace."""
        return [problem for member in self.job.members for problem in member.trace.meta.problems]

    def events(self) -> int:
        """Number of rows of all tables of all traces."""
        return sum(sum(trace.meta.rows.values()) for trace in self.job.traces)
