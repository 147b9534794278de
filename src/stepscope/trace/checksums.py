"""Checksums of stored files: how damage on the way from writing to reading is noticed.

``meta.json`` holds the size and the CRC-32 of every table's file, and ends with a digest of itself.
Parquet's own page checksums cover neither the headers of pages nor the footer, and DuckDB does not
read them; a CRC of the whole file serves every reader, at several gigabytes a second. A file is
read for it once a process, when it is first needed, and again only when its stamp has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

_PIECE: Final = 1 << 20
_THREADS: Final = 4
_SEAL: Final = re.compile(rb',\n  "seal": "([0-9a-f]{32})"\n\}\n?\Z')
_Key = tuple[str, int, int, int, int, int]
_sound: dict[_Key, int] = {}
"""Files that were read whole, by path and stamp, with their CRC-32."""
_MOST_REMEMBERED: Final = 1 << 16


class StoredFile(msgspec.Struct, frozen=True):
    """What a file was when it was written.

    Attributes:
        bytes: its size.
        crc32: CRC-32 of all of it.
    """

    bytes: int
    crc32: int


def stored_file(path: Path) -> StoredFile:
    """Size and checksum of a file as it is.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        stat = os.fstat(file.fileno())
        changed = (stat.st_mtime_ns, stat.st_ctime_ns)
        key = (str(path), stat.st_dev, stat.st_ino, stat.st_size, *changed)
        if key in _sound:
            return StoredFile(stat.st_size, _sound[key])
        check, size = 0, 0
        piece = bytearray(min(_PIECE, stat.st_size + 1))
        view = memoryview(piece)
        while count := file.readinto(piece):
            check = zlib.crc32(view[:count], check)
            size += count
    if size == stat.st_size:
        if len(_sound) >= _MOST_REMEMBERED:
            _sound.clear()
        _sound[key] = check
    return StoredFile(size, check)


def damage(path: Path, stored: StoredFile) -> str:
    """What is wrong with a file, in words; empty where it is as it was written."""
    try:
        if (size := path.stat().st_size) != stored.bytes:
            return f"it has {size:,} bytes instead of {stored.bytes:,}"
        if stored_file(path) != stored:
            return "its content does not match its checksum"
    except FileNotFoundError:
        return "it is gone"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return ""


def damages(files: dict[Path, StoredFile]) -> dict[Path, str]:
    """What is wrong with each of some files that is not as it was written."""
    if len(files) < 2:
        found = [damage(path, stored) for path, stored in files.items()]
    else:
        with ThreadPoolExecutor(_THREADS) as pool:  # CRC-32 of long pieces needs no lock
            found = list(pool.map(damage, files.keys(), files.values()))
    return {path: why for path, why in zip(files, found, strict=True) if why}


def sealed(document: bytes) -> bytes:
    """A JSON object, in indented form, with a digest of itself at its end."""
    body = document.rstrip()
    assert body.endswith(b"\n}")
    body = body[:-2]
    return body + b',\n  "seal": "' + _digest(body) + b'"\n}\n'


def is_sealed(document: bytes) -> bool:
    """Whether a document carries a digest, and is what it was made of."""
    found = _SEAL.search(document)
    return found is not None and _digest(document[: found.start()]) == found[1]


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()
