"""The cache of imported files: keyed by content, bounded in size, safe for several processes.

An entry is a finished trace folder ``KEY.stepscope``. It is written under a temporary name and
renamed into place, so a reader sees a whole entry or none; when two processes import the same
file at once, the second finds the first's entry in place and drops its own. Readers hold a shared
lock on their entry; eviction only takes entries nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.schema import SCHEMA_VERSION
from stepscope.trace.store import META_NAME, read_meta, storage_errors

DEFAULT_LIMIT_BYTES = 20 * 10**9
_SUFFIX = ".stepscope"
_STALE_TEMPORARY_S = 24 * 3600


def default_folder() -> Path:
    """The cache folder: STEPSCOPE_CACHE_DIR, else the platform's user cache."""
    named = os.environ.get("STEPSCOPE_CACHE_DIR")
    if named:
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "stepscope"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepscope"


def limit_bytes() -> int:
    """The size bound: STEPSCOPE_CACHE_MAX_BYTES, else 20 GB.

    Raises:
        UsageError: when the variable is not a whole number.
    """
    text = os.environ.get("STEPSCOPE_CACHE_MAX_BYTES", "")
    if not text:
        return DEFAULT_LIMIT_BYTES
    if not text.isdigit():
        raise UsageError(f"STEPSCOPE_CACHE_MAX_BYTES is {text!r}; give a whole number of bytes")
    return int(text)


@dataclass(frozen=True)
class Stamp:
    """Identity of a file's content as the file system tells it, to notice changes."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Read the stamp of a path.

        Raises:
            InputError: when the path cannot be examined.
        """
        try:
            s = path.stat()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        return cls(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)


@dataclass(frozen=True)
class Entry:
    """One cached trace."""

    folder: Path
    input_name: str
    source: str
    bytes: int
    used_at: float


class Cache:
    """The user's cache of imported traces.

    Args:
        folder: where; defaults to :func:`default_folder`.
        limit: size bound in bytes; defaults to :func:`limit_bytes`.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = folder or default_folder()
        self.limit = limit_bytes() if limit is None else limit
        self._held: list[IO[bytes]] = []

    def get(
        self, path: Path, importer: str, build: Callable[[Path, str], None], *, again: bool = False
    ) -> Path:
        """The trace folder for an input file, built when it is not there.

        Args:
            path: the input, a file or a folder of files.
            importer: name and revision of the importer, part of the key.
            build: fills a folder from the input and writes its ``meta.json``; receives the folder
                and the input's digest.
            again: build even when an entry exists.

        Raises:
            InputError: the input cannot be read or changed while it was read.
            StorageError: the cache cannot be written.
        """
        before = _stamps(path)
        digest = self._digest(path, before)
        key = hashlib.blake2b(
            f"{digest} {importer} {SCHEMA_VERSION}".encode(), digest_size=16
        ).hexdigest()
        entry = self.folder / f"{key}{_SUFFIX}"
        if again or not self._hold(entry):
            self._build(entry, digest, build)
            if _stamps(path) != before:
                self._remove(entry)
                raise InputError(
                    f"{path} changed while it was read; wait until the capture is finished, "
                    "then try again"
                )
            self.shrink()
            self._hold(entry)
        return entry

    def entries(self) -> list[Entry]:
        """All finished entries, most recently used first."""
        found = []
        for folder in self.folder.glob(f"*{_SUFFIX}") if self.folder.is_dir() else ():
            try:
                meta = read_meta(folder)
                size = sum(f.stat().st_size for f in folder.iterdir())
                used = (folder / META_NAME).stat().st_atime
            except (InputError, OSError):
                continue  # removed by another process, or unfinished
            found.append(Entry(folder, meta.input_name, meta.source, size, used))
        return sorted(found, key=lambda entry: -entry.used_at)

    def clear(self) -> int:
        """Remove every entry that nobody reads, and abandoned temporary folders.

        Returns:
            Bytes freed.
        """
        freed = sum(entry.bytes for entry in self.entries() if self._remove(entry.folder))
        self._remove_abandoned(max_age_s=0)
        with contextlib.suppress(OSError):
            self._index_path.unlink()
        return freed

    def shrink(self) -> None:
        """Remove the least recently used entries until the size bound holds."""
        entries = self.entries()
        total = sum(entry.bytes for entry in entries)
        for entry in reversed(entries[1:]):  # never the one just used
            if total <= self.limit:
                break
            if self._remove(entry.folder):
                total -= entry.bytes
        self._remove_abandoned(max_age_s=_STALE_TEMPORARY_S)

    def _build(self, entry: Path, digest: str, build: Callable[[Path, str], None]) -> None:
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=self.folder))
        try:
            build(temporary, digest)
            with storage_errors(self.folder):
                (temporary / "lock").touch()
                if entry.exists():
                    self._remove(entry)
                with contextlib.suppress(FileExistsError):
                    # the other process's entry is as good, and whole
                    _rename(temporary, entry)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _hold(self, entry: Path) -> bool:
        """Take the shared lock of an entry; False when there is no such entry."""
        try:
            handle = (entry / "lock").open("rb")
        except OSError:
            return False
        fcntl.flock(handle, fcntl.LOCK_SH)
        if not (entry / META_NAME).exists():
            handle.close()
            return False
        self._held.append(handle)
        with contextlib.suppress(OSError):
            now = time.time()
            os.utime(entry / META_NAME, (now, (entry / META_NAME).stat().st_mtime))
        return True

    def _remove(self, entry: Path) -> bool:
        """Remove an entry unless a reader holds it."""
        try:
            with (entry / "lock").open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                doomed = Path(tempfile.mkdtemp(prefix="tmp-", dir=self.folder))
                entry.rename(doomed / entry.name)
        except OSError:
            return False
        shutil.rmtree(doomed, ignore_errors=True)
        return True

    def _remove_abandoned(self, max_age_s: float) -> None:
        for folder in self.folder.glob("tmp-*") if self.folder.is_dir() else ():
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime >= max_age_s:
                    shutil.rmtree(folder, ignore_errors=True)

    @property
    def _index_path(self) -> Path:
        return self.folder / "digests.json"

    def _digest(self, path: Path, stamps: dict[str, Stamp]) -> str:
        """BLAKE2b over names and contents; remembered by stamp, so reopening costs no reading."""
        key = msgspec.json.encode([str(path.resolve()), stamps]).decode()
        index: dict[str, str] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):
            index = msgspec.json.decode(self._index_path.read_bytes(), type=dict[str, str])
        if key in index:
            return index[key]
        digest = hashlib.blake2b(digest_size=20)
        for name in stamps:
            file = path / name if path.is_dir() else path
            digest.update(f"{name if path.is_dir() else ''}\0".encode())
            try:
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "blake2b").digest())
            except OSError as error:
                raise InputError(f"cannot read {file}: {error.strerror}") from error
        if _stamps(path) == stamps:
            kept = dict(list(index.items())[-1000:]) | {key: digest.hexdigest()}
            with contextlib.suppress(OSError):
                _write_atomically(self._index_path, msgspec.json.encode(kept))
        return digest.hexdigest()


def _rename(source: Path, target: Path) -> None:
    """Rename a folder; FileExistsError when the target is a non-empty folder."""
    try:
        source.rename(target)
    except OSError as error:
        if target.exists():
            raise FileExistsError(str(target)) from error
        raise


def _write_atomically(path: Path, data: bytes) -> None:
    if not path.parent.is_dir():
        return
    handle, name = tempfile.mkstemp(prefix="tmp-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _stamps(path: Path) -> dict[str, Stamp]:
    """Stamps of the file, or of all files below a folder, by relative name."""
    if not path.is_dir():
        return {path.name: Stamp.of(path)}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): Stamp.of(file) for file in files}
