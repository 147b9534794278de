"""Whether an ``.ncu-rep`` is whole: the package reads a cut file silently, without its end.

Only the framing is looked at, which Nsight Compute documents in ``extras/FileFormat``: a magic
number, a sized file header, then blocks of a sized header (a Protocol Buffers message whose
field 5 is the payload's size) and the payload.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

_PAYLOAD_SIZE = 5
_LONGEST_HEADER = 1 << 30


def unfinished(path: Path) -> str:
    """What is cut off at the end of a report; empty where it is whole, or framed in another way."""
    total = path.stat().st_size
    with path.open("rb") as file:
        file.seek(4)
        if not _sized(file, total):
            return "its header is cut"
        blocks = 0
        while file.tell() < total:
            header = _sized(file, total)
            if header is None:
                return f"in the header of block {blocks + 1}"
            size = _payload_size(header)
            if size is None:
                return ""
            if file.tell() + size > total:
                missing = file.tell() + size - total
                return f"{missing:,} bytes of block {blocks + 1} are missing"
            file.seek(size, 1)
            blocks += 1
    return "" if blocks else "it has nothing but a header"


def _sized(file: BinaryIO, total: int) -> bytes | None:
    """Four bytes of size and as many bytes; None where the file ends before."""
    size = int.from_bytes(file.read(4), "little")
    if file.tell() + size > total or size > _LONGEST_HEADER:
        return None
    return file.read(size)


def _payload_size(header: bytes) -> int | None:
    """Field 5 of a message; 0 where it has none, None where this is no message."""
    at, size = 0, 0
    while at < len(header):
        key, at = _varint(header, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(header, at)
            if key >> 3 == _PAYLOAD_SIZE:
                size = value
        elif kind == 2:
            length, at = _varint(header, at)
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return None
    return size if at == len(header) else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    return value, len(data) + 1
