"""Several runs at once: compare them, judge them, keep them. The facade's second half.

:mod:`stepscope.session` opens one run; what looks at more than one is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.session import Session
from stepscope.trace.errors import StorageError, UsageError
from stepscope.trace.one_job import refuse_ranks_as_runs

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.compare.budgets import CellLimit, SqlLimit
    from stepscope.compare.gate import GateResult as GateResult  # noqa: PLC0414 - for the doors
    from stepscope.compare.history import Entry, Mark, Plot
    from stepscope.compare.profile import Profile
    from stepscope.compare.result import Comparison as Comparison  # noqa: PLC0414 - for the doors
    from stepscope.compare.step_rows import Matched
    from stepscope.compare.trend import Trend as Trend  # noqa: PLC0414 - for the doors


SIDES = ("before", "after")


class Pair:
    """Two runs that are looked at together.

    Args:
        before: the earlier run: a capture, or a folder with the ranks of a job.
        after: the later run.
        again: import even what the cache holds.

    Raises:
        InputError: a path cannot be read as a capture.
    """

    def __init__(self, before: str, after: str, *, again: bool = False) -> None:
        self.sessions = {
            side: Session([path], again=again)
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


def compare_runs(
    before: Sequence[Sequence[str]],
    after: Sequence[Sequence[str]],
    *,
    run_noise: float | None = None,
    again: bool = False,
) -> Comparison:
    """Compare two runs, each captured once or several times.

    Args:
        before: captures of the earlier run; each is one path, or the paths of its ranks.
        after: captures of the later run.
        run_noise: distance that 95 of 100 pairs of single runs of the same code keep, as a share.
        again: import even what the cache holds.

    Raises:
        InputError: a path cannot be read as a capture.
    """
    from stepscope.compare.comparison import compare

    profiles = _profiles([*before, *after], again=again)
    return compare(profiles[: len(before)], profiles[len(before) :], run_noise=run_noise)


def _profiles(runs: Sequence[Sequence[str]], *, again: bool = False) -> list[Profile]:
    """Profiles of runs; ranks of one job that are given as runs are refused before any is made."""
    sessions = [Session(paths, again=again) for paths in runs]
    refuse_ranks_as_runs([session.job.traces for session in sessions])
    # one after the other: an explained session holds its columns
    return [sessions.pop(0).profile() for _ in runs]


def profiles_of(paths: Sequence[str], *, again: bool = False) -> list[Profile]:
    """Profiles of runs, each path being a capture, a folder of ranks, or a stored baseline.

    Raises:
        InputError: a path can be read as neither.
    """
    from stepscope.compare.stored import is_baseline, read_baseline

    stored = [path for path in paths if is_baseline(Path(path))]
    captures = [path for path in paths if path not in stored]
    made = iter(_profiles([[path] for path in captures], again=again))
    return [
        run
        for path in paths
        for run in (read_baseline(Path(path)).runs if path in stored else [next(made)])
    ]


def gate_runs(
    paths: Sequence[str],
    *,
    baseline: Sequence[str] = (),
    budgets: Sequence[str] = (),
    config: str | None = None,
    allow_missing: bool = False,
    save_baseline: str | None = None,
    again: bool = False,
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
        again: import even what the cache holds.

    Raises:
        InputError: a path cannot be read.
        UsageError: nothing was asked, or something unknown.
        StorageError: the baseline cannot be written.
    """
    from dataclasses import replace

    from stepscope import __version__
    from stepscope.compare.budgets import Rules, read_rules, with_limits
    from stepscope.compare.gate import NOTHING_ASKED, gate
    from stepscope.compare.stored import add_to_baseline

    usual = Path("stepscope.toml")
    file = Path(config) if config else usual if usual.is_file() else None
    rules = with_limits(read_rules(file) if file else Rules(), budgets)
    if allow_missing:
        rules = replace(rules, allow_missing=True)
    if not (baseline or rules.limits or rules.figures or rules.cells or save_baseline):
        raise UsageError(NOTHING_ASKED)  # before anything is read
    before = profiles_of(baseline, again=again)
    sessions = [Session([path], again=again) for path in paths]
    refuse_ranks_as_runs([session.job.traces for session in sessions])
    runs = [session.profile() for session in sessions]

    def compute(item: SqlLimit | CellLimit) -> float:
        return max(session.limited(item) for session in sessions)

    asked = before or rules.limits or rules.figures or rules.cells or not save_baseline
    result = gate(runs, before, rules, compute) if asked else nothing_asked(runs)
    if save_baseline:
        add_to_baseline(Path(save_baseline), runs, __version__)
    return result


def nothing_asked(runs: Sequence[Profile]) -> GateResult:
    """The verdict where only a baseline is to be written."""
    from stepscope.compare.comparison import merged
    from stepscope.compare.gate import SCHEMA, GateResult

    step = round(merged(runs).step_ns)
    return GateResult(SCHEMA, True, [run.paths for run in runs], step, [], [], [], [], "")


UNSENT = "stepscope-history-unsent"
"""Folder of the working directory that keeps runs which a remote history did not take."""


def history_add(
    place: str,
    paths: Sequence[str],
    *,
    name: str = "",
    revision: str | None = None,
    label: str = "",
) -> Iterator[Entry]:
    """Record captures in a history, each path being one run.

    What a remote history does not take is kept in the folder ``UNSENT``, so that nothing is lost.

    Args:
        place: the history: file, folder or URL; it is made if need be.
        paths: captures, or folders with the ranks of one.
        name: what was run; by default the capture's name.
        revision: the code's revision; by default that of the Git repository of the working
            directory, where there is one.
        label: free text.

    Raises:
        InputError: a capture or the history cannot be read.
        StorageError: the history cannot be written.
        UsageError: a package that reaches the history is missing.
    """
    from stepscope.compare.history import History, record_of
    from stepscope.compare.history.git import head

    made_from = head() if revision is None else revision
    profiles = _profiles([[path] for path in paths])
    records = [
        record_of(
            profile,
            name=name or Path(path).name.split(".")[0],
            revision=made_from,
            label=label,
        )
        for path, profile in zip(paths, profiles, strict=True)
    ]
    left = list(records)
    try:
        with History(place, create=True) as history:
            for record in records:
                entry = history.store.write(record)
                left.remove(record)
                yield entry
    except StorageError as error:
        if "://" not in place or place.startswith("file://"):
            raise
        with History(f"{UNSENT}/", create=True) as kept:
            for record in left:
                kept.store.write(record)
        raise StorageError(
            f"{error}. {len(left)} of {len(records)} runs are kept in {UNSENT}; send them later "
            f"with stepscope history copy --file {UNSENT}/ --to URL"
        ) from error


def history_copy(source: str, target: str) -> tuple[int, int]:
    """Copy every run of a history that another one does not have yet.

    Returns:
        How many there are, and how many were new to the other one.

    Raises:
        InputError: a history cannot be read.
        StorageError: the other one cannot be written; what was copied until then is there.
    """
    from stepscope.compare.history import History

    with History(source) as ours, History(target, create=True) as theirs:
        records = ours.store.records()
        there = {record.key for record in theirs.store.records()}
        missing = [record for record in records if record.key not in there]
        for record in missing:
            theirs.store.write(record)
        return len(records), len(missing)


def history_log(place: str, name: str, trackers: Sequence[str], latest: int | None = None) -> int:
    """Send recorded runs, all or the latest, to experiment trackers; returns how many.

    Raises:
        InputError: the history cannot be read.
        StorageError: a tracker does not take them.
        UsageError: there is no such tracker, or its package is not installed.
    """
    entries = history_entries(place, name)[-(latest or 0) :]
    send_to(trackers, entries)
    return len(entries)


def send_to(trackers: Sequence[str], entries: Sequence[Entry]) -> None:
    """Send entries to experiment trackers, each written ``NAME`` or ``NAME=WHERE``."""
    from stepscope.compare.sinks.base import send

    for tracker in trackers:
        send(tracker, entries)


def history_entries(place: str, name: str = "") -> list[Entry]:
    """Recorded runs, the earliest first.

    Raises:
        InputError: the history cannot be read.
    """
    from stepscope.compare.history import History

    with History(place) as history:
        return history.entries(name)


def history_plot(place: str, name: str, figure: str, *, added: bool = False) -> Plot:
    """A figure over the recorded runs, with its changes of level.

    Args:
        place: the history.
        name: what was run; may be empty where there is only one name.
        figure: a figure of the budgets.
        added: in the order of adding, even where Git knows that of the commits.

    Raises:
        InputError: the history cannot be read.
        UsageError: no run has that figure.
    """
    from stepscope.compare.history import History
    from stepscope.compare.history.git import by_commit

    with History(place) as history:
        return history.plot(name, figure, None if added else by_commit)


def history_keep(place: str, latest: int, name: str = "") -> int:
    """Remove all but the latest runs of each name; returns how many.

    Raises:
        InputError: the history cannot be read.
        StorageError: it cannot be written.
    """
    from stepscope.compare.history import History

    with History(place) as history:
        return history.keep(latest, name)


def history_parquet(entries: Sequence[Entry], output: str | None) -> None:
    """Write recorded runs as Parquet: a row a run, a column a figure.

    Raises:
        UsageError: no file is named.
        StorageError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if output is None:
        raise UsageError("Parquet goes to a file; name it with --output")
    names = list(dict.fromkeys(figure for entry in entries for figure in entry.figures))
    columns: dict[str, pa.Array] = {
        "id": pa.array([entry.id for entry in entries], pa.int64()),
        "added_ns": pa.array([entry.added_ns for entry in entries], pa.int64()),
    }
    for key in ("name", "revision", "label"):
        columns[key] = pa.array([getattr(entry, key) for entry in entries], pa.string())
    for figure in names:
        columns[figure] = pa.array([e.figures.get(figure) for e in entries], pa.float64())
    try:
        pq.write_table(pa.table(columns), output)
    except OSError as error:
        reason = error.strerror or "the disk or the path"
        raise StorageError(f"cannot write {output}: {reason}; name another file") from error


def history_bisect(
    place: str,
    name: str,
    figure: str,
    good: str = "",
    bad: str = "",
    skip: Sequence[str] = (),
) -> str:
    """Between which recorded runs a figure changed, what moved, and what to measure next, in words.

    Args:
        place: the history.
        name: what was run; may be empty where there is only one name.
        figure: a figure of the budgets.
        good: revision of the earlier end; the first run where empty.
        bad: revision of the later end; the last run where empty.
        skip: revisions that cannot be measured.

    Raises:
        InputError: the history cannot be read.
        UsageError: a revision was not recorded.
    """
    from stepscope.compare.changepoints import SHORTEST
    from stepscope.compare.comparison import compare
    from stepscope.compare.history import History, suspects
    from stepscope.compare.history.git import by_commit
    from stepscope.render.compare import compare_text
    from stepscope.render.history import mark_says

    with History(place) as history:
        plot = history.plot(name, figure, by_commit)
        found = suspects(plot.marks, good, bad, plot.entries)
        if found is None:
            few = f"; a level takes {SHORTEST} runs on each side, and there are {len(plot.entries)}"
            enough = len(plot.entries) >= 2 * SHORTEST
            return f"No change of level of {figure} is between these runs{'' if enough else few}.\n"
        sides = [
            [history.profile(entry.id) for entry in _alike(plot.entries, end)]
            for end in (found.previous, found.entry)
        ]
    said = [mark_says(found, figure) + ".", *_next(found, skip)]
    return "\n".join(said) + "\n\n" + compare_text(compare(*sides))


def _alike(entries: Sequence[Entry], end: Entry) -> list[Entry]:
    """Runs of the revision of one, so that their spread is measured; that one alone without any."""
    from stepscope.compare.stored import KEPT_RUNS

    alike = [e for e in entries if e.revision == end.revision] if end.revision else [end]
    return alike[-KEPT_RUNS:]


def _next(mark: Mark, skip: Sequence[str]) -> list[str]:
    """Which revision made the change, or which to measure to find it."""
    from stepscope.compare.history import git
    from stepscope.render.text import clean

    def named(commit: str) -> str:
        return clean(f"{commit[:12]} ({git.subject(commit)})", 120)

    old, new = mark.previous.revision, mark.entry.revision
    if not old or not new or old == new:
        return ["The runs name no two revisions, so nothing lies between them to be measured."]
    commits = git.between(old, new)
    if not commits:
        return [f"Git, in this directory, knows nothing between {clean(old)} and {clean(new)}."]
    unknown = git.known(skip)
    left = [commit for commit in commits[:-1] if commit not in unknown]
    if left:
        # the one nearest the middle of all that lie between: skipped ones may be the culprit, too
        middle = (len(commits) - 2) / 2
        nearest = min(left, key=lambda commit: abs(commits.index(commit) - middle))
        count = len(commits) - 1
        said = f"Measure {named(nearest)} next: it halves the {count} revisions between them."
        return [said, f"Where it cannot be measured: --skip {nearest[:12]}."]
    if len(commits) == 1:
        return [f"It came with {named(commits[0])}."]
    return ["It came with one of these, of which only the last was measured:", *(
        f"  {named(commit)}" for commit in commits
    )]  # fmt: skip


def trend_of_runs(
    runs: Sequence[Sequence[str]], *, run_noise: float | None = None, again: bool = False
) -> Trend:
    """Compare several runs in the order given, the earliest first.

    Raises:
        InputError: a path cannot be read as a capture.
    """
    from stepscope.compare.trend import trend

    return trend(_profiles(runs, again=again), run_noise=run_noise)
