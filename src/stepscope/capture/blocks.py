"""Blocks of a raw file, without what is in them; declared in ``importers/stepscope/layout.py``."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

_HEADER = struct.Struct("<IHHIIIIQQ")
_MAGIC = 0x32425353
_MAGICS = (_MAGIC, 0x31425353)
META = 1
"""Kind of a block that holds a JSON object."""


def whole_blocks(stream: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """(kind, bytes of the content, where it ends) of every whole block of a file.

    The file stands at the content's begin when a block is given; a torn end is left out.
    """
    size = os.fstat(stream.fileno()).st_size
    at = 0
    while at + _HEADER.size <= size:
        stream.seek(at)
        magic, kind, _, _, length, *_ = _HEADER.unpack(stream.read(_HEADER.size))
        at += _HEADER.size + length
        if magic not in _MAGICS or at > size:
            return
        yield kind, length, at


def json_block(metadata: dict[str, Any], time_ns: int) -> bytes:
    """A block that holds a JSON object, written at a monotonic time in ns."""
    text = json.dumps(metadata).encode()

    def header(crc: int) -> bytes:
        return _HEADER.pack(_MAGIC, META, 0, 1, len(text), crc, 0, 0, time_ns)

    return header(zlib.crc32(text, zlib.crc32(header(0)))) + text
