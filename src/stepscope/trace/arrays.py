"""A file of named number arrays that is mapped into memory instead of read.

Layout: eight bytes of magic; the arrays, each from a multiple of 64 bytes on; an index in JSON
(name to type, place, length and checksum, and whatever the writer wants to say); the index's
length and checksum; the magic again. All numbers are little-endian. The file is written under a
temporary name and renamed, so a reader sees a whole one or none. A reader checks both ends, the
index and that every array lies inside; :meth:`ArrayFile.verify` also reads the contents.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_MAGIC = b"STEPARR1"
_TAIL = struct.Struct("<QI8s")
_ALIGNED = 64
_CHUNK = 1 << 22
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
        self._file = self._part.open("xb")
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

    def close(self, says: Mapping[str, Any]) -> None:
        """Finish the file and put it in place.

        Args:
            says: what readers are told, anything that JSON can hold.
        """
        index = json.dumps({"says": says, "arrays": self._index}).encode()
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
            with path.open("rb") as file:
                self.bytes = os.fstat(file.fileno()).st_size
                if self.bytes < len(_MAGIC) + _TAIL.size:
                    raise NotWholeError(f"{path} is too short")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
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
        self.says: dict[str, Any] = index["says"]
        self._arrays: dict[str, tuple[str, int, int, int]] = {}
        for name, (kind, at, count, of) in index["arrays"].items():
            if kind not in _KINDS or at < 0 or at + np.dtype(kind).itemsize * count > begin:
                raise NotWholeError(f"{path} has a damaged index")
            self._arrays[name] = (kind, at, count, of)

    def expect(self, **says: Any) -> ArrayFile:
        """The file itself, once it is clear that it is about the right thing.

        Args:
            says: what it must say.

        Raises:
            NotWholeError: it says something else.
        """
        if any(self.says.get(name) != value for name, value in says.items()):
            raise NotWholeError(f"{self.path} is of something else, or of another version")
        return self

    def __getitem__(self, name: str) -> Array:
        """One array, read-only."""
        kind, at, count, _ = self._arrays[name]
        return np.frombuffer(self._map, kind, count, at)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def buffer(self, name: str) -> memoryview:
        """The bytes of one array."""
        kind, at, count, _ = self._arrays[name]
        return memoryview(self._map)[at : at + np.dtype(kind).itemsize * count]

    def verify(self) -> bool:
        """Whether all contents are as they were written; reads the file without mapping it."""
        try:
            with self.path.open("rb") as file:
                for kind, at, count, expected in self._arrays.values():
                    file.seek(at)
                    left, check = np.dtype(kind).itemsize * count, 0
                    while left > 0 and (data := file.read(min(left, _CHUNK))):
                        check = zlib.crc32(data, check)
                        left -= len(data)
                    if left or check != expected:
                        return False
        except OSError:
            return False
        return True


def _remove_parts(path: Path) -> None:
    """Remove what killed processes left of this file."""
    for part in path.parent.glob(f"{path.name}.*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _STALE_PART_S:
                part.unlink()
