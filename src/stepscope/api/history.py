"""The run history: add, see, copy, send and remove runs; which of them changed a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.runs import Paths, profiles
from stepscope.trace.errors import StorageError, UsageError
from stepscope.trace.given import listed

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.compare.history import Entry, Mark, Plot

UNSENT = "stepscope-history-unsent"
"""Folder of the working directory that keeps runs which a remote history did not take."""

_REPEATS = "history add with several captures of each revision"


def history_add(
    place: str | Path,
    paths: Paths,
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

    given = listed(paths)
    made_from = head() if revision is None else revision
    found = profiles([[path] for path in given])
    records = [
        record_of(
            profile,
            name=name or Path(path).name.split(".")[0],
            revision=made_from,
            label=label,
        )
        for path, profile in zip(given, found, strict=True)
    ]
    left = list(records)
    try:
        with History(place, create=True) as history:
            for record in records:
                entry = history.store.write(record)
                left.remove(record)
                yield entry
    except StorageError as error:
        if "://" not in str(place) or str(place).startswith("file://"):
            raise
        with History(f"{UNSENT}/", create=True) as kept:
            for record in left:
                kept.store.write(record)
        raise StorageError(
            f"{error}. {len(left)} of {len(records)} runs are kept in {UNSENT}; send them later "
            f"with stepscope history copy --file {UNSENT}/ --to URL"
        ) from error


def history_copy(source: str | Path, target: str | Path) -> tuple[int, int]:
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


def history_log(
    place: str | Path, name: str, trackers: str | Sequence[str], latest: int | None = None
) -> int:
    """Send recorded runs, all or the latest, to experiment trackers; returns how many.

    Raises:
        InputError: the history cannot be read.
        StorageError: a tracker does not take them.
        UsageError: there is no such tracker, or its package is not installed.
    """
    entries = history_entries(place, name)[-(latest or 0) :]
    send_to(trackers, entries)
    return len(entries)


def send_to(trackers: str | Sequence[str], entries: Sequence[Entry]) -> None:
    """Send entries to experiment trackers, each written ``NAME`` or ``NAME=WHERE``."""
    from stepscope.compare.sinks.base import send

    for tracker in listed(trackers):
        send(tracker, entries)


def history_entries(place: str | Path, name: str = "") -> list[Entry]:
    """Recorded runs, the earliest first.

    Raises:
        InputError: the history cannot be read.
    """
    from stepscope.compare.history import History

    with History(place) as history:
        return history.entries(name)


def history_plot(place: str | Path, name: str, figure: str, *, added: bool = False) -> Plot:
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


def history_keep(place: str | Path, latest: int, name: str = "") -> int:
    """Remove all but the latest runs of each name; returns how many.

    Raises:
        InputError: the history cannot be read.
        StorageError: it cannot be written.
    """
    from stepscope.compare.history import History

    with History(place) as history:
        return history.keep(latest, name)


def history_parquet(entries: Sequence[Entry], output: str | Path | None) -> None:
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
    place: str | Path,
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
    from stepscope.compare.changepoints import ENOUGH, FEW
    from stepscope.compare.comparison import compare
    from stepscope.compare.history import History, suspects
    from stepscope.compare.history.git import by_commit
    from stepscope.render.compare import compare_text
    from stepscope.render.history import mark_message

    with History(place) as history:
        plot = history.plot(name, figure, by_commit)
        found = suspects(plot.marks, good, bad, plot.entries)
        if found is None:
            runs = len(plot.entries)
            few = "" if runs >= ENOUGH else f"; {FEW}, and there are {runs}"
            return f"No change of level of {figure} is between these runs{few}.\n"
        sides = [
            [history.profile(entry.id) for entry in _alike(plot.entries, end)]
            for end in (found.previous, found.entry)
        ]
    stated = [mark_message(found, figure) + ".", *_next(found, skip)]
    return "\n".join(stated) + "\n\n" + compare_text(compare(*sides, repeats=_REPEATS))


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
        stated = f"Measure {named(nearest)} next: it halves the {count} revisions between them."
        return [stated, f"Where it cannot be measured: --skip {nearest[:12]}."]
    if len(commits) == 1:
        return [f"It came with {named(commits[0])}."]
    return ["It came with one of these, of which only the last was measured:", *(
        f"  {named(commit)}" for commit in commits
    )]  # fmt: skip
