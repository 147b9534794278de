"""The files of a raw capture: whether they are as written, and the blocks of one process's.

Reading is tolerant of a torn end and strict about the rest. Blocks of the raw files carry checksums
of their own; what the launcher and the hook write beside them (text that is appended to) and the
memory of killed processes do not. Where raw files are kept after they have been read,
``files.json`` lists all of them with size and CRC-32.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

from stepscope.importers.common.texts import dictionary
from stepscope.importers.stepscope import layout
from stepscope.intervals.distinct import with_inverse
from stepscope.trace.checksums import StoredFile, damages, is_sealed, sealed, stored_file
from stepscope.trace.errors import InputError
from stepscope.trace.folders import write_private
from stepscope.trace.frame import AnyArray
from stepscope.trace.problems import ProblemLog

if TYPE_CHECKING:
    import pyarrow as pa

LIST_FILE = "files.json"
_TOLERANT = ".raw"
"""Files of which the whole blocks are read, whatever became of the others."""


@dataclass(frozen=True)
class Files:
    """A folder of raw files.

    Attributes:
        folder: the folder.
        left_out: names of files that are damaged, and cannot be read in part.
    """

    folder: Path
    left_out: frozenset[str] = frozenset()

    def path(self, name: str) -> Path:
        """Where a file is; where nothing is, for one that is left out."""
        return self.folder / (f".left-out/{name}" if name in self.left_out else name)

    def like(self, pattern: str) -> list[Path]:
        """Files whose names match a pattern, in order."""
        return [p for p in sorted(self.folder.glob(pattern)) if p.name not in self.left_out]


class _List(msgspec.Struct):
    files: dict[str, StoredFile]


def write_list(folder: Path) -> None:
    """List what is in a folder, once.

    Raises:
        OSError: it cannot be written.
    """
    if not (folder / LIST_FILE).exists():
        listed = [path for path in sorted(folder.iterdir()) if _is_file(path)]
        found = {path.name: stored_file(path) for path in listed}
        text = msgspec.json.format(msgspec.json.encode(_List(found)))
        write_private(folder / LIST_FILE, sealed(text))


def examined(folder: Path, problems: ProblemLog) -> Files:
    """The files of a folder, those that are not as they were written left out and counted."""
    listed = _listed(folder, problems)
    if listed is None:
        return Files(folder)
    bad = {path.name: why for path, why in damages(_paths(folder, listed)).items()}
    known = {*listed, LIST_FILE}
    for path in folder.iterdir():
        if _is_file(path) and path.name not in known:
            bad[path.name] = "it is not of this capture"
    for name, why in sorted(bad.items()):
        problems.count("damaged_file", 1, scope="meta", detail=f"{name}: {why}")
    strange = {name for name in bad if name not in listed}
    return Files(folder, frozenset(n for n in bad if n in strange or not n.endswith(_TOLERANT)))


def _listed(folder: Path, problems: ProblemLog) -> Mapping[str, StoredFile] | None:
    try:
        raw = (folder / LIST_FILE).read_bytes()
    except OSError:
        return None
    try:
        if is_sealed(raw):
            return msgspec.json.decode(raw, type=_List).files
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    detail = f"{LIST_FILE}: its content does not match its checksum"
    problems.count("damaged_file", 1, scope="meta", detail=detail)
    return None


def _paths(folder: Path, listed: Mapping[str, StoredFile]) -> dict[Path, StoredFile]:
    # a name in a list that somebody made up leads nowhere else
    return {folder / Path(name).name: file for name, file in listed.items()}


def _is_file(path: Path) -> bool:
    """Whether a file is of a capture: what is hidden or a pipe is not."""
    return path.is_file() and not path.name.startswith(".")


_MAGICS = tuple(m.to_bytes(4, "little") for m in (layout.BLOCK_MAGIC, layout.BLOCK_MAGIC_1))
_COMMON = _MAGICS[0][:3]
PART_ROWS = 1 << 18
"""Rows handed on at once."""
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True)
class Block:
    """Where a block of rows stands.

    Attributes:
        path: the file.
        at: byte at which its rows begin.
        width: bytes of a row in the file.
        rows: number of rows.
    """

    path: Path
    at: int
    width: int
    rows: int


@dataclass(frozen=True)
class Chunk:
    """Some NVTX rows of one thread, or some texts.

    Attributes:
        kind: ``NVTX`` or ``STRINGS``.
        thread: thread that wrote them.
        length: of them, bytes.
        held: themselves, or where they stand in a file.
    """

    kind: int
    thread: int
    length: int
    held: bytes | Block

    @property
    def rows(self) -> int:
        """Number of NVTX rows."""
        return self.length // layout.ROWS[layout.NVTX].itemsize

    def load(self) -> AnyArray:
        """The NVTX rows."""
        if isinstance(self.held, bytes):
            whole = self.rows * layout.ROWS[layout.NVTX].itemsize
            return np.frombuffer(self.held[:whole], layout.ROWS[layout.NVTX])
        return _load(layout.NVTX, self.held)


@dataclass
class Raw:
    """The content of one process's files. Rows stay in the files until they are asked for.

    Attributes:
        name: the files' common name.
        meta: JSON objects, in order.
        texts: text of each number.
        blocks: where the rows of each kind but NVTX are, in order of writing.
        nvtx: chunks of NVTX rows, in order of their sequence: a thread's are in order of time.
        schemas: NVTX rows that describe payloads; any thread may use them.
        last_ns: monotonic time of the last block.
        whole_since_ns: monotonic time from which on a ring has dropped nothing; 0: none was.
    """

    name: str
    meta: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    blocks: dict[int, list[Block]] = field(default_factory=lambda: defaultdict(list))
    nvtx: list[Chunk] = field(default_factory=list)
    schemas: list[AnyArray] = field(default_factory=list)
    last_ns: int = 0
    whole_since_ns: int = 0

    def count(self, kind: int) -> int:
        """Number of rows of a kind."""
        return sum(block.rows for block in self.blocks.get(kind, ()))

    def of(self, kind: int) -> AnyArray:
        """All rows of a kind at once; none where the file holds none."""
        found = [_load(kind, block) for block in self.blocks.get(kind, ())]
        return np.concatenate(found) if found else np.empty(0, layout.ROWS[kind])

    def parts(self, kind: int) -> Iterator[AnyArray]:
        """The rows of a kind, some at a time: memory stays bounded however long the capture."""
        found: list[AnyArray] = []
        rows = 0
        for block in self.blocks.get(kind, ()):
            found.append(_load(kind, block))
            rows += block.rows
            if rows >= PART_ROWS:
                yield np.concatenate(found)
                found, rows = [], 0
        if found:
            yield np.concatenate(found)

    def one(self, kind: str) -> dict[str, Any]:
        """The last JSON object of a type; empty where there is none."""
        return next((m for m in reversed(self.meta) if m.get("type") == kind), {})

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Every JSON object of a type."""
        return [m for m in self.meta if m.get("type") == kind]


_FIRST = ".000000"
"""A ring's first file; where it is gone, so are the records of its time."""


def names_in(files: Files) -> list[str]:
    """Names of the processes whose files lie in a folder, in order."""
    names = {path.name.split(".", 1)[0] for path in files.like("*.raw") if path.is_file()}
    return sorted(names)


def read_raw(files: Files, name: str, problems: ProblemLog) -> Raw:
    """Read all files of one process.

    Raises:
        InputError: they cannot be read, or were written by a newer collector.
    """
    raw = Raw(name)
    chunks: dict[int, Chunk] = {}
    segments = files.like(f"{name}.*.raw")  # of a ring
    for path in (files.path(f"{name}.raw"), *segments):
        for header, payload, at in _blocks(path, problems):
            kind = int(header["kind"])
            if not raw.whole_since_ns and path in segments and segments[0].suffixes[0] != _FIRST:
                raw.whole_since_ns = int(header["time_ns"])
            raw.last_ns = max(raw.last_ns, int(header["time_ns"]))
            if kind == layout.META:
                raw.meta.append(_json(path, payload))
            elif kind == layout.STRINGS:
                _keep(chunks, header, payload)
            elif kind == layout.NVTX:
                block = _block(path, kind, header, at)
                _keep_schemas(raw, np.frombuffer(payload, layout.ROWS[kind]))
                _keep(chunks, header, block, len(payload))
            elif kind in layout.ROWS:
                raw.blocks[kind].append(_block(path, kind, header, at))
    pool = files.path(f"{name}.pool")
    if pool.exists():
        for header, payload in _chunks(pool, problems):
            _keep(chunks, header, payload)
    for _, chunk in sorted(chunks.items()):
        if isinstance(chunk.held, bytes) and chunk.kind == layout.STRINGS:
            raw.texts.update(_texts(chunk.held))
            continue
        raw.nvtx.append(chunk)
        if isinstance(chunk.held, bytes):
            _keep_schemas(raw, chunk.load())
    return raw


def _keep_schemas(raw: Raw, rows: AnyArray) -> None:
    found = rows[rows["op"] == layout.SCHEMA]
    if len(found):
        raw.schemas.append(found)


def _keep(
    chunks: dict[int, Chunk], header: Any, held: bytes | Block, length: int | None = None
) -> None:
    """Keep a chunk once, as long as it ever was: it may have been written while being filled."""
    sequence = int(header["sequence"])
    if length is None:
        assert isinstance(held, bytes)
        length = len(held)
    known = chunks.get(sequence)
    if known is None or known.length < length:
        chunks[sequence] = Chunk(int(header["kind"]), int(header["thread"]), length, held)


def _blocks(path: Path, problems: ProblemLog) -> Iterator[tuple[Any, bytes, int]]:
    """(header, payload, byte at which the payload begins) of every whole block of a file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            yield from _blocks_in(stream, size, path, problems)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error


def _blocks_in(
    data: BinaryIO, size: int, path: Path, problems: ProblemLog
) -> Iterator[tuple[Any, bytes, int]]:
    width = layout.HEADER.itemsize
    at = 0
    while at < size:
        payload = None
        data.seek(at)
        head = data.read(width)
        if len(head) == width:
            header = np.frombuffer(head, layout.HEADER)[0]
            end = at + width + int(header["bytes"])
            if head[:4] in _MAGICS and end <= size:
                payload = data.read(int(header["bytes"]))
                if len(payload) != header["bytes"] or _crc(head, payload) != header["crc"]:
                    payload = None
        if payload is not None:
            yield header, payload, at + width
            at = end
            continue
        following = _find(data, at + 1)
        if following < 0:
            # what a killed process was about to write; anything else is damage
            problems.count("torn_end", 1, scope="gpu_op", detail=f"{path.name}: byte {at:,}")
            return
        problems.count("damaged_block", 1, scope="gpu_op", detail=f"{path.name}: byte {at:,}")
        at = following


def _crc(head: bytes, payload: bytes) -> int:
    """The checksum that a block should carry."""
    before = 0
    if head[:4] == _MAGICS[0]:
        at = layout.HEADER.fields["crc"][1] if layout.HEADER.fields else 0
        before = zlib.crc32(head[:at] + bytes(4) + head[at + 4 :])
    return zlib.crc32(payload, before)


def _find(data: BinaryIO, at: int) -> int:
    """The first place from a byte on at which a block may begin; -1 where there is none."""
    while True:
        data.seek(at)
        some = data.read(_SEARCH_BYTES)
        found = some.find(_COMMON)
        while found >= 0 and some[found : found + 4] not in _MAGICS:
            found = some.find(_COMMON, found + 1)
        if found >= 0:
            return at + found
        if len(some) < _SEARCH_BYTES:
            return -1
        at += len(some) - len(_COMMON)


def _block(path: Path, kind: int, header: Any, at: int) -> Block:
    wanted = layout.ROWS[kind]
    width, rows = int(header["row_bytes"]), int(header["rows"])
    if width < wanted.itemsize or int(header["bytes"]) != width * rows:
        raise InputError(
            f"{path} holds rows of {width} bytes where {wanted.itemsize} are expected; it was "
            "written by another version of Stepscope: read it with that"
        )
    return Block(path, at, width, rows)


def _load(kind: int, block: Block) -> AnyArray:
    wanted = layout.ROWS[kind]
    with block.path.open("rb") as stream:
        stream.seek(block.at)
        payload = stream.read(block.width * block.rows)
    if block.width == wanted.itemsize:
        return np.frombuffer(payload, wanted)
    # a newer collector added columns at the end
    padded = np.dtype({"names": ["row"], "formats": [wanted], "itemsize": block.width})
    return np.ascontiguousarray(np.frombuffer(payload, padded)["row"])


def _json(path: Path, payload: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(payload.decode("utf-8", "replace"))
    except msgspec.DecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    version = found.get("format", layout.FORMAT_VERSION)
    if found.get("type") == "process" and version not in layout.READ_VERSIONS:
        raise InputError(
            f"{path} has format {version}, this Stepscope reads {layout.FORMAT_VERSION}; update "
            "Stepscope"
        )
    return found


def _chunks(path: Path, problems: ProblemLog) -> Iterator[tuple[Any, bytes]]:
    """(header, payload) of every chunk in use of a pool that a process left behind.

    It is memory that threads were writing to, and has no checksums; what cannot be is counted.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error
    if rest := len(data) % layout.CHUNK_BYTES:
        detail = f"{path.name}: byte {len(data) - rest:,}"
        problems.count("torn_end", 1, scope="range", detail=detail)
    width = layout.CHUNK.itemsize
    for at in range(0, len(data) - layout.CHUNK_BYTES + 1, layout.CHUNK_BYTES):
        header = np.frombuffer(data, layout.CHUNK, 1, at)[0]
        payload = data[at + width : at + width + min(int(header["used"]), layout.CHUNK_BYTES)]
        if not _is_chunk(header, payload, data[at : at + layout.CHUNK_BYTES]):
            problems.count("damaged_block", 1, scope="range", detail=f"{path.name}: byte {at:,}")
        elif header["magic"] == layout.CHUNK_MAGIC and header["state"] != layout.FREE:
            yield header, payload


def _is_chunk(header: Any, payload: bytes, whole: bytes) -> bool:
    """Whether a chunk can be as a process left it."""
    if header["magic"] != layout.CHUNK_MAGIC:
        return not any(whole)  # never used
    width = layout.CHUNK.itemsize
    kind, used = int(header["kind"]), int(header["used"])
    rows = layout.ROWS[layout.NVTX].itemsize if kind == layout.NVTX else 0
    if (
        kind not in (layout.STRINGS, layout.NVTX)
        or header["state"] > layout.FULL
        or header["row_bytes"] != rows
        or header["sequence"] == 0
        or used > layout.CHUNK_BYTES - width
    ):
        return False
    if header["state"] == layout.FREE:
        return True
    if kind == layout.STRINGS:
        return sum(8 + (length + 7) // 8 * 8 for _, _, length in _text_places(payload)) == used
    events = np.frombuffer(payload[: used // rows * rows], layout.ROWS[layout.NVTX])
    ops = events["op"]
    times = events["time"][ops <= layout.MARK]  # one thread's: it writes them in order
    return (
        used % rows == 0
        and bool(((ops >= layout.PUSH) & (ops <= layout.BYTES)).all())
        and bool((times[1:] >= times[:-1]).all())
    )


def _texts(payload: bytes) -> Iterator[tuple[int, str]]:
    for number, at, length in _text_places(payload):
        yield number, payload[at : at + length].decode("utf-8", "replace")


def _text_places(payload: bytes) -> Iterator[tuple[int, int, int]]:
    """(number, begin, bytes) of each text of a chunk."""
    at = 0
    while at + 8 <= len(payload):
        number = int.from_bytes(payload[at : at + 4], "little")
        length = int.from_bytes(payload[at + 4 : at + 8], "little")
        if length > len(payload) - at - 8:
            return
        yield number, at + 8, length
        at += 8 + (length + 7) // 8 * 8


def texts(raw: Raw, numbers: AnyArray, change: Mapping[int, str] | None = None) -> pa.Array:
    """Dictionary array of text numbers; null for 0, ``[text N]`` for one that was lost.

    Args:
        raw: holds the texts.
        numbers: text numbers.
        change: other texts for some numbers.
    """
    distinct, inverse = with_inverse(numbers)
    words = []
    for number in distinct.tolist():
        text = raw.texts.get(number, f"[text {number}]")
        words.append(change.get(number, text) if change else text)
    return dictionary(inverse, words, mask=numbers == 0)


def ids(numbers: AnyArray, none: int = layout.NO_ID) -> pa.Array:
    """Numbers as int64, null where they stand for none."""
    import pyarrow as pa

    return pa.array(numbers.astype(np.int64), mask=np.asarray(numbers == none))
