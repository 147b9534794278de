"""Where a history is kept: one interface, three kinds of place.

``postgresql://...`` is a server for a team, another ``scheme://...`` or a folder holds Parquet
files, anything else is an SQLite file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self

from stepscope.compare.history.model import Entry, Plot, Record, record_of, series, unpacked
from stepscope.compare.profile import Profile

SERVERS: Final = ("postgresql", "postgres")


class Store(Protocol):
    """An opened history.

    Attributes:
        where: its place for messages, without a password.
        remote: whether another machine keeps it.
    """

    where: str
    remote: bool

    def write(self, record: Record) -> Entry:
        """Add a run; one whose key is there already is not added again.

        Raises:
            StorageError: it cannot be written.
        """

    def entries(self, name: str = "") -> list[Entry]:
        """Recorded runs, the earliest first.

        Args:
            name: only runs of this name; all by default.
        """

    def packed(self, number: int) -> bytes:
        """The compressed profile of an entry.

        Raises:
            UsageError: there is no such entry.
        """

    def records(self) -> list[Record]:
        """Everything, to be written elsewhere; the earliest first."""

    def keep(self, latest: int, name: str = "") -> int:
        """Remove all but the latest runs of each name.

        Args:
            latest: how many to keep.
            name: only runs of this name; all by default.

        Returns:
            How many were removed.
        """

    def close(self) -> None:
        """Close it."""


class History:
    """An opened history, wherever it is kept.

    Args:
        place: SQLite file, folder, or URL.
        create: make it where none is.

    Raises:
        InputError: it is no history, damaged, or of a later version.
        StorageError: it cannot be opened.
        UsageError: a package that reaches such a place is missing.
    """

    def __init__(self, place: str | Path, *, create: bool = False) -> None:
        self.store = opened(str(place), create=create)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def add(self, profile: Profile, *, name: str, revision: str = "", label: str = "") -> Entry:
        """Record a run.

        Args:
            profile: the run.
            name: what was run.
            revision: the code's revision.
            label: free text.

        Raises:
            StorageError: it cannot be written.
        """
        return self.store.write(record_of(profile, name=name, revision=revision, label=label))

    def entries(self, name: str = "") -> list[Entry]:
        """Recorded runs, the earliest first; of one name, or all."""
        return self.store.entries(name)

    def keep(self, latest: int, name: str = "") -> int:
        """Remove all but the latest runs of each name (or of one); returns how many."""
        return self.store.keep(latest, name)

    def profile(self, number: int) -> Profile:
        """The profile of an entry.

        Raises:
            UsageError: there is no such entry.
            InputError: it is damaged.
        """
        packed = self.store.packed(number)
        return unpacked(packed, f"entry {number} of {self.store.where}")

    def plot(
        self, name: str, figure: str, order: Callable[[list[Entry]], list[Entry]] | None = None
    ) -> Plot:
        """A series and where it changed.

        Args:
            name: what was run; may be empty where there is only one name.
            figure: a figure of the budgets.
            order: puts the runs in order; that of adding by default.

        Raises:
            UsageError: no run has that figure, or several names are there and none is given.
        """
        return series(self.entries(name), name, figure, self.store.where, order)


def opened(place: str, *, create: bool) -> Store:
    """Open the history at a place, as :class:`History` does."""
    scheme = place.partition("://")[0].lower() if "://" in place else ""
    if scheme in SERVERS:
        from stepscope.compare.history.postgres import PostgresStore

        return PostgresStore(place)
    if scheme or place.endswith(("/", "\\")) or Path(place).is_dir():
        from stepscope.compare.history.folder import FolderStore

        return FolderStore(place, create=create)
    from stepscope.compare.history.sqlite import SqliteStore

    return SqliteStore(Path(place), create=create)
