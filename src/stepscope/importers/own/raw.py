"""Read the blocks of one process's files: tolerant of a torn end, strict about the rest."""

from __future__ import annotations

import mmap
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.importers.own import layout
from stepscope.trace.errors import InputError
from stepscope.trace.frame import AnyArray
from stepscope.trace.problems import ProblemLog

_MAGIC = layout.BLOCK_MAGIC.to_bytes(4, "little")
Sequences = dict[int, tuple[int, int, bytes]]


@dataclass
class Raw:
    """The content of one process's files.

    Attributes:
        name: the files' common name.
        meta: JSON objects, in order.
        texts: text of each number.
        rows: rows of each kind but NVTX, in order of writing.
        nvtx: (thread, rows) of each chunk, in order of their sequence.
        last_ns: monotonic time of the last block.
    """

    name: str
    meta: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    rows: dict[int, AnyArray] = field(default_factory=dict)
    nvtx: list[tuple[int, AnyArray]] = field(default_factory=list)
    last_ns: int = 0

    def of(self, kind: int) -> AnyArray:
        """The rows of a kind; none where the file holds none."""
        found = self.rows.get(kind)
        return np.empty(0, layout.ROWS[kind]) if found is None else found

    def one(self, kind: str) -> dict[str, Any]:
        """The last JSON object of a type; empty where there is none."""
        return next((m for m in reversed(self.meta) if m.get("type") == kind), {})

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Every JSON object of a type."""
        return [m for m in self.meta if m.get("type") == kind]


def names_in(folder: Path) -> list[str]:
    """Names of the processes whose files lie in a folder, in order."""
    names = {path.name.split(".", 1)[0] for path in folder.glob("*.raw") if path.is_file()}
    return sorted(names)


def read_raw(folder: Path, name: str, problems: ProblemLog) -> Raw:
    """Read all files of one process.

    Raises:
        InputError: they cannot be read, or were written by a newer collector.
    """
    raw = Raw(name)
    parts: dict[int, list[AnyArray]] = defaultdict(list)
    chunks: Sequences = {}
    segments = sorted(folder.glob(f"{name}.*.raw"))  # of a ring
    for path in (folder / f"{name}.raw", *segments):
        for header, payload in _blocks(path, problems):
            kind = int(header["kind"])
            raw.last_ns = max(raw.last_ns, int(header["time_ns"]))
            if kind == layout.META:
                raw.meta.append(_json(path, payload))
            elif kind in (layout.STRINGS, layout.NVTX):
                _keep(chunks, header, payload)
            elif kind in layout.ROWS:
                parts[kind].append(_rows(path, kind, header, payload))
    pool = folder / f"{name}.pool"
    if pool.exists():
        for header, payload in _chunks(pool):
            _keep(chunks, header, payload)
    for _, (kind, thread, payload) in sorted(chunks.items()):
        if kind == layout.STRINGS:
            raw.texts.update(_texts(payload))
        else:
            raw.nvtx.append((thread, np.frombuffer(payload, layout.ROWS[layout.NVTX])))
    raw.rows = {kind: np.concatenate(arrays) for kind, arrays in parts.items()}
    return raw


def _keep(chunks: Sequences, header: Any, payload: bytes) -> None:
    """Keep a chunk once, as long as it ever was: it may have been written while being filled."""
    sequence = int(header["sequence"])
    known = chunks.get(sequence)
    if known is None or len(known[2]) < len(payload):
        width = layout.ROWS[layout.NVTX].itemsize
        kind = int(header["kind"])
        if kind == layout.NVTX:
            payload = payload[: len(payload) // width * width]
        chunks[sequence] = (kind, int(header["thread"]), payload)


def _blocks(path: Path, problems: ProblemLog) -> Iterator[tuple[Any, bytes]]:
    """(header, payload) of every whole block of a file."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            if size == 0:
                return
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield from _blocks_in(data, size, path, problems)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error


def _blocks_in(
    data: mmap.mmap, size: int, path: Path, problems: ProblemLog
) -> Iterator[tuple[Any, bytes]]:
    width = layout.HEADER.itemsize
    at = 0
    while at < size:
        payload = None
        if at + width <= size:
            header = np.frombuffer(data[at : at + width], layout.HEADER)[0]
            end = at + width + int(header["bytes"])
            if header["magic"] == layout.BLOCK_MAGIC and end <= size:
                payload = data[at + width : end]
                if zlib.crc32(payload) != header["crc"]:
                    payload = None
        if payload is not None:
            yield header, payload
            at = end
            continue
        following = data.find(_MAGIC, at + 1)
        if following < 0:
            # what a killed process was about to write; anything else is damage
            problems.count("torn_end", 1, scope="gpu_op", detail=f"{path.name}: byte {at:,}")
            return
        problems.count("damaged_block", 1, scope="gpu_op", detail=f"{path.name}: byte {at:,}")
        at = following


def _rows(path: Path, kind: int, header: Any, payload: bytes) -> AnyArray:
    wanted = layout.ROWS[kind]
    width = int(header["row_bytes"])
    if width < wanted.itemsize or len(payload) != width * int(header["rows"]):
        raise InputError(
            f"{path} holds rows of {width} bytes where {wanted.itemsize} are expected; it was "
            "written by another version of Stepscope: read it with that"
        )
    if width == wanted.itemsize:
        return np.frombuffer(payload, wanted)
    # a newer collector added columns at the end
    padded = np.dtype({"names": ["row"], "formats": [wanted], "itemsize": width})
    return np.ascontiguousarray(np.frombuffer(payload, padded)["row"])


def _json(path: Path, payload: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(payload.decode("utf-8", "replace"))
    except msgspec.DecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    version = found.get("format", layout.FORMAT_VERSION)
    if found.get("type") == "process" and version != layout.FORMAT_VERSION:
        raise InputError(
            f"{path} has format {version}, this Stepscope reads {layout.FORMAT_VERSION}; update "
            "Stepscope"
        )
    return found


def _chunks(path: Path) -> Iterator[tuple[Any, bytes]]:
    """(header, payload) of every chunk in use of a pool that a process left behind."""
    data = path.read_bytes()
    width = layout.CHUNK.itemsize
    for at in range(0, len(data) - layout.CHUNK_BYTES + 1, layout.CHUNK_BYTES):
        header = np.frombuffer(data, layout.CHUNK, 1, at)[0]
        used = int(header["used"])
        if (
            header["magic"] == layout.CHUNK_MAGIC
            and header["state"] != layout.FREE
            and header["kind"] in (layout.STRINGS, layout.NVTX)
            and used <= layout.CHUNK_BYTES - width
        ):
            yield header, data[at + width : at + width + used]


def _texts(payload: bytes) -> Iterator[tuple[int, str]]:
    at = 0
    while at + 8 <= len(payload):
        number = int.from_bytes(payload[at : at + 4], "little")
        length = int.from_bytes(payload[at + 4 : at + 8], "little")
        if length > len(payload) - at - 8:
            return
        yield number, payload[at + 8 : at + 8 + length].decode("utf-8", "replace")
        at += 8 + (length + 7) // 8 * 8
