"""A history in one SQLite file that several writers may share.

The file is in write-ahead mode: readers see the last whole entry while another process writes, a
second writer waits its turn, and an interrupted write leaves what was there before. It must lie on
a local disk: SQLite's locks do not hold on network file systems.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stepscope.compare.history.model import Entry, Record
from stepscope.trace.errors import InputError, StorageError, UsageError

WAIT_S: Final = 30.0
"""How long a writer waits for another one."""

_APPLICATION: Final = 0x53544550  # "STEP": marks the file as a history
LAYOUTS: Final = (
    """
    CREATE TABLE entry (
      id INTEGER PRIMARY KEY,
      added_ns INTEGER NOT NULL,
      name TEXT NOT NULL,
      revision TEXT NOT NULL,
      label TEXT NOT NULL,
      profile BLOB NOT NULL
    );
    CREATE TABLE figure (
      entry INTEGER NOT NULL REFERENCES entry(id) ON DELETE CASCADE,
      name TEXT NOT NULL,
      value REAL NOT NULL,
      PRIMARY KEY (entry, name)
    ) WITHOUT ROWID;
    CREATE INDEX entry_by_name ON entry(name, id);
    """,
    """
    ALTER TABLE entry ADD COLUMN key TEXT;
    UPDATE entry SET key = lower(hex(randomblob(16)));
    CREATE UNIQUE INDEX entry_by_key ON entry(key);
    """,
)
"""What makes each layout version (``PRAGMA user_version``) of the one before it; only appended."""


class SqliteStore:
    """An opened history file.

    Args:
        path: the file.
        create: make it where none is.

    Raises:
        InputError: it is no history, damaged, or of a later version.
        StorageError: it cannot be opened.
    """

    remote = False

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self.where = str(path)
        if not create and not path.is_file():
            raise InputError(f"{path} does not exist; make it with stepscope history add")
        with self._told():
            self._db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
            try:
                self._db.execute(f"PRAGMA busy_timeout = {int(WAIT_S * 1000)}")
                self._check()
            except BaseException:
                self._db.close()
                raise

    def _check(self) -> None:
        db = self._db
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            raise InputError(f"{self.path} is another program's database; name another file")
        if self._version() < len(LAYOUTS):
            db.execute("PRAGMA journal_mode = WAL")
            with self._writing():
                # asked again: another writer may have upgraded it meanwhile
                for layout in LAYOUTS[self._version() :]:
                    for statement in filter(str.strip, layout.split(";")):
                        db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION}")
                db.execute(f"PRAGMA user_version = {len(LAYOUTS)}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")

    def _version(self) -> int:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > len(LAYOUTS):
            raise InputError(
                f"{self.path} was written by a later Stepscope (layout {version}); update Stepscope"
            )
        return int(version)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def write(self, record: Record) -> Entry:
        """Add a run; one whose key is there already is not added again.

        Raises:
            StorageError: the file cannot be written.
        """
        with self._told(), self._writing():
            known = self._db.execute("SELECT id FROM entry WHERE key = ?", (record.key,)).fetchone()
            if known:
                return record.entry(known[0])
            cursor = self._db.execute(
                "INSERT INTO entry (key, added_ns, name, revision, label, profile) "
                "VALUES (?,?,?,?,?,?)",
                (record.key, record.added_ns, record.name, record.revision, record.label,
                 record.packed),
            )  # fmt: skip
            number = int(cursor.lastrowid or 0)
            self._db.executemany(
                "INSERT INTO figure VALUES (?,?,?)",
                [(number, name, value) for name, value in record.figures.items()],
            )
        return record.entry(number)

    def entries(self, name: str = "") -> list[Entry]:
        """Recorded runs, the earliest first; of one name, or all."""
        # one transaction: what is removed meanwhile is seen in both tables or in none
        with self._told(), self._reading():
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

    def packed(self, number: int) -> bytes:
        """The compressed profile of an entry.

        Raises:
            UsageError: there is no such entry.
        """
        with self._told():
            row = self._db.execute("SELECT profile FROM entry WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path} has no entry {number}; list them with history list")
        return bytes(row[0])

    def records(self) -> list[Record]:
        """Everything, to be written elsewhere; the earliest first."""
        with self._told():
            keys = dict(self._db.execute("SELECT id, key FROM entry").fetchall())
        return [
            Record(keys[e.id], e.added_ns, e.name, e.revision, e.label, e.figures,
                   self.packed(e.id))
            for e in self.entries() if e.id in keys
        ]  # fmt: skip

    def keep(self, latest: int, name: str = "") -> int:
        """Remove all but the latest runs of each name; returns how many."""
        with self._told(), self._writing():
            cursor = self._db.execute(
                "DELETE FROM entry WHERE (?1 = '' OR name = ?1) AND id NOT IN (SELECT id FROM "
                "(SELECT id, row_number() OVER (PARTITION BY name ORDER BY id DESC) AS n "
                "FROM entry) WHERE n <= ?2)", (name, latest)
            )  # fmt: skip
        return int(cursor.rowcount)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """A transaction that sees one state."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that takes the write lock at once, and waits for it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk ends it by itself
                self._db.execute("ROLLBACK")
            raise

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
