"""A history on a PostgreSQL server, which a team shares.

Every write is one transaction. A run has a key that is made up once, and a second row with that key
is refused: when the connection breaks while a write is being confirmed, it is written again over a
new connection, and is there once, whether or not the first attempt had arrived. The tables are
upgraded by the first newer Stepscope that opens them, in one transaction, while others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from stepscope.compare.history.model import Entry, Record, entry_of
from stepscope.compare.history.remote import needed, shown, without_password
from stepscope.trace.errors import InputError, StorageError, UsageError

T = TypeVar("T")

CONNECT_S: Final = 10
"""How long a server may take to answer at first."""

WAIT_S: Final = 30
"""How long a writer waits for another one, and for a server that no longer answers."""

_LOCK: Final = 0x53544550  # "STEP": whoever upgrades the tables holds it
LAYOUTS: Final[tuple[Sequence[str], ...]] = (
    (
        """
        CREATE TABLE stepscope_entry (
          id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
          key text NOT NULL UNIQUE,
          added_ns bigint NOT NULL,
          name text NOT NULL,
          revision text NOT NULL,
          label text NOT NULL,
          profile bytea NOT NULL
        )
        """,
        """
        CREATE TABLE stepscope_figure (
          entry bigint NOT NULL REFERENCES stepscope_entry(id) ON DELETE CASCADE,
          name text NOT NULL,
          value double precision NOT NULL,
          PRIMARY KEY (entry, name)
        )
        """,
        "CREATE INDEX stepscope_entry_by_name ON stepscope_entry(name, id)",
    ),
)
"""What makes each layout version of the one before it; only appended."""


class PostgresStore:
    """A history on a server.

    The tables ``stepscope_entry``, ``stepscope_figure`` and ``stepscope_layout`` lie in the first
    schema of the connection's search path.

    Args:
        place: connection URL, as libpq reads it. A password is better kept in ``PGPASSWORD`` or the
            password file.

    Raises:
        InputError: the tables are of a later version, or not what they should be.
        StorageError: the server cannot be reached.
        UsageError: psycopg is not installed.
    """

    remote = True

    def __init__(self, place: str) -> None:
        self.where = shown(place)
        self._place = place
        self._psycopg: Any = needed(
            "psycopg", "psycopg[binary]", "a history on a PostgreSQL server"
        )
        self._db: Any = None
        self._ask(lambda _: None)

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()

    def write(self, record: Record) -> Entry:
        """Add a run; one whose key is there already is not added again.

        Raises:
            StorageError: the server cannot be reached, or refuses.
        """

        def insert(db: Any) -> Entry:
            with db.transaction():
                row = db.execute(
                    "INSERT INTO stepscope_entry (key, added_ns, name, revision, label, profile) "
                    "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (key) DO NOTHING RETURNING id",
                    (record.key, record.added_ns, record.name, record.revision, record.label,
                     record.packed),
                ).fetchone()  # fmt: skip
                if row is None:
                    row = db.execute(
                        "SELECT id FROM stepscope_entry WHERE key = %s", (record.key,)
                    ).fetchone()
                    return record.entry(row[0])
                with db.cursor() as cursor:
                    cursor.executemany(
                        "INSERT INTO stepscope_figure VALUES (%s, %s, %s)",
                        [(row[0], name, value) for name, value in record.figures.items()],
                    )
            return record.entry(row[0])

        return self._ask(insert)

    def entries(self, name: str = "") -> list[Entry]:
        """Recorded runs, the earliest first; of one name, or all."""
        rows = self._ask(
            lambda db: db.execute(
                "SELECT e.id, e.added_ns, e.name, e.revision, e.label, "
                "array_remove(array_agg(f.name ORDER BY f.name), NULL), "
                "array_remove(array_agg(f.value ORDER BY f.name), NULL) "
                "FROM stepscope_entry e LEFT JOIN stepscope_figure f ON f.entry = e.id "
                "WHERE %(name)s = '' OR e.name = %(name)s GROUP BY e.id ORDER BY e.id",
                {"name": name},
            ).fetchall()
        )
        return [
            entry_of(self.where, number, added, texts, dict(zip(names, values, strict=True)))
            for number, added, *texts, names, values in rows
        ]

    def packed(self, number: int) -> bytes:
        """The compressed profile of an entry.

        Raises:
            UsageError: there is no such entry.
        """
        row = self._ask(
            lambda db: db.execute(
                "SELECT profile FROM stepscope_entry WHERE id = %s", (number,)
            ).fetchone()
        )
        if row is None:
            raise UsageError(f"{self.where} has no entry {number}; list them with history list")
        return bytes(row[0])

    def records(self) -> list[Record]:
        """Everything, to be written elsewhere; the earliest first."""
        keys = dict(
            self._ask(lambda db: db.execute("SELECT id, key FROM stepscope_entry").fetchall())
        )
        return [
            Record(keys[e.id], e.added_ns, e.name, e.revision, e.label, e.figures,
                   self.packed(e.id))
            for e in self.entries() if e.id in keys
        ]  # fmt: skip

    def keep(self, latest: int, name: str = "") -> int:
        """Remove all but the latest runs of each name; returns how many."""

        def delete(db: Any) -> int:
            with db.transaction():
                return int(
                    db.execute(
                        "DELETE FROM stepscope_entry WHERE id IN (SELECT id FROM (SELECT id, "
                        "row_number() OVER (PARTITION BY name ORDER BY id DESC) AS n "
                        "FROM stepscope_entry WHERE %(name)s = '' OR name = %(name)s) AS r "
                        "WHERE n > %(latest)s)",
                        {"name": name, "latest": latest},
                    ).rowcount
                )

        return self._ask(delete)

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Ask the server, once more over a new connection where the old one broke.

        Every question may be asked twice: writes know their key, the others change nothing twice.
        """
        psycopg = self._psycopg
        for attempt in (1, 2):
            try:
                if self._db is None or self._db.closed:
                    self._db = self._connected()
                return question(self._db)
            except psycopg.OperationalError as error:
                broken = self._db is not None and self._db.closed
                if not broken or attempt == 2:
                    raise self._failed(error) from error
            except psycopg.Error as error:
                raise self._failed(error) from error
        raise AssertionError  # the second attempt answers or raises

    def _connected(self) -> Any:
        db = self._psycopg.connect(
            self._place,
            autocommit=True,
            connect_timeout=CONNECT_S,
            application_name="stepscope",
            # a server or a network that falls silent is noticed
            keepalives_idle=WAIT_S,
            tcp_user_timeout=WAIT_S * 1000,
        )
        try:
            db.execute("SELECT set_config('lock_timeout', %s, false)", (f"{WAIT_S}s",))
            self._upgrade(db)
        except BaseException:
            db.close()
            raise
        return db

    def _upgrade(self, db: Any) -> None:
        """Bring the tables to this layout, one connection at a time."""
        known = db.execute("SELECT to_regclass('stepscope_layout') IS NOT NULL").fetchone()[0]
        if known and self._version(db) == len(LAYOUTS):
            return
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            db.execute("CREATE TABLE IF NOT EXISTS stepscope_layout (version integer NOT NULL)")
            # asked again: another connection may have upgraded them meanwhile
            version = self._version(db)
            for layout in LAYOUTS[version:]:
                for statement in layout:
                    db.execute(statement)
            if version < len(LAYOUTS):
                db.execute("DELETE FROM stepscope_layout")
                db.execute("INSERT INTO stepscope_layout VALUES (%s)", (len(LAYOUTS),))

    def _version(self, db: Any) -> int:
        row = db.execute("SELECT max(version) FROM stepscope_layout").fetchone()
        version = int(row[0] or 0)
        if version > len(LAYOUTS):
            raise InputError(
                f"{self.where} was written by a later Stepscope (layout {version}); "
                "update Stepscope"
            )
        return version

    def _failed(self, error: Exception) -> Exception:
        """One sentence for what psycopg raised."""
        errors = self._psycopg.errors
        stated = without_password(" ".join(str(error).split())[:300], self._place)
        if isinstance(error, errors.LockNotAvailable):
            return StorageError(
                f"another process has been writing {self.where} for {WAIT_S} s; nothing was "
                "changed, try again"
            )
        if isinstance(error, errors.InsufficientPrivilege | errors.ReadOnlySqlTransaction):
            return StorageError(
                f"{self.where} refuses ({stated}); ask for the right to create and write its tables"
            )
        if isinstance(
            error, errors.UndefinedTable | errors.UndefinedColumn | errors.DuplicateTable
        ):
            return InputError(
                f"the tables in {self.where} are not those of a history ({stated}); name another "
                "database or schema"
            )
        if isinstance(error, self._psycopg.ProgrammingError) and self._db is None:
            return UsageError(f"{self.where} is no PostgreSQL URL ({stated}); correct it")
        return StorageError(
            f"{self.where} went away or cannot be reached ({stated}); what it has recorded is "
            "untouched, try again when it answers"
        )
