"""Binary payloads of NVTX events (its payload extension; NCCL describes collectives so)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.raw import Raw
from stepscope.trace.frame import AnyArray

# NVTX_PAYLOAD_ENTRY_TYPE_*: those of fixed size that stand for one value.
_TYPES = {
    1: "c", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q",
    11: "b", 12: "B", 13: "h", 14: "H", 15: "i", 16: "I", 17: "q", 18: "Q",
    19: "f", 20: "d", 22: "Q", 23: "Q", 32: "B", 43: "f", 44: "d", 68: "I", 69: "I", 70: "Q",
    71: "I", 72: "Q", 73: "I", 74: "Q",
}  # fmt: skip
_ARRAY_FLAGS = 7 << 4
_FIXED_ARRAY = 1 << 4


@dataclass(frozen=True)
class _Entry:
    name: str
    format: str
    offset: int
    count: int


def payload_texts(raw: Raw, rows: AnyArray) -> dict[int, str]:
    """JSON text of each row's structured payload, by the number of the row.

    A payload whose schema was not registered, or is of an unknown kind, shows as hexadecimal.
    """
    parts = np.flatnonzero(rows["op"] == layout.BYTES)
    if not len(parts):
        return {}
    schemas = _schemas(raw)
    is_event = rows["op"] != layout.BYTES
    owner = np.maximum.accumulate(np.where(is_event, np.arange(len(rows)), 0))
    bytes_rows = rows[parts].view(layout.BYTES_ROW)
    found: dict[int, dict[str, Any]] = {}
    pending = bytearray()
    for at, part in zip(owner[parts].tolist(), bytes_rows, strict=True):
        used = min(int(part["used"]), 32)
        pending += part["bytes"].tobytes()[:used]
        if len(pending) >= int(part["total"]):
            schema = int(part["schema"])
            found.setdefault(at, {}).update(_decode(schemas.get(schema), bytes(pending)))
            pending = bytearray()
    return {at: msgspec.json.encode(value).decode() for at, value in found.items()}


def _schemas(raw: Raw) -> dict[int, list[_Entry]]:
    found = {}
    for row in (row for rows in raw.schemas for row in rows):
        try:
            said = msgspec.json.decode(raw.texts.get(int(row["name"]), "{}"))
            found[int(row["id"])] = _entries(said["entries"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            continue
    return found


def _entries(said: list[dict[str, Any]]) -> list[_Entry]:
    entries: list[_Entry] = []
    end = 0
    for entry in said:
        kind = _TYPES.get(int(entry["type"]))
        flags = int(entry["flags"])
        if kind is None or (flags & _ARRAY_FLAGS) not in (0, _FIXED_ARRAY):
            break  # what follows cannot be placed either
        count = max(1, int(entry["detail"])) if flags & _ARRAY_FLAGS else 1
        size = struct.calcsize(f"<{kind}")
        offset = int(entry["offset"])
        if offset == 0 and end:  # offsets may be left to the rules of C
            offset = -(-end // size) * size
        entries.append(_Entry(str(entry["name"]) or f"field{len(entries)}", kind, offset, count))
        end = offset + size * count
    return entries


def _decode(entries: list[_Entry] | None, data: bytes) -> dict[str, Any]:
    if not entries:
        return {"bytes": data.hex()}
    found: dict[str, Any] = {}
    for entry in entries:
        form = f"<{entry.count}{entry.format}"
        if entry.offset + struct.calcsize(form) > len(data):
            break
        values = struct.unpack_from(form, data, entry.offset)
        if entry.format == "c":
            found[entry.name] = b"".join(values).split(b"\0")[0].decode("utf-8", "replace")
        else:
            found[entry.name] = values[0] if entry.count == 1 else list(values)
    return found
