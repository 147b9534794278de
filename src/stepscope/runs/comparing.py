"""Profiles of runs, and whether one got faster than another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from stepscope.session import OpenOptions, Session
from stepscope.trace import progress
from stepscope.trace.errors import UsageError
from stepscope.trace.given import listed
from stepscope.trace.one_job import refuse_ranks_as_runs

if TYPE_CHECKING:
    from stepscope.compare.profile import Profile
    from stepscope.compare.result import Comparison
    from stepscope.compare.trend import Trend

Paths = str | Path | Sequence[str | Path]
"""One path, or several."""


def compare_runs(
    before: Paths | Sequence[Paths],
    after: Paths | Sequence[Paths],
    *,
    run_noise: float | None = None,
    **opening: Unpack[OpenOptions],
) -> Comparison:
    """Compare two runs, each captured once or several times.

    Args:
        before: captures of the earlier run, or one; each is a path, or the paths of its ranks.
        after: captures of the later run.
        run_noise: distance that 95 of 100 pairs of single runs of the same code keep, as a share.
        opening: how captures are opened.

    Raises:
        InputError: a path cannot be read as a capture.
    """
    from stepscope.compare.comparison import compare

    earlier, later = listed(before), listed(after)
    if not (earlier and later):
        raise UsageError("a comparison needs two runs; name captures of both")
    found = profiles([*earlier, *later], **opening)
    return compare(found[: len(earlier)], found[len(earlier) :], run_noise=run_noise)


def trend_of_runs(
    runs: Sequence[Paths], *, run_noise: float | None = None, **opening: Unpack[OpenOptions]
) -> Trend:
    """Compare several runs in the order given, the earliest first.

    Raises:
        InputError: a path cannot be read as a capture.
    """
    from stepscope.compare.trend import trend

    return trend(profiles(runs, **opening), run_noise=run_noise)


def profiles(runs: Sequence[Paths], **opening: Unpack[OpenOptions]) -> list[Profile]:
    """Profiles of runs, each one path, or the paths of its ranks.

    Raises:
        InputError: a path cannot be read as a capture.
        UsageError: ranks of one job are given as runs; told before any profile is made.
    """
    sessions = [Session(paths, **opening) for paths in runs]
    refuse_ranks_as_runs([session.job.traces for session in sessions])
    # one after the other: an explained session holds its columns
    numbers = range(1, len(runs) + 1)
    return [sessions.pop(0).profile() for _ in progress.each(numbers, "Run", "{}".format)]


def profiles_of(paths: Paths, **opening: Unpack[OpenOptions]) -> list[Profile]:
    """Profiles of runs, each path being a capture, a folder of ranks, or a stored baseline.

    Raises:
        InputError: a path can be read as neither.
    """
    from stepscope.compare.stored import is_baseline, read_baseline

    given = listed(paths)
    stored = [path for path in given if is_baseline(Path(path))]
    captures = [path for path in given if path not in stored]
    made = iter(profiles([[path] for path in captures], **opening))
    return [
        run
        for path in given
        for run in (read_baseline(Path(path)).runs if path in stored else [next(made)])
    ]
