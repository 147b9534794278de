"""The run history: add runs, see, copy, send and remove those that were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.runs.comparing import Paths, profiles
from stepscope.trace.errors import StorageError, UsageError
from stepscope.trace.given import listed

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.compare.history import Entry, Plot

UNSENT = "stepscope-history-unsent"
"""Folder of the working directory that keeps runs which a remote history did not take."""


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
