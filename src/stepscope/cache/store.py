"""The cache: keyed by content, bounded in size, safe for several processes.

An entry is a finished trace folder ``KEY.stepscope``. It is written under a temporary name and
renamed into place, so a reader sees a whole entry or none; when two processes import the same
file at once, the second finds the first's entry in place and drops its own. Readers and writers
hold a shared lock on their folder; only folders that nobody holds are removed, so what a killed
process left behind is found by its free lock. An entry that is damaged is made again: as a whole
when it is opened, or file by file in place when a table turns out not to match its checksum.
What is made of a trace lies in its entry, as files ``KIND-NAME.npz`` that are replaced as a whole
(:mod:`stepscope.cache.artifacts`); a trace elsewhere has an entry of its own for them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from stepscope.cache.inputs import Input
from stepscope.trace.errors import InputError, StorageError, UsageError
from stepscope.trace.folders import open_private, private_folder, user_folder
from stepscope.trace.meta import Meta
from stepscope.trace.schema import SCHEMA_VERSION
from stepscope.trace.store import META_NAME, is_whole, read_meta, storage_errors, write_meta

DEFAULT_LIMIT_BYTES = 20 * 10**9
CAPTURES: Final = "captures"
KINDS: Final = (CAPTURES, "timeline", "answers")
"""What an entry holds: the capture's tables, and what was made of them."""
_SUFFIX = ".stepscope"
ARTIFACT_SUFFIX: Final = ".npz"
_KEPT_NAME = "kept"
_LOCK_NAME = "lock"
_STALE_TEMPORARY_S = 60
_TRIES = 50
_RETRY_S = 0.02


def default_folder() -> Path:
    """The cache folder: STEPSCOPE_CACHE_DIR, else the platform's user cache.

    Raises:
        StorageError: neither is known.
    """
    return user_folder(
        "STEPSCOPE_CACHE_DIR",
        "the cache",
        xdg="XDG_CACHE_HOME",
        usual=".cache",
        macos="Library/Caches",
    )


def limit_bytes() -> int:
    """The size bound: STEPSCOPE_CACHE_MAX_BYTES, else 20 GB.

    Raises:
        UsageError: when the variable is not a whole number.
    """
    text = os.environ.get("STEPSCOPE_CACHE_MAX_BYTES", "")
    if not text:
        return DEFAULT_LIMIT_BYTES
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"STEPSCOPE_CACHE_MAX_BYTES is {text!r}; give a whole number of bytes")
    return int(text)


@dataclass(frozen=True)
class Entry:
    """One cached trace, with what was made of it."""

    folder: Path
    input_name: str
    source: str
    bytes_by_kind: dict[str, int]
    used_at: float

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(self.bytes_by_kind.values())


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
        given, digest, entry = self._known(path, importer)
        if again or not self._hold(entry, digest):

            def publish(filled: Path, lock: IO[bytes]) -> None:
                self._publish(filled, lock, entry, digest, again=again)

            self._build(lambda folder: given.read_by(lambda: build(folder, digest)), publish)
            with contextlib.suppress(OSError):  # a file was replaced right now
                self.grown(sum(_sizes(entry).values()))
        return entry

    def renew(self, path: Path, importer: str, build: Callable[[Path, str], None]) -> None:
        """Make the files of an entry again in place, because one of them is damaged.

        The same input gives the same tables, so whoever reads the entry meanwhile may go on.

        Args:
            path: as of :meth:`get`, as are the others.
            importer: name and revision of the importer.
            build: fills a folder.

        Raises:
            InputError: the input cannot be read or changed while it was read.
            StorageError: the cache cannot be written.
        """
        given, digest, entry = self._known(path, importer)

        def publish(filled: Path, lock: IO[bytes]) -> None:
            if not entry.exists():  # somebody has removed it
                self._publish(filled, lock, entry, digest, again=False)
                return
            lock.close()
            _replace_files(filled, entry)

        self._build(lambda folder: given.read_by(lambda: build(folder, digest)), publish)

    def _known(self, path: Path, importer: str) -> tuple[Input, str, Path]:
        """An input as it is now, its digest, and its entry."""
        given = Input(path)
        digest = given.digest(self._memo, self._write)
        return given, digest, self._entry(f"{digest} {importer} {SCHEMA_VERSION}")

    def _entry(self, depends_on: str) -> Path:
        key = hashlib.blake2b(depends_on.encode(), digest_size=16).hexdigest()
        return self.folder / f"{key}{_SUFFIX}"

    def beside(self, folder: Path, *, make: bool) -> Path | None:
        """Where what was made of a trace folder is kept: its entry, or one of its own.

        The folder that is given back is held as long as this cache; what lies in it is written
        with :meth:`replacing`.

        Args:
            folder: a trace, in the cache or elsewhere.
            make: whether an entry is made where there is none; else the answer is None then.

        Raises:
            StorageError: the cache cannot be written.
        """
        if folder.parent == self.folder:
            return folder
        entry = self._entry(f"derived {str(folder.resolve())!a}")
        name = folder.name.encode("utf-8", "replace").decode()
        if not self._hold(entry):
            if not make:
                return None
            about = Meta(source="derived", input_name=name)

            def publish(filled: Path, lock: IO[bytes]) -> None:
                self._publish(filled, lock, entry, "", again=False)

            self._build(lambda made: write_meta(made, about), publish)
        return entry

    def keep(self, name: str, content: bytes) -> Path:
        """A small file of our own beside the entries, written when it is not there yet.

        Raises:
            StorageError: the cache cannot be written.
        """
        file = self.folder / _KEPT_NAME / name
        with storage_errors(self.folder):
            if not file.exists() or file.read_bytes() != content:
                private_folder(self.folder)
                private_folder(file.parent)
                self._write(file, content)
        return file

    @contextlib.contextmanager
    def replacing(self, path: Path) -> Iterator[IO[bytes]]:
        """A private file that takes the place of ``path`` when the block ends without an error.

        Raises:
            OSError: it cannot be written.
        """
        temporary = _temporary(self.folder, "tmp-")
        try:
            private_folder(self.folder)
            with open_private(temporary, "xb") as file:
                _share(file)  # whoever tidies up sees that it is being written
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _write(self, path: Path, content: bytes) -> None:
        with self.replacing(path) as file:
            file.write(content)

    def entries(self) -> list[Entry]:
        """All entries, most recently used first; a damaged one has no source."""
        found = []
        for folder in self.folder.glob(f"*{_SUFFIX}"):
            try:
                size, used = _sizes(folder), _used_at(folder)
            except OSError:
                continue  # removed by another process
            try:
                meta = read_meta(folder)
            except InputError:
                meta = Meta(input_name="(damaged)")
            found.append(Entry(folder, meta.input_name, meta.source, size, used))
        return sorted(found, key=lambda entry: -entry.used_at)

    def clear(self, kind: str = CAPTURES) -> int:
        """Remove every entry that nobody reads, and abandoned temporary folders.

        Args:
            kind: one of ``KINDS``; of others than captures, entries stay and lose these files.

        Returns:
            Bytes freed.
        """
        if kind != CAPTURES:
            return sum(map(_removed, self.folder.glob(f"*{_SUFFIX}/{kind}-*{ARTIFACT_SUFFIX}")))
        freed = sum(entry.bytes for entry in self.entries() if self._remove(entry.folder))
        self._remove_abandoned()
        _remove_tree(self.folder / _KEPT_NAME)
        with contextlib.suppress(OSError):
            self._memo.unlink()
        return freed

    def grown(self, written: int) -> None:
        """Keep the size bound after so many bytes were written.

        To look at every entry takes longer than to write a small answer, so a process looks again
        only once it has written what may matter: an eighth of what was free, as others write, too.
        """
        room = _ROOM.get((self.folder, self.limit), 0) - written
        _ROOM[self.folder, self.limit] = room
        if room <= 0:
            self.shrink()

    def shrink(self) -> None:
        """Remove the least recently used entries until the size bound holds."""
        entries = []
        for folder in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # removed by another process
                entries.append((_used_at(folder), folder, sum(_sizes(folder).values())))
        total = sum(size for _, _, size in entries)
        for _, folder, size in sorted(entries)[:-1]:  # never the one just used
            if total <= self.limit:
                break
            if self._remove(folder):
                total -= size
        self._remove_abandoned()
        _ROOM[self.folder, self.limit] = (self.limit - total) // 8

    def _build(
        self, fill: Callable[[Path], None], publish: Callable[[Path, IO[bytes]], None]
    ) -> None:
        """Fill a temporary folder and put it in place.

        Args:
            fill: fills it.
            publish: puts it in place, given its lock, which is held.
        """
        unlocked, temporary = (_temporary(self.folder, prefix) for prefix in ("new-", "tmp-"))
        try:  # from the first moment: an interrupt may come at any time
            with storage_errors(self.folder):
                private_folder(self.folder)
                unlocked.mkdir(mode=0o700)
                lock = open_private(unlocked / _LOCK_NAME, "w+b")
                _share(lock)
                # only now may other processes see it: one without its lock looks abandoned
                unlocked.rename(temporary)
            fill(temporary)
            with storage_errors(self.folder):
                publish(temporary, lock)
        finally:
            _remove_tree(unlocked)
            _remove_tree(temporary)

    def _publish(
        self, temporary: Path, lock: IO[bytes], entry: Path, digest: str, *, again: bool
    ) -> None:
        """Rename a filled folder into place, or use the one that another process put there."""
        for _ in range(_TRIES):
            if again:
                self._remove(entry)
            try:
                temporary.rename(entry)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                self._held.append(lock)
                return
            if self._hold(entry, digest):  # the other process's entry is as good
                lock.close()
                return
            again = True  # it is damaged, or another process is replacing it
            time.sleep(_RETRY_S)
        if entry.is_dir():  # it is damaged, and another process reads it
            _replace_files(temporary, entry)
        lock.close()
        if not self._hold(entry, digest):
            raise StorageError(
                f"the cached copy {entry} is damaged and in use; remove it, or set "
                "STEPSCOPE_CACHE_DIR to another folder"
            )

    def _hold(self, entry: Path, digest: str = "") -> bool:
        """Take the shared lock of an entry; False when there is none, or a damaged one.

        Args:
            entry: the entry.
            digest: content key of the input that it must come from; empty for any.
        """
        try:
            handle = (entry / _LOCK_NAME).open("rb")
        except OSError:
            return False
        _share(handle)
        try:
            # between opening and locking, another process may have put a new entry in its place
            current = os.path.samestat(os.fstat(handle.fileno()), (entry / _LOCK_NAME).stat())
        except OSError:
            current = False
        if not current or not is_whole(entry, digest):
            handle.close()
            return False
        self._held.append(handle)
        with contextlib.suppress(OSError):
            os.utime(entry / _LOCK_NAME)
        return True

    def _remove(self, entry: Path) -> bool:
        """Remove an entry unless a process holds it."""
        try:
            with (entry / _LOCK_NAME).open("ab") as handle:  # a damaged entry may lack its lock
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                doomed = _temporary(self.folder, "tmp-")
                doomed.mkdir(mode=0o700)
                try:
                    entry.rename(doomed / entry.name)
                finally:
                    _remove_tree(doomed)
        except OSError:
            return False
        return True

    def _remove_abandoned(self) -> None:
        """Remove temporary folders and files whose process is gone."""
        for found in [*self.folder.glob("tmp-*"), *self.folder.glob("new-*")]:
            with contextlib.suppress(OSError):
                lock = found if found.is_file() else found / _LOCK_NAME
                is_locked_first = lock != found and lock.exists() and found.name.startswith("tmp-")
                # all others may be about to be locked, or are being removed right now
                if not is_locked_first and time.time() - found.stat().st_mtime < _STALE_TEMPORARY_S:
                    continue
                if lock.exists():
                    with lock.open("rb") as handle:
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_tree(found)
                found.unlink(missing_ok=True)

    @property
    def _memo(self) -> Path:
        return self.folder / "digests.json"


def _replace_files(filled: Path, entry: Path) -> None:
    """Replace the files of an entry by those of another folder, its metadata last."""
    names = sorted((file.name for file in filled.iterdir()), key=lambda name: name == META_NAME)
    for name in names:
        if name != _LOCK_NAME or not (entry / name).exists():
            (filled / name).replace(entry / name)
    for file in entry.glob("*.parquet"):
        if file.name not in names:
            file.unlink(missing_ok=True)


def _sizes(entry: Path) -> dict[str, int]:
    """Bytes of an entry's files by ``KINDS``."""
    sizes: Counter[str] = Counter()
    with os.scandir(entry) as files:
        for file in files:
            made = file.name.endswith(ARTIFACT_SUFFIX)
            sizes[file.name.partition("-")[0] if made else CAPTURES] += file.stat().st_size
    return dict(sizes)


def _used_at(entry: Path) -> float:
    """When an entry was used last: by its lock, as reading other files may change their times."""
    return max(entry.stat().st_mtime, _modified(entry / _LOCK_NAME))


def _removed(file: Path) -> int:
    """Remove a file, which others may have mapped; returns its bytes."""
    try:
        size = file.stat().st_size
        file.unlink()
    except OSError:
        return 0
    return size


def _share(handle: IO[bytes]) -> None:
    """Take a shared lock; a file system without locks goes without."""
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_SH)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


_OURS: set[Path] = set()
_ROOM: dict[tuple[Path, int], int] = {}
"""Bytes that may be written before the size of a cache is looked at again, by folder and bound."""


def _remove_tree(folder: Path) -> None:
    """Remove a folder as far as that is possible."""
    import shutil  # it brings the compression modules along, which most commands do not need

    shutil.rmtree(folder, ignore_errors=True)


def _temporary(folder: Path, prefix: str) -> Path:
    """A fresh name, removed at the end whatever happens (an interrupt may come at any moment)."""
    path = folder / f"{prefix}{os.urandom(8).hex()}"
    _OURS.add(path)
    return path


def remove_leftovers() -> None:
    """Remove what this process has not put in place."""
    for path in _OURS:
        if path.is_dir():
            _remove_tree(path)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
