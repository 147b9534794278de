"""Files of named number arrays that are mapped into memory instead of read.

An uncompressed ``.npz``, which ``numpy.load`` reads too: a ZIP archive of one ``.npy`` a name, with
``about.json`` before its end. Numbers stand at multiples of 64 bytes, so that they can be used
where they are, and the archive holds a CRC-32 of each array. It is checked when an array is first
asked for, or for all at once where the file is small: small files that are damaged are as good as
absent, of a large one whoever meets the damage is told, and the file is removed.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from stepscope.trace.errors import StorageError

_ABOUT: Final = "about.json"
_ALIGNED: Final = 64
_MARK: Final = b"PK\x03\x04"
_PADDING: Final = struct.Struct("<HH")
_PADDING_ID: Final = 0xD935
"""Of the extra field with which archives of other programs align their members."""
_HEADER: Final = struct.Struct("<4s22xHH")
"""Of a member: its mark, up to the lengths of its name and of its extra fields."""
_ZIP64_BYTES: Final = 20
_CHUNK: Final = 1 << 22
_SMALL_BYTES = 64 << 20
"""Files up to this size are checked as they are opened, which takes some hundredths of a second."""
_KINDS: Final = frozenset({"<i8", "<f8", "<i4", "<u4", "<f4", "<u2", "|u1"})
_DAMAGE: Final = (
    *(OSError, ValueError, KeyError, EOFError, RuntimeError, NotImplementedError),
    *(struct.error, zipfile.BadZipFile),
)
"""What reading a damaged archive raises."""
Array = npt.NDArray[Any]


class NotWholeError(Exception):
    """The file is absent, damaged, or about something else."""


class ArrayWriter:
    """Writes what :class:`ArrayFile` reads; complete when :meth:`close` has returned.

    A context manager: what is raised inside leaves a file that is not whole.

    Args:
        file: where.
    """

    def __init__(self, file: Path | IO[bytes]) -> None:
        self._archive = zipfile.ZipFile(file, "w")
        self._kinds: dict[str, tuple[str, int | None]] = {}

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, ValueError):  # of a full disk, which has been said
            self._archive.close()

    def add(
        self,
        name: str,
        values: Array | Iterable[Array],
        kind: str | None = None,
        length: int | None = None,
    ) -> None:
        """Append one array, whole or in pieces.

        Args:
            name: its name.
            values: the numbers.
            kind: how they are stored, as numpy writes it; by default as they are.
            length: of all pieces together, where they are no list; pieces need their kind, too.
        """
        if isinstance(values, np.ndarray):
            kind, values = kind or values.dtype.str, [values]
        if isinstance(values, list):
            length = sum(map(len, values))
        if kind not in _KINDS:
            raise ValueError(f"{name} cannot be stored as {kind}")
        member = zipfile.ZipInfo(f"{name}.npy")
        assert self._archive.fp is not None
        begin = self._archive.fp.tell() + _HEADER.size + len(member.filename.encode())
        gap = -(begin + _PADDING.size + _ZIP64_BYTES) % _ALIGNED
        member.extra = _PADDING.pack(_PADDING_ID, gap) + bytes(gap)
        with self._archive.open(member, "w", force_zip64=True) as stream:
            header = {"descr": kind, "fortran_order": False, "shape": (length,)}
            npy.write_array_header_1_0(stream, header)
            for piece in values:
                for at in range(0, len(piece), _CHUNK):
                    stream.write(np.ascontiguousarray(piece[at : at + _CHUNK], dtype=kind).data)
        self._kinds[name] = (kind, length)

    def close(self, about: Mapping[str, Any], revision: str = "") -> None:
        """Finish the file.

        Args:
            about: what readers are told, anything that JSON can hold.
            revision: what the file depends on.
        """
        document = {"revision": revision, "about": about, "arrays": self._kinds}
        self._archive.writestr(zipfile.ZipInfo(_ABOUT), json.dumps(document))
        self._archive.close()


class ArrayFile:
    """Arrays of a file, mapped: only what is touched is read, and the system may drop it again.

    Args:
        path: the file.
        revision: what it must depend on; None for anything.

    Raises:
        NotWholeError: it is absent, damaged, or of another revision.
    """

    def __init__(self, path: Path, revision: str | None = "") -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
            assert self._archive.fp is not None
            self._descriptor = self._archive.fp.fileno()
            if any(member.compress_type for member in self._archive.infolist()):
                raise zipfile.BadZipFile("what is never compressed is said to be")
            self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            document = json.loads(self._archive.read(_ABOUT))
            self._kinds: dict[str, tuple[str, int]] = document["arrays"]
            # a damaged directory may have lost some
            self._places = {n: self._archive.getinfo(f"{n}.npy") for n in self._kinds}
        except _DAMAGE as error:
            raise NotWholeError(f"{path}: {error}") from error
        if revision is not None and document["revision"] != revision:
            raise NotWholeError(f"{path} is of something else, or of another version")
        self.about: dict[str, Any] = document["about"]
        self._checked: set[str] = set()
        if len(self._map) <= _SMALL_BYTES:
            if not self.verify():
                raise NotWholeError(f"{path} is damaged")
            self._checked.update(self._kinds)

    def __getitem__(self, name: str) -> Array:
        """One array, read-only.

        Raises:
            StorageError: it is damaged; the file has been removed.
        """
        if name not in self._checked:
            if not self._is_sound(name):
                self.path.unlink(missing_ok=True)
                raise StorageError(
                    f"{self.path} was damaged and has been removed; do the same again, which "
                    "makes it again"
                )
            self._checked.add(name)
        kind, length = self._kinds[name]
        _, end = self._bounds(name)
        return np.frombuffer(self._map, kind, length, end - np.dtype(kind).itemsize * length)

    def __contains__(self, name: str) -> bool:
        return name in self._kinds

    def _bounds(self, name: str) -> tuple[int, int]:
        """Where the content of a member begins and ends."""
        place = self._places[name]
        mark, name_bytes, extra_bytes = _HEADER.unpack_from(self._map, place.header_offset)
        if mark != _MARK:
            raise zipfile.BadZipFile(f"{name} is not where it should be")
        begin = place.header_offset + _HEADER.size + name_bytes + extra_bytes
        return begin, begin + place.file_size

    def _is_sound(self, name: str) -> bool:
        """Whether an array is as it was written; it is read through no mapping."""
        try:
            (at, end), check = self._bounds(name), 0
            while at < end and (data := os.pread(self._descriptor, min(end - at, _CHUNK), at)):
                check = zlib.crc32(data, check)
                at += len(data)
        except _DAMAGE:
            return False
        return at == end and check == self._places[name].CRC

    def verify(self) -> bool:
        """Whether all arrays are as they were written; reads the file without mapping it."""
        return all(map(self._is_sound, self._kinds))
