"""Exported tables in a SQLite file, read without ever writing to or beside it; reports become one.

The fast path is ADBC, which delivers Arrow batches. It takes a column's type from the first rows
it sees, so every SELECT begins with one row of literals of the right types. A value of another
type later on (SQLite does not enforce declared types) makes ADBC stop with an error; the rest of
that table is then read with the standard library, value by value, and the misfits are counted.

An installed ``nsys`` turns a report into SQLite, in a temporary folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.importers.common.texts import clean
from stepscope.importers.nsys.source import (
    BATCH_ROWS,
    SQLITE_ERRORS,
    SQLITE_MAGIC,
    BadValues,
    Declared,
    Raw,
    Where,
    in_order,
    prefetched,
    sqlite_uri,
)
from stepscope.trace.errors import InputError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

_FALLBACK_ROWS = 1 << 14  # Python objects are some ten times the size of Arrow values
_LITERALS: dict[Raw, str] = {"int": "0", "float": "0.0", "text": "x''"}
_HEADER_BYTES = 100
_SAMPLES = 32
_SAMPLE_ROWS = 64
_WAL_VERSION = 2
_MOST_THREADS = 4  # more readers than that outrun what becomes of the rows
_LEAST_ROW_BYTES = 8


class SqliteSource:
    """A SQLite export of ``nsys``.

    Args:
        path: the database.
        shown: the name to use in messages, where ``path`` is a temporary file.

    Raises:
        InputError: it is damaged, unfinished or unreadable.
    """

    def __init__(self, path: Path, shown: Path | None = None) -> None:
        self._path = path
        self._shown = shown or path
        _check_file(path, self._shown)
        self._bytes = path.stat().st_size
        with self._errors():
            self._connection = sqlite3.connect(sqlite_uri(path), uri=True, check_same_thread=False)
            self._connection.text_factory = bytes
            rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self._tables = [row[0].decode("utf-8", "replace") for row in rows]

    def tables(self) -> list[str]:
        """Names of all tables."""
        return self._tables

    def columns(self, table: str) -> Mapping[str, Declared]:
        """The columns of a table, from the file's own declaration."""
        with self._errors():
            rows = self._connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
        return {
            name.decode("utf-8", "replace"): Declared(_affinity(kind), not must)
            for _, name, kind, must, _, _ in rows
        }

    def batches(
        self,
        table: str,
        columns: Mapping[str, Raw],
        bad: BadValues,
        where: Where | None = None,
        order: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a table; sorted only where a sample shows that they are not stored so."""
        kinds = {name: self._natural(table, name, raw) for name, raw in columns.items()}
        query = _select(table, kinds, where)
        if order is not None and self._is_mixed(table, order):
            # SQLite sorts in bounded memory, for less than sorting the finished columns costs
            query += f" ORDER BY {_quoted(order)}, rowid"
            parts = []
        else:
            parts = self._parts(table)
        done = 0
        if self._adbc is not None:
            try:
                for batch in self._read_ahead(query, kinds, where, parts):
                    done += batch.num_rows
                    yield batch
                return
            except _adbc_errors():
                pass  # the slow path counts the misfits, or says what is damaged
        yield from self._slow(table, query, kinds, bad, done)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        self._readers.close()

    @cached_property
    def _readers(self) -> _Readers:
        return _Readers(self._path, self._adbc)

    @cached_property
    def _adbc(self) -> Any:
        """The ADBC modules; None when they are not installed."""
        try:
            import adbc_driver_manager
            import adbc_driver_sqlite
        except ImportError:
            return None
        return adbc_driver_manager, adbc_driver_sqlite

    def _natural(self, table: str, name: str, raw: Raw) -> Raw:
        """What to ask SQLite for: a float column declared as integer holds integers."""
        if raw == "float" and name != "rowid" and self.columns(table)[name].raw == "int":
            return "int"
        return raw

    def _is_mixed(self, table: str, order: str) -> bool:
        """Whether samples of a large table's rows are out of order (as since 2025.6)."""
        name, column = _quoted(table), _quoted(order)
        with self._errors():
            last = self._connection.execute(f"SELECT max(rowid) FROM {name}").fetchone()[0] or 0
            if last <= BATCH_ROWS:
                return False
            seen: list[Any] = []
            for part in range(_SAMPLES):
                query = f"SELECT {column} FROM {name} WHERE rowid > ? LIMIT {_SAMPLE_ROWS}"
                seen += self._connection.execute(query, (last * part // _SAMPLES,)).fetchall()
        values = [value for (value,) in seen if isinstance(value, int)]
        return any(after < before for before, after in pairwise(values))

    def _parts(self, table: str) -> list[tuple[int, int]]:
        """Row numbers (from, to) of the parts in which a large table is read at the same time.

        SQLite's time goes into decoding the rows, so reading grows with the number of cores. Empty
        for a small table, and where the row numbers are too sparse to tell how many rows there are.
        """
        try:
            first, last = self._connection.execute(
                f"SELECT min(rowid), max(rowid) FROM {_quoted(table)}"
            ).fetchone()
        except sqlite3.Error:  # a table without row numbers
            return []
        if not (isinstance(first, int) and isinstance(last, int)):
            return []
        rows = last - first + 1
        if not 2 * BATCH_ROWS < rows < self._bytes // _LEAST_ROW_BYTES:
            return []
        step = BATCH_ROWS - 1  # with the row of literals, one batch
        return [(at, min(at + step, last + 1)) for at in range(first, last + 1, step)]

    def _read_ahead(
        self,
        select: str,
        kinds: Mapping[str, Raw],
        where: Where | None,
        parts: Sequence[tuple[int, int]],
    ) -> Iterator[pa.RecordBatch]:
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        if threads == 1 or not parts:
            yield from prefetched(lambda: self._fast(select, kinds))
            return
        joined = "AND" if where is not None else "WHERE"

        def read(part: tuple[int, int]) -> list[pa.RecordBatch]:
            begin, end = part
            return list(self._fast(f"{select} {joined} rowid >= {begin} AND rowid < {end}", kinds))

        for batches in in_order(read, parts, threads):
            yield from batches

    def _fast(self, select: str, kinds: Mapping[str, Raw]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        types = {"int": pa.int64(), "float": pa.float64(), "text": pa.binary()}
        schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
        literals = ", ".join(_LITERALS[kind] for kind in kinds.values())
        # ORDER BY would apply to the whole compound, hence the subquery
        query = f"SELECT {literals} UNION ALL SELECT * FROM ({select})"
        manager, _ = self._adbc
        with self._readers.taken() as connection, ExitStack() as stack:
            statement = stack.enter_context(manager.AdbcStatement(connection))
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(query)
            handle, _ = statement.execute_query()
            reader = stack.enter_context(pa.RecordBatchReader._import_from_c(handle.address))
            first = True
            for batch in reader:
                if batch.schema.types != schema.types:
                    raise pa.ArrowInvalid("a column holds values of another type")
                rows = batch.slice(1) if first else batch
                first = False
                if rows.num_rows:
                    yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)

    def _slow(
        self,
        table: str,
        select: str,
        kinds: Mapping[str, Raw],
        bad: BadValues,
        skip: int,
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with self._errors():
            cursor = self._connection.execute(f"{select} LIMIT -1 OFFSET {skip}")
        while True:
            with self._errors():
                rows = cursor.fetchmany(_FALLBACK_ROWS)
            if not rows:
                return
            arrays = [
                _column(values, kind, lambda n, what, name=name: bad(n, f"{table}.{name} {what}"))
                for (name, kind), values in zip(kinds.items(), zip(*rows, strict=True), strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(kinds))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            if "disk is full" in str(error):
                raise StorageError(
                    f"the temporary folder is full while {self._shown} is sorted; free some space, "
                    "or set SQLITE_TMPDIR to a larger disk"
                ) from error
            reason = clean(" ".join(str(error).split()))[:200]  # quotes bytes of the file
            raise InputError(
                f"{self._shown} is damaged or incomplete ({reason}); copy it again, or export the "
                "report again with nsys export"
            ) from error


class _Readers:
    """ADBC connections to one database: each serves one reader at a time, then the next."""

    def __init__(self, path: Path, adbc: Any) -> None:
        self._uri = sqlite_uri(path)
        self._adbc = adbc
        self._lock = threading.Lock()
        self._free: list[tuple[Any, ExitStack]] = []
        self._closed = False

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """A connection; one that failed is closed."""
        with self._lock:
            found = self._free.pop() if self._free else None
        connection, stack = found or self._open()
        try:
            yield connection
        except BaseException:
            stack.close()
            raise
        with self._lock:
            if not self._closed:
                self._free.append((connection, stack))
                return
        stack.close()

    def _open(self) -> tuple[Any, ExitStack]:
        manager, driver = self._adbc
        with ExitStack() as stack:
            database = stack.enter_context(driver.connect(self._uri))
            connection = stack.enter_context(manager.AdbcConnection(database))
            return connection, stack.pop_all()

    def close(self) -> None:
        """Close what no reader uses; a reader that was given up closes its own when it ends."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for _, stack in free:
            stack.close()


def _adbc_errors() -> tuple[type[BaseException], ...]:
    import pyarrow as pa
    from adbc_driver_manager import Error

    return (Error, OSError, pa.ArrowException)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _select(table: str, kinds: Mapping[str, Raw], where: Where | None) -> str:
    # NOT INDEXED: both paths must see the rows in the same (rowid) order
    shown = ", ".join(
        f"CAST({_quoted(name)} AS BLOB)" if kind == "text" else _quoted(name)
        for name, kind in kinds.items()
    )
    query = f"SELECT {shown} FROM {_quoted(table)} NOT INDEXED"
    if where is not None:
        column, values = where
        query += f" WHERE {_quoted(column)} IN ({', '.join(str(int(v)) for v in values)})"
    return query


def _affinity(declared: bytes) -> Raw:
    text = declared.upper()
    if b"INT" in text or b"BOOL" in text:
        return "int"
    if any(part in text for part in (b"REAL", b"FLOA", b"DOUB")):
        return "float"
    return "text"


def _column(values: Sequence[Any], kind: Raw, bad: Any) -> pa.Array:
    """Python values as an Arrow array; values of another type become null and are counted."""
    import pyarrow as pa

    if kind == "text":
        return pa.array(values, type=pa.binary())
    wanted = int if kind == "int" else (int, float)
    misfits = [value for value in values if value is not None and not isinstance(value, wanted)]
    if misfits:
        bad(len(misfits), f"holds {str(misfits[0])[:80]!r}")
        values = [value if isinstance(value, wanted) else None for value in values]
    return pa.array(values, type=pa.int64() if kind == "int" else pa.float64())


def _check_file(path: Path, shown: Path) -> None:
    """Refuse files that SQLite would read silently, but only in part."""
    try:
        with path.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
        size = path.stat().st_size
        journal = path.with_name(path.name + "-journal")
        unfinished = journal.exists() and journal.stat().st_size > 0
    except OSError as error:
        raise InputError(f"cannot read {shown}: {error.strerror}; check its rights") from error
    if len(header) < _HEADER_BYTES or not header.startswith(SQLITE_MAGIC):
        raise InputError(
            f"{shown} is damaged: it is no whole SQLite file; copy it again, or export the report "
            "again with nsys export"
        )
    if _WAL_VERSION in (header[18], header[19]):
        raise InputError(
            f"{shown} is in write-ahead-log mode, so rows may be missing from it; run "
            "sqlite3 FILE 'PRAGMA journal_mode=DELETE' where it was written, or export it again"
        )
    if unfinished:
        raise InputError(
            f"{shown} has an unfinished transaction beside it ({journal.name}); wait until the "
            "export is finished, or export it again"
        )
    page = int.from_bytes(header[16:18], "big")
    page = 1 << 16 if page == 1 else page
    counted = header[24:28] == header[92:96]  # the page count is only valid when these agree
    expected = page * int.from_bytes(header[28:32], "big") if counted else 0
    if size < expected:
        raise InputError(
            f"{shown} is truncated: {size} of {expected} bytes are there; copy it again, or export "
            "the report again with nsys export"
        )


VARIABLE = "STEPSCOPE_NSYS"
_USUAL_FOLDERS = (
    "/opt/nvidia/nsight-systems",
    "/opt/nvidia/nsight-systems-cli",
    "/usr/local/cuda/nsight-systems",
)
_TOO_OLD = re.compile(r"ProtobufParse|Can't parse message|newer version|unsupported version", re.I)
_NO_SPACE = re.compile(r"No space left|disk (is )?full", re.IGNORECASE)
_NOISE = re.compile(r"^(Throw in function|Dynamic exception type|\[|$)|std::exception::what: ?")


def find_nsys() -> Path | None:
    """The ``nsys`` to use: STEPSCOPE_NSYS, else PATH, else the newest in the usual folders."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    found = shutil.which("nsys")
    if found:
        return Path(found)
    installed = [
        file
        for folder in _USUAL_FOLDERS
        for pattern in ("*/bin/nsys", "bin/nsys")
        for file in Path(folder).glob(pattern)
        if os.access(file, os.X_OK)
    ]
    return max(installed, key=_version_key, default=None)


def _version_key(file: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(file))]


@contextmanager
def exported(report: Path) -> Iterator[Path]:
    """A temporary SQLite export of a report; it is gone afterwards.

    Raises:
        InputError: there is no nsys, or it cannot read the report.
        StorageError: the temporary folder is full.
    """
    nsys = find_nsys()
    here = shlex.quote(report.name)
    if nsys is None:
        raise InputError(
            f"{report} is an Nsight Systems report and no nsys is installed here to read it; run "
            f"nsys export -t sqlite {here} where it was captured and give the .sqlite file, or "
            f"set {VARIABLE} to an nsys"
        )
    with tempfile.TemporaryDirectory(prefix="stepscope-nsys-", ignore_cleanup_errors=True) as name:
        target = Path(name) / "report.sqlite"
        command = [
            str(nsys),
            "export",
            "--type=sqlite",
            "--force-overwrite=true",
            "--quiet=true",
            f"--output={target}",
            str(report.absolute()),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, check=False, cwd=name, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise InputError(
                f"cannot run {nsys} to read {report}: {error.strerror}; set {VARIABLE} to a "
                "working nsys"
            ) from error
        if done.returncode or not target.exists():
            output = (done.stderr + b"\n" + done.stdout).decode("utf-8", "replace")
            raise _failure(report, nsys, output, done.returncode)
        yield target


def _failure(report: Path, nsys: Path, output: str, status: int) -> InputError | StorageError:
    if _TOO_OLD.search(output):
        return InputError(
            f"{report} cannot be read by {nsys} ({_version(nsys)}): the report is damaged or was "
            f"written by a newer nsys; run nsys export -t sqlite {shlex.quote(report.name)} with "
            f"the nsys that captured it, or set {VARIABLE} to it"
        )
    if _NO_SPACE.search(output):
        return StorageError(
            f"{nsys} ran out of space below {tempfile.gettempdir()} while it exported {report}; "
            "free some, or set TMPDIR to a larger disk"
        )
    lines = [_NOISE.sub("", line).strip() for line in output.splitlines()]
    reason = next((line for line in lines if line), f"exit status {status}")[:300]
    return InputError(
        f"{nsys} cannot export {report} ({reason}); capture again, or export it with the nsys "
        "that captured it"
    )


def _version(nsys: Path) -> str:
    try:
        done = subprocess.run(
            [str(nsys), "--version"],
            capture_output=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown version"
    match = re.search(rb"version ([\d.]+)", done.stdout)
    return f"version {match[1].decode()}" if match else "unknown version"
