"""Protocol buffers field by field, written apart from the package's own writers and readers."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    """A number, 7 bits a byte."""
    value &= (1 << 64) - 1
    found = b""
    while value > 0x7F:
        found += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return found + bytes((value,))


def field(number: int, content: bytes | str | int | float) -> bytes:
    """A field: a number, a double, a text or a message."""
    if isinstance(content, float):
        return varint(number << 3 | 1) + struct.pack("<d", content)
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw
