"""Reads the binary tiles of the timeline, written here a second time from their description."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

KINDS = {"f8": "<f8", "f4": "<f4", "u4": "<u4", "u1": "u1"}


def decode(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4 : 4 + length])
    assert (4 + length) % 8 == 0
    for row in header["rows"]:
        row["arrays"] = {
            name: np.frombuffer(data, KINDS[kind], count, 4 + length + at)
            for name, (kind, at, count) in row["arrays"].items()
        }
    return header
