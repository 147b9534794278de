"""Several runs: compare them, judge them against budgets and a baseline, show two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Unpack

from stepscope.api.job import Job, OpenOptions
from stepscope.trace import progress
from stepscope.trace.errors import UsageError
from stepscope.trace.given import listed
from stepscope.trace.one_job import refuse_ranks_as_runs

if TYPE_CHECKING:
    from stepscope.compare.budgets import CellLimit, SqlLimit
    from stepscope.compare.gate import GateResult
    from stepscope.compare.profile import Profile
    from stepscope.compare.result import Comparison
    from stepscope.compare.step_rows import Matched, PairDevice, StepPicture
    from stepscope.compare.trees import Merged
    from stepscope.compare.trend import Trend

Paths = str | Path | Sequence[str | Path]
"""One path, or several."""

Side = Literal["before", "after"]
SIDES: Final[tuple[Side, ...]] = ("before", "after")


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


def compare_trees(
    before: Paths, after: Paths, *, names: bool = False, **opening: Unpack[OpenOptions]
) -> list[Merged]:
    """The operators and annotations of two runs as one call tree, or by name.

    Of several ranks the first one counts.

    Args:
        before: the earlier run, one path or the paths of its ranks.
        after: the later run.
        names: whether to add up by name, wherever an operator is called.
        opening: how captures are opened.

    Raises:
        InputError: a path cannot be read as a capture, or holds no GPU work.
        UsageError: one run records neither operators nor annotations, and the other does.
    """
    from stepscope.compare.places import HOW_RECORDED
    from stepscope.compare.trees import by_name, call_tree, merge

    jobs = [Job(listed(paths), **opening) for paths in (before, after)]
    refuse_ranks_as_runs([job.traces for job in jobs])
    devices = [job.explained.devices[0] for job in jobs]
    trees = [call_tree(device.explanation, device.read) for device in devices]
    for tree, side in zip(trees, ("before", "after"), strict=True):
        if not tree.children and any(other.children for other in trees):
            raise UsageError(
                f"neither operators nor annotations are recorded {side}, so nothing compares with "
                f"those of the other run: {HOW_RECORDED['operators']}"
            )
    return by_name(*trees) if names else merge(*trees)


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
    jobs = [Job(paths, **opening) for paths in runs]
    refuse_ranks_as_runs([job.traces for job in jobs])
    # one after the other: an explained job holds its columns
    numbers = range(1, len(runs) + 1)
    return [jobs.pop(0).profile() for _ in progress.each(numbers, "Run", "{}".format)]


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


def gate_runs(
    paths: Paths,
    *,
    baseline: Paths = (),
    budgets: str | Sequence[str] = (),
    config: str | Path | None = None,
    allow_missing: bool = False,
    save_baseline: str | Path | None = None,
    **opening: Unpack[OpenOptions],
) -> GateResult:
    """Judge captures of one state of the code against budgets and a baseline.

    Args:
        paths: captures of the code under test; each is one run, a folder being the ranks of one.
        baseline: stored baselines, or captures of the code to compare with.
        budgets: limits, written ``NAME=VALUE``.
        config: a TOML file with a ``[gate]`` table; by default ``stepscope.toml`` in the working
            directory, where there is one.
        allow_missing: whether what cannot be told passes.
        save_baseline: file that receives the captures as a baseline, added to the runs in it.
        opening: how captures are opened.

    Raises:
        InputError: a path cannot be read.
        UsageError: nothing was asked, or something unknown.
        StorageError: the baseline cannot be written.
    """
    from dataclasses import replace

    from msgspec import structs

    from stepscope import __version__
    from stepscope.compare.budgets import Rules, read_rules, with_limits
    from stepscope.compare.gate import NOTHING_ASKED, Saved, gate
    from stepscope.compare.stored import add_to_baseline

    usual = Path("stepscope.toml")
    file = Path(config) if config else usual if usual.is_file() else None
    rules = with_limits(read_rules(file) if file else Rules(), listed(budgets))
    if allow_missing:
        rules = replace(rules, allow_missing=True)
    if not (baseline or rules.limits or rules.figures or rules.cells or save_baseline):
        raise UsageError(NOTHING_ASKED)  # before anything is read
    before = profiles_of(baseline, **opening) if listed(baseline) else []
    jobs = [Job([path], **opening) for path in listed(paths)]
    refuse_ranks_as_runs([job.traces for job in jobs])
    numbered = progress.each(range(len(jobs)), "Run", lambda number: str(number + 1))
    runs = [jobs[number].profile() for number in numbered]

    def compute(item: SqlLimit | CellLimit) -> float:
        return max(job.reports.limited(item) for job in jobs)

    asked = before or rules.limits or rules.figures or rules.cells or not save_baseline
    result = gate(runs, before, rules, compute) if asked else nothing_asked(runs)
    if save_baseline:
        held = add_to_baseline(Path(save_baseline), runs, __version__)
        place = str(save_baseline).encode("utf-8", "replace").decode()
        result = structs.replace(result, saved=Saved(place, len(runs), held))
    return result


def nothing_asked(runs: Sequence[Profile]) -> GateResult:
    """The verdict where only a baseline is to be written."""
    from stepscope.compare.comparison import merged
    from stepscope.compare.gate import SCHEMA, GateResult

    step = round(merged(runs).step_ns)
    return GateResult(SCHEMA, True, [run.paths for run in runs], step, [], [], [], [], "")


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
        self.jobs = {
            side: Job([path], **opening) for side, path in zip(SIDES, (before, after), strict=True)
        }
        refuse_ranks_as_runs([job.traces for job in self.jobs.values()])

    @cached_property
    def comparison(self) -> Comparison:
        """What ``stepscope compare`` says of them.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.jobs["before"].compare(self.jobs["after"])

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

    def devices(self, side: str) -> list[PairDevice]:
        """The devices of a side, and how long their steps are, ns."""
        aligned = self._job(side).views.aligned
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

    def step(self, side: str, device: int, step: int) -> StepPicture:
        """One step, each of its operations with its row of the comparison.

        Raises:
            UsageError: there is no such side, device or step.
        """
        from stepscope.compare.step_rows import step_rows

        return step_rows(self._job(side).views.aligned.of(device), step, self._matched[side])

    def _job(self, side: str) -> Job:
        if side not in SIDES:
            raise UsageError(f"{side[:40]!r} is neither before nor after")
        return self.jobs[side]
