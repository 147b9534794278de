"""A file of named number arrays that is mapped into memory instead of read.

Layout: eight bytes of magic; the arrays, each from a multiple of 64 bytes on; an index in JSON
(name to type, place, length and checksum, and whatever the writer wants to say); the index's
length and checksum; the magic again. All numbers are little-endian. The file is written under a
temporary name and renamed, so a reader sees a whole one or none. A reader checks both ends, the
index and that every array lies inside. Contents are checked against their checksums when they are
first asked for, or all at once where the file is small: small files that are damaged are as good as
absent, of a large one whoever meets the damage is told, and the file is removed.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.errors import StorageError
from stepscope.trace.folders import open_private

_MAGIC = b"STEPARR1"
_TAIL = struct.Struct("<QI8s")
_ALIGNED = 64
_CHUNK = 1 << 22
_SMALL_BYTES = 64 << 20
"""Files up to this size are checked as they are opened, which takes some hundredths of a second."""
_KINDS = frozenset({"<i8", "<f8", "<i4", "<u4", "<f4", "<u2", "|u1"})
_STALE_PART_S = 3600
Array = npt.NDArray[Any]


class NotWholeError(Exception):
    """The file is absent, damaged, or about something else."""


class ArrayWriter:
    """Writes an :class:`ArrayFile`; the file appears when :meth:`close` has returned.

    A context manager: what is raised inside removes what was written.

    Args:
        path: where.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        _remove_parts(path)
        self._part = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
        self._file = open_private(self._part, "xb")
        self._file.write(_MAGIC)
        self._index: dict[str, list[Any]] = {}

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def add(self, name: str, values: Array | Iterable[Array], kind: str | None = None) -> None:
        """Append one array, whole or in pieces of one type.

        Args:
            name: its name.
            values: the numbers.
            kind: how they are stored, as numpy writes it; by default as they are.
        """
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNED))
        begin, check, count = self._file.tell(), 0, 0
        for piece in [values] if isinstance(values, np.ndarray) else values:
            wanted = kind or piece.dtype.str
            for at in range(0, len(piece), _CHUNK):
                data = np.ascontiguousarray(piece[at : at + _CHUNK], dtype=wanted).data
                check = zlib.crc32(data, check)
                self._file.write(data)
            kind, count = wanted, count + len(piece)
        if kind not in _KINDS:
            raise ValueError(f"{name} cannot be stored as {kind}")
        self._index[name] = [kind, begin, count, check]

    def close(self, header: Mapping[str, Any]) -> None:
        """Finish the file and put it in place.

        Args:
            header: what readers are told, anything that JSON can hold.
        """
        index = json.dumps({"says": header, "arrays": self._index}).encode()
        self._file.write(index + _TAIL.pack(len(index), zlib.crc32(index), _MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self._path)

    def abandon(self) -> None:
        """Remove what was written."""
        self._file.close()
        self._part.unlink(missing_ok=True)


class ArrayFile:
    """Arrays of a file, mapped: only what is touched is read, and the system may drop it again.

    Args:
        path: the file.

    Raises:
        NotWholeError: it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
            self.bytes = os.fstat(self._descriptor).st_size
            if self.bytes < len(_MAGIC) + _TAIL.size:
                raise NotWholeError(f"{path} is too short")
            self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise NotWholeError(f"{path}: {error}") from error
        length, check, magic = _TAIL.unpack(self._map[-_TAIL.size :])
        begin = self.bytes - _TAIL.size - length
        if self._map[: len(_MAGIC)] != _MAGIC or magic != _MAGIC or begin < len(_MAGIC):
            raise NotWholeError(f"{path} is cut off")
        text = self._map[begin : begin + length]
        if zlib.crc32(text) != check:
            raise NotWholeError(f"{path} has a damaged index")
        index = json.loads(text)
        self.header: dict[str, Any] = index["says"]
        self._arrays: dict[str, tuple[str, int, int, int]] = {}
        for name, (kind, at, count, of) in index["arrays"].items():
            if kind not in _KINDS or at < 0 or at + np.dtype(kind).itemsize * count > begin:
                raise NotWholeError(f"{path} has a damaged index")
            self._arrays[name] = (kind, at, count, of)
        self._checked: set[str] = set()
        if self.bytes <= _SMALL_BYTES:
            if not self.verify():
                raise NotWholeError(f"{path} is damaged")
            self._checked.update(self._arrays)

    def expect(self, **header: Any) -> ArrayFile:
        """The file itself, once it is clear that it is about the right thing.

        Args:
            header: what it must say.

        Raises:
            NotWholeError: it says something else.
        """
        if any(self.header.get(name) != value for name, value in header.items()):
            raise NotWholeError(f"{self.path} is of something else, or of another version")
        return self

    def __getitem__(self, name: str) -> Array:
        """One array, read-only.

        Raises:
            StorageError: it is damaged; the file has been removed.
        """
        kind, at, count, _ = self._sound(name)
        return np.frombuffer(self._map, kind, count, at)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def buffer(self, name: str) -> memoryview:
        """The bytes of one array.

        Raises:
            StorageError: it is damaged; the file has been removed.
        """
        kind, at, count, _ = self._sound(name)
        return memoryview(self._map)[at : at + np.dtype(kind).itemsize * count]

    def _sound(self, name: str) -> tuple[str, int, int, int]:
        """Where an array stands, once its content is known to be as it was written."""
        place = self._arrays[name]
        if name not in self._checked:
            if not self._matches(place):
                self.path.unlink(missing_ok=True)
                raise StorageError(
                    f"{self.path} was damaged and has been removed; do the same again, which "
                    "makes it again"
                )
            self._checked.add(name)
        return place

    def _matches(self, place: tuple[str, int, int, int]) -> bool:
        """Whether an array's content is as it was written; it is read through no mapping."""
        kind, at, count, expected = place
        end, check = at + np.dtype(kind).itemsize * count, 0
        while at < end and (data := os.pread(self._descriptor, min(end - at, _CHUNK), at)):
            check = zlib.crc32(data, check)
            at += len(data)
        return at == end and check == expected

    def verify(self) -> bool:
        """Whether all contents are as they were written; reads the file without mapping it."""
        try:
            return all(map(self._matches, self._arrays.values()))
        except OSError:
            return False


def _remove_parts(path: Path) -> None:
    """Remove what killed processes left of this file."""
    for part in path.parent.glob(f"{path.name}.*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _STALE_PART_S:
                part.unlink()
