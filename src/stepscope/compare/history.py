"""The history of runs: one SQLite file that several writers may share.

The file is in write-ahead mode: readers see the last whole entry while another process writes, a
second writer waits its turn, and an interrupted write leaves what was there before. It must lie on
a local disk: SQLite's locks do not hold on network file systems.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from stepscope.compare.budgets import BUDGETS
from stepscope.compare.changepoints import change_points
from stepscope.compare.profile import Profile
from stepscope.compare.stored import read_profile
from stepscope.trace.errors import InputError, StorageError, UsageError

VERSION: Final = 1
"""Layout version of the file (``PRAGMA user_version``)."""

WAIT_S: Final = 30.0
"""How long a writer waits for another one."""

SCHEMA: Final = "stepscope.history/1"
_APPLICATION: Final = 0x53544550  # "STEP": marks the file as a history
_LAYOUT: Final = """
CREATE TABLE IF NOT EXISTS entry (
  id INTEGER PRIMARY KEY,
  added_ns INTEGER NOT NULL,
  name TEXT NOT NULL,
  revision TEXT NOT NULL,
  label TEXT NOT NULL,
  profile BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS figure (
  entry INTEGER NOT NULL REFERENCES entry(id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  value REAL NOT NULL,
  PRIMARY KEY (entry, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entry_by_name ON entry(name, id);
"""


class Entry(msgspec.Struct, frozen=True):
    """One recorded run.

    Attributes:
        id: number in the file, ascending in the order of adding.
        added_ns: when it was added, ns since 1970.
        name: what was run; runs of one name form a series.
        revision: the code's revision; empty where not given.
        label: free text.
        figures: figures by name, those of the budgets.
    """

    id: int
    added_ns: int
    name: str
    revision: str
    label: str
    figures: dict[str, float]


class Mark(msgspec.Struct, frozen=True):
    """A change of level in a series.

    Attributes:
        entry: first run after it.
        previous: last run before it.
        ratio: level after over level before.
        chance: of such a change by noise alone.
    """

    entry: Entry
    previous: Entry
    ratio: float
    chance: float


class Plot(msgspec.Struct, frozen=True):
    """A series with its changes: the contract ``stepscope.history/1``.

    Attributes:
        schema: name and version of this contract.
        name: what was run.
        figure: name of the figure.
        entries: runs that have it, the earliest first.
        marks: where its level changed.
    """

    schema: str
    name: str
    figure: str
    entries: list[Entry]
    marks: list[Mark]


class History:
    """An opened history file.

    Args:
        path: the file; it is made where none is, if ``create``.
        create: whether to make it.

    Raises:
        InputError: it is no history, damaged, or of a later version.
        StorageError: it cannot be opened.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if not create and not path.is_file():
            raise InputError(f"{path} does not exist; make it with stepscope history add")
        with self._told():
            self._db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
            self._db.execute(f"PRAGMA busy_timeout = {int(WAIT_S * 1000)}")
            self._check()

    def _check(self) -> None:
        db = self._db
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            raise InputError(f"{self.path} is another program's database; name another file")
        if version > VERSION:
            raise InputError(
                f"{self.path} was written by a later Stepscope (layout {version}); update Stepscope"
            )
        if not tables or not version:
            db.execute("PRAGMA journal_mode = WAL")
            with self._writing():
                for statement in filter(str.strip, _LAYOUT.split(";")):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION}")
                db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, profile: Profile, *, name: str, revision: str = "", label: str = "") -> Entry:
        """Record a run.

        Args:
            profile: the run.
            name: what was run.
            revision: the code's revision.
            label: free text.

        Raises:
            StorageError: the file cannot be written.
        """
        slim = msgspec.structs.replace(profile, timeline=[], marks=[], idle=[])
        blob = zlib.compress(msgspec.json.encode(slim), 6)
        figures = {n: v for n, b in BUDGETS.items() if (v := b.value(profile)) is not None}
        added = time.time_ns()
        with self._told(), self._writing():
            cursor = self._db.execute(
                "INSERT INTO entry (added_ns, name, revision, label, profile) VALUES (?,?,?,?,?)",
                (added, name, revision, label, blob),
            )
            number = int(cursor.lastrowid or 0)
            self._db.executemany(
                "INSERT INTO figure VALUES (?,?,?)", [(number, n, v) for n, v in figures.items()]
            )
        return Entry(number, added, name, revision, label, figures)

    def entries(self, name: str = "") -> list[Entry]:
        """Recorded runs, the earliest first.

        Args:
            name: only runs of this name; all by default.
        """
        with self._told():
            rows = self._db.execute(
                "SELECT id, added_ns, name, revision, label FROM entry "
                "WHERE ?1 = '' OR name = ?1 ORDER BY id", (name,)
            ).fetchall()  # fmt: skip
            figures: dict[int, dict[str, float]] = {row[0]: {} for row in rows}
            for number, figure, value in self._db.execute("SELECT * FROM figure"):
                if number in figures:
                    figures[number][figure] = value
        return [
            Entry(number, added, called, revision, label, figures[number])
            for number, added, called, revision, label in rows
        ]

    def profile(self, number: int) -> Profile:
        """The profile of an entry.

        Raises:
            UsageError: there is no such entry.
            InputError: it is damaged.
        """
        with self._told():
            row = self._db.execute("SELECT profile FROM entry WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path} has no entry {number}; list them with history list")
        where = f"entry {number} of {self.path}"
        try:
            return read_profile(msgspec.json.decode(zlib.decompress(row[0])), where)
        except (zlib.error, msgspec.DecodeError) as error:
            raise InputError(f"{where} is damaged; record that run anew") from error

    def plot(self, name: str, figure: str) -> Plot:
        """A series and where it changed.

        Raises:
            UsageError: no run has that figure, or several names are there and none is given.
        """
        if figure not in BUDGETS:
            raise UsageError(f"no figure {figure!r}; known: {', '.join(BUDGETS)}")
        name = name or self._only_name()
        entries = [e for e in self.entries(name) if e.figures.get(figure, 0) > 0]
        if not entries:
            raise UsageError(f"no run of {name!r} in {self.path} has {figure}")
        points = change_points([e.figures[figure] for e in entries])
        marks = [
            Mark(entries[p.at], entries[p.at - 1], round(p.ratio, 4), p.chance) for p in points
        ]
        return Plot(SCHEMA, name, figure, entries, marks)

    def keep(self, latest: int, name: str = "") -> int:
        """Remove all but the latest runs of each name.

        Args:
            latest: how many to keep.
            name: only runs of this name; all by default.

        Returns:
            How many were removed.
        """
        with self._told(), self._writing():
            cursor = self._db.execute(
                "DELETE FROM entry WHERE (?1 = '' OR name = ?1) AND id NOT IN (SELECT id FROM "
                "(SELECT id, row_number() OVER (PARTITION BY name ORDER BY id DESC) AS n "
                "FROM entry) WHERE n <= ?2)", (name, latest)
            )  # fmt: skip
        return int(cursor.rowcount)

    def _only_name(self) -> str:
        names = list(dict.fromkeys(e.name for e in self.entries()))
        if len(names) != 1:
            known = ", ".join(names[:8]) or "none"
            raise UsageError(f"say which runs with --name; {self.path} has: {known}")
        return names[0]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that takes the write lock at once, and waits for it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn SQLite's errors into one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise StorageError(
                    f"another process has been writing {self.path} for {WAIT_S:.0f} s; nothing was "
                    "changed, try again"
                ) from error
            raise StorageError(
                f"cannot use {self.path} ({error}); check the path, its rights and the disk"
            ) from error
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"{self.path} is damaged or no history ({error}); put back a copy, or save what "
                "can be read with sqlite3's .recover, and start a new file"
            ) from error


def suspects(marks: Sequence[Mark], good: str, bad: str, entries: Sequence[Entry]) -> Mark | None:
    """The change between two revisions: the largest one, in either direction.

    Args:
        marks: changes of the series.
        good: revision of the earlier end; the first run where empty.
        bad: revision of the later end; the last run where empty.
        entries: runs of the series.

    Raises:
        UsageError: a revision was not recorded, or they are in the wrong order.
    """
    first, last = _position(entries, good, 0), _position(entries, bad, len(entries) - 1)
    if first >= last:
        raise UsageError(f"{good or 'the first run'} was not recorded before {bad or 'the last'}")
    inside = range(entries[first].id + 1, entries[last].id + 1)
    between = [m for m in marks if m.entry.id in inside]
    return max(between, key=lambda m: abs(m.ratio - 1), default=None)


def _position(entries: Sequence[Entry], revision: str, default: int) -> int:
    if not revision:
        return default
    for at, entry in enumerate(entries):
        if entry.revision.startswith(revision):
            return at
    raise UsageError(f"no run of revision {revision!r} was recorded")
