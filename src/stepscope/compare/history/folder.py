"""A history in a folder of Parquet files, one a run, on a local disk or wherever fsspec reaches.

No file is ever changed, and no two writers make the same one: a name is the time of adding and a
random key. A file is written under another name and then moved, so that under its final name it is
whole or absent: a rename on a local disk, on object stores a copy that becomes visible at once.
Writers therefore need no lock and cannot lose one another's runs, on network file systems too.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from stepscope.compare.history.model import Entry, Record, entry_of
from stepscope.compare.history.remote import RemoteFiles, shown, without_password
from stepscope.compare.stored import write_whole
from stepscope.trace.errors import InputError, StepscopeError, StorageError, UsageError

VERSION: Final = 1
"""Layout version of the files, in the key ``stepscope.history`` of their schema's metadata."""

ABANDONED_S: Final = 86_400
"""Age from which on ``keep`` removes a half-written file: no writer takes a day."""

_VERSION_KEY: Final = b"stepscope.history"
_NAME: Final = re.compile(r"(\d{19})-([0-9a-f]{32})\.parquet$")
_PARTIAL: Final = re.compile(r"\.(\d{19})-([0-9a-f]{32})\.partial$")
_COLUMNS: Final = pa.schema(
    [
        ("added_ns", pa.int64()),
        ("name", pa.string()),
        ("revision", pa.string()),
        ("label", pa.string()),
        ("figures", pa.map_(pa.string(), pa.float64())),
        ("profile", pa.binary()),
    ]
)


class _Files(Protocol):
    """What a folder must be able to do; names are without the folder."""

    def names(self) -> list[str]: ...
    def read(self, names: list[str]) -> dict[str, bytes]: ...
    def write(self, name: str, partial: str, content: bytes) -> None: ...
    def remove(self, name: str) -> None: ...
    def make(self) -> None: ...


class FolderStore:
    """An opened folder.

    Args:
        place: path or URL of the folder.
        create: make it where none is.

    Raises:
        InputError: it does not exist.
        StorageError: it cannot be reached.
        UsageError: fsspec, or what it needs for this scheme, is not installed.
    """

    def __init__(self, place: str, *, create: bool = False) -> None:
        self.where, self._place = shown(place), place
        scheme, _, rest = place.partition("://")
        self.remote = bool(rest) and scheme not in ("file", "local")
        self._files: _Files
        with self._readable_errors():
            self._files = RemoteFiles(place) if self.remote else LocalFiles(Path(rest or place))
            if create:
                self._files.make()
            self._names()

    def close(self) -> None:
        """Nothing stays open."""

    def write(self, record: Record) -> Entry:
        """Add a run; one whose key is there already is not added again.

        Raises:
            StorageError: the folder cannot be written.
        """
        with self._readable_errors():
            for name in self._names():
                if _key(name) == record.key:
                    return record.entry(self._numbers()[name])
            stem = f"{record.added_ns:019d}-{record.key}"
            self._files.write(f"{stem}.parquet", f".{stem}.partial", _bytes(record))
            return record.entry(self._numbers()[f"{stem}.parquet"])

    def entries(self, name: str = "") -> list[Entry]:
        """Recorded runs, the earliest first; of one name, or all."""
        with self._readable_errors():
            numbers = self._numbers()
            found = self._read(list(numbers))
        return [r.entry(numbers[at]) for at, r in found.items() if name in ("", r.name)]

    def packed(self, number: int) -> bytes:
        """The compressed profile of an entry.

        Raises:
            UsageError: there is no such entry.
        """
        with self._readable_errors():
            for name, known in self._numbers().items():
                if known == number:
                    for record in self._read([name]).values():
                        return record.packed
        raise UsageError(f"{self.where} has no entry {number}; list them with history list")

    def records(self) -> list[Record]:
        """Everything, to be written elsewhere; the earliest first."""
        with self._readable_errors():
            return list(self._read(self._names()).values())

    def keep(self, latest: int, name: str = "") -> int:
        """Remove all but the latest runs of each name; returns how many.

        Files that a killed writer left half written are removed, too, after a day.
        """
        with self._readable_errors():
            series: dict[str, list[str]] = {}
            for at, record in self._read(self._names()).items():
                if name in ("", record.name):
                    series.setdefault(record.name, []).append(at)
            gone = [at for files in series.values() for at in files[:-latest]]
            for at in gone:
                self._files.remove(at)
            now = time.time_ns()
            for file in self._files.names():
                partial = _PARTIAL.match(file)
                if partial and now - int(partial[1]) > ABANDONED_S * 1_000_000_000:
                    self._files.remove(file)
        return len(gone)

    def _names(self) -> list[str]:
        return sorted(name for name in self._files.names() if _NAME.match(name))

    def _numbers(self) -> dict[str, int]:
        """Number of every file: us of its adding, one more where two have the same."""
        numbers: dict[str, int] = {}
        last = -1
        for name in self._names():
            last = max(last + 1, int(name[:19]) // 1000)
            numbers[name] = last
        return numbers

    def _read(self, names: list[str]) -> dict[str, Record]:
        """Records by file; one that is removed meanwhile is left out."""
        contents = self._files.read(names)
        return {
            name: _record(contents[name], name, f"{self.where.rstrip('/')}/{name}")
            for name in names
            if name in contents
        }

    @contextlib.contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turn errors into one sentence: the packages behind fsspec raise anything."""
        try:
            yield
        except StepscopeError:
            raise
        except FileNotFoundError as error:
            raise InputError(
                f"{self.where} does not exist; make it with stepscope history add"
            ) from error
        except Exception as error:
            stated = without_password(" ".join(str(error).split())[:200], self._place)
            stated = stated or type(error).__name__
            raise StorageError(
                f"cannot use {self.where} ({stated}); check the path, your rights to it and the "
                "connection; what was recorded before is untouched"
            ) from error


class LocalFiles:
    """A folder on a disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Names of the files in it."""
        return [path.name for path in self._folder.iterdir()]

    def read(self, names: list[str]) -> dict[str, bytes]:
        """Contents of files; those that are gone are left out."""
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[name] = (self._folder / name).read_bytes()
        return found

    def write(self, name: str, partial: str, content: bytes) -> None:
        """Write a file under another name, and move it."""
        write_whole(self._folder / name, content, partial)

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""
        (self._folder / name).unlink(missing_ok=True)

    def make(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)


def _key(name: str) -> str:
    found = _NAME.match(name)
    return found[2] if found else ""


def _bytes(record: Record) -> bytes:
    row: dict[str, list[Any]] = {
        "added_ns": [record.added_ns],
        "name": [record.name],
        "revision": [record.revision],
        "label": [record.label],
        "figures": [list(record.figures.items())],
        "profile": [record.packed],
    }
    schema = _COLUMNS.with_metadata({_VERSION_KEY: str(VERSION).encode()})
    sink = io.BytesIO()
    # a profile is compressed already, and statistics of one row tell nothing
    pq.write_table(
        pa.table(row, schema=schema), sink, compression="none", write_statistics=False,
        write_page_checksum=True,
    )  # fmt: skip
    return sink.getvalue()


def _record(content: bytes, name: str, where: str) -> Record:
    try:
        table = pq.read_table(io.BytesIO(content), page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"{where} is damaged ({str(error)[:100]}); remove it, the other files are whole"
        ) from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"")
    if not version.isdigit() or table.num_rows != 1:
        raise InputError(f"{where} is no run of a history; move it elsewhere")
    if int(version) > VERSION:
        raise InputError(
            f"{where} was written by a later Stepscope (layout {int(version)}); update Stepscope"
        )
    try:
        (row,) = table.cast(_COLUMNS.with_metadata(table.schema.metadata)).to_pylist()
        figures = dict(row["figures"])
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"{where} is damaged; remove it, the other files are whole") from error
    texts = [row[name] for name in ("name", "revision", "label")]
    sound = entry_of(where, 0, row["added_ns"], texts, figures)
    if not isinstance(row["profile"], bytes):
        raise InputError(f"{where} is damaged; remove it, the other files are whole")
    return Record(
        _key(name), sound.added_ns, sound.name, sound.revision, sound.label, sound.figures,
        row["profile"],
    )  # fmt: skip
