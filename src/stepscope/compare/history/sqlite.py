"""A history in one SQLite file that several writers may share.

The file is in write-ahead mode: readers see the last whole entry while another process writes, a
second writer waits its turn, and an interrupted write leaves what was there before. It must lie on
a local disk: SQLite's locks do not hold on network file systems.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stepscope.compare.history.model import Entry, Record, entry_of
from stepscope.trace.errors import InputError, StorageError, UsageError

WAIT_S: Final = 30.0
"""How long a writer waits for another one."""

_AGAIN_S: Final = 0.02
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
    UPDATE entry SET key = stepscope_key(id, added_ns, name, revision, label, profile);
    CREATE UNIQUE INDEX entry_by_key ON entry(key);
    """,
)
"""What makes each layout version (``PRAGMA user_version``) of the one before it; only appended."""

_OLD_KEY: Final = "stepscope_key(id, added_ns, name, revision, label, profile)"
_CANNOT_OPEN: Final = re.compile("unable to open|readonly|read-only")
_GONE: Final = ("no such table", "no such column", "no such function", "Could not decode")
"""What SQLite says of a file whose tables are not those of a history."""


def _key(*cells: object) -> str:
    """The key of a run that was recorded without one: the same however often it is asked for."""
    return hashlib.blake2b(repr(cells).encode("utf-8", "replace"), digest_size=16).hexdigest()


class SqliteStore:
    """An opened history file; what only reads it changes nothing in it.

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
        with self._readable_errors():
            self._db = self._connected()
            try:
                self._check()
                if create:
                    self._upgrade()
            except BaseException:
                self._db.close()
                raise

    def _connected(self) -> sqlite3.Connection:
        """Open the file; where nothing can be written beside it, as one that nobody writes."""
        try:
            db = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
            try:
                db.execute(f"PRAGMA busy_timeout = {int(WAIT_S * 1000)}")
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            except BaseException:
                db.close()
                raise
        except sqlite3.OperationalError as error:
            beside = self.path.with_name(f"{self.path.name}-wal")
            if not self.path.is_file() or beside.exists() or not _CANNOT_OPEN.search(str(error)):
                raise
            uri = f"{self.path.absolute().as_uri()}?immutable=1"
            db = sqlite3.connect(uri, uri=True, isolation_level=None)
        db.create_function("stepscope_key", 6, _key, deterministic=True)
        return db

    def _check(self) -> None:
        """Refuse what is no history that can be read."""
        db = self._db
        # in this order: another process may make the tables meanwhile, both in one transaction
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if tables and application != _APPLICATION:
            raise InputError(f"{self.path} is another program's database; name another file")
        self._version()

    def _upgrade(self) -> None:
        """Bring the tables to this layout, before something is written."""
        db = self._db
        if self._version() < len(LAYOUTS):
            self._write_ahead()
            with self._writing():
                # asked again: another writer may have upgraded it meanwhile
                for layout in LAYOUTS[self._version() :]:
                    for statement in filter(str.strip, layout.split(";")):
                        db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION}")
                db.execute(f"PRAGMA user_version = {len(LAYOUTS)}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")

    def _write_ahead(self) -> None:
        """Turn write-ahead mode on; SQLite does not wait by itself for who does the same."""
        until = time.monotonic() + WAIT_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_S)

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
        with self._readable_errors(), self._written():
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
        with self._readable_errors(), self._reading():
            rows = self._db.execute(
                "SELECT id, added_ns, name, revision, label FROM entry "
                "WHERE ?1 = '' OR name = ?1 ORDER BY id", (name,)
            ).fetchall()  # fmt: skip
            figures: dict[Any, dict[Any, Any]] = {row[0]: {} for row in rows}
            for number, figure, value in self._db.execute("SELECT entry, name, value FROM figure"):
                if number in figures:
                    figures[number][figure] = value
        if len(figures) < len(rows):
            raise InputError(
                f"{self.path} is damaged (two entries have one number); put back a copy"
            )
        return [entry_of(self.where, row[0], row[1], row[2:], figures[row[0]]) for row in rows]

    def packed(self, number: int) -> bytes:
        """The compressed profile of an entry.

        Raises:
            UsageError: there is no such entry.
        """
        with self._readable_errors():
            row = self._db.execute("SELECT profile FROM entry WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path} has no entry {number}; list them with history list")
        if not isinstance(row[0], bytes):
            raise InputError(f"entry {number} of {self.path} is damaged; record that run again")
        return row[0]

    def records(self) -> list[Record]:
        """Everything, to be written elsewhere; the earliest first."""
        with self._readable_errors():
            key = "key" if self._version() > 1 else _OLD_KEY
            keys = dict(self._db.execute(f"SELECT id, {key} FROM entry").fetchall())
        if not all(isinstance(key, str) for key in keys.values()):
            raise InputError(f"{self.path} is damaged (a key is no text); put back a copy")
        return [
            Record(keys[e.id], e.added_ns, e.name, e.revision, e.label, e.figures,
                   self.packed(e.id))
            for e in self.entries() if e.id in keys
        ]  # fmt: skip

    def keep(self, latest: int, name: str = "") -> int:
        """Remove all but the latest runs of each name; returns how many."""
        with self._readable_errors(), self._written():
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
    def _written(self) -> Iterator[None]:
        """A transaction of a file that has this layout."""
        self._upgrade()
        with self._writing():
            yield

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
    def _readable_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise StorageError(
                    f"another process has been writing {self.path} for {WAIT_S:.0f} s; nothing was "
                    "changed, try again"
                ) from error
            if str(error).startswith(_GONE):
                raise self._damaged(error) from error
            raise StorageError(
                f"cannot use {self.path} ({error}); check the path, its rights and the disk"
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # its own errors, too
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> InputError:
        stated = "".join(c if c.isprintable() else "?" for c in str(error)[:200])
        return InputError(
            f"{self.path} is damaged or no history ({stated}); put back a copy, or save what "
            "can be read with sqlite3's .recover, and start a new file"
        )
