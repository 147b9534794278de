"""NVTX events to ranges, marks and operators; their binary payloads to JSON."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.importers.common.nvtx import put_operators
from stepscope.importers.common.sink import Sink
from stepscope.importers.common.texts import constant, dictionary
from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.about import Intervals
from stepscope.importers.stepscope.raw import PART_ROWS, Chunk, Raw, texts
from stepscope.intervals.distinct import among, distinct_values, with_first
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

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
            metadata = msgspec.json.decode(raw.texts.get(int(row["name"]), "{}"))
            found[int(row["id"])] = _entries(metadata["entries"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            continue
    return found


def _entries(metadata: list[dict[str, Any]]) -> list[_Entry]:
    entries: list[_Entry] = []
    end = 0
    for entry in metadata:
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


TABLE = "range"
OSRT_DOMAIN, GIL_DOMAIN = "stepscope osrt", "stepscope gil"
"""Domains in which the preloaded library tells of waits; no ranges of the program."""
_KINDS = ["pushpop", "startend", "mark"]
_FORMATS = {1: "<u8", 2: "<i8", 3: "<f8", 4: "<u4", 5: "<i4", 6: "<f4"}
"""NVTX payload types by number."""


@dataclass
class _Open:
    """What a part of the events hands on to the next one.

    Attributes:
        rows: opened ranges whose end has not come, ends whose beginning has not; then each thread's
            last event with its payload so far, which may go on.
        thread: thread of each row.
        payloads: payload of the opened ranges, by row.
    """

    rows: AnyArray = field(default_factory=lambda: np.empty(0, layout.ROWS[layout.NVTX]))
    thread: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    payloads: dict[int, str] = field(default_factory=dict)


def read_ranges(
    sink: Sink,
    raw: Raw,
    process: int,
    ends_ns: Sequence[int],
    within: Intervals | None = None,
) -> dict[int, str]:
    """Fill ``range`` with the ranges of one process, some at a time.

    Args:
        sink: takes the rows.
        raw: the process's files.
        process: process id.
        ends_ns: monotonic times at which recording ended, ascending. A range without an end is
            closed at the first of them after its beginning: what came later was not recorded.
        within: monotonic times; ranges wholly outside are left out. None: all are kept.

    Returns:
        The names that the program gave to its threads.
    """
    names: dict[int, str] = {}
    open_, ends = _Open(), np.array(ends_ns, np.int64)
    parts = _parts(raw)
    for at, chunks in enumerate(parts):
        new = [chunk.load() for chunk in chunks]
        rows = np.concatenate([open_.rows, *new])
        thread = np.concatenate(
            [open_.thread, np.repeat([c.thread for c in chunks], [len(r) for r in new])]
        ).astype(np.int64)
        named = rows[rows["op"] == layout.THREAD_NAME]
        for number, name in zip(named["id"].tolist(), named["name"].tolist(), strict=True):
            names[number] = raw.texts.get(name, "")
        sink.threads |= {(process, t) for t in distinct_values(thread).tolist()}
        last = at == len(parts) - 1
        open_ = _read_part(
            sink, raw, process, (rows, thread), open_, ends if last else None, within
        )
    return names


def _parts(raw: Raw) -> list[list[Chunk]]:
    """The chunks of NVTX rows, in order, some rows at a time."""
    parts: list[list[Chunk]] = []
    rows = PART_ROWS
    for chunk in raw.nvtx:
        if rows >= PART_ROWS:
            parts.append([])
            rows = 0
        parts[-1].append(chunk)
        rows += chunk.rows
    return parts


def _read_part(
    sink: Sink,
    raw: Raw,
    process: int,
    events: tuple[AnyArray, IntArray],
    before: _Open,
    recorded_until: IntArray | None,
    within: Intervals | None,
) -> _Open:
    """Write the ranges that are whole; at the last part, told when recording ended, all others."""
    rows, thread = events
    tails = np.empty(0, np.int64) if recorded_until is not None else _tails(rows, thread)
    later = among(np.arange(len(rows)), tails)
    # rows of a thread together, so that a payload follows its event
    order = np.argsort(thread, kind="stable")
    order = order[~later[order]]
    mine, owner = rows[order], thread[order]
    place = np.full(len(rows), -1, np.int64)
    place[order] = np.arange(len(order))
    payloads = {int(place[row]): text for row, text in before.payloads.items()}
    payloads |= payload_texts(raw, mine)
    opens, closes = _pushpop(mine, owner)
    reported = _read_waits(sink, raw, mine, owner, process, (opens, closes), within)
    starts, ends = _startend(mine)
    marks = np.flatnonzero(mine["op"] == layout.MARK)
    first = np.concatenate([opens[~reported], starts, marks])
    last = np.concatenate([closes[~reported], ends, marks])
    kind = np.repeat([0, 1, 2], [int((~reported).sum()), len(starts), len(marks)])
    closed = last >= 0
    if recorded_until is None:
        first, last, kind, closed = first[closed], last[closed], kind[closed], closed[closed]
    begin = mine["time"][first].astype(np.int64)
    end = mine["time"][last].astype(np.int64)
    if recorded_until is not None:
        end = np.where(closed, end, _cut_off(begin, recorded_until))
    if within is not None:
        kept = _overlap(begin, end, within)
        first, last, kind = first[kept], last[kept], kind[kept]
        closed, begin, end = closed[kept], begin[kept], end[kept]
    sink.writer.problems.count("unclosed_range", int((~closed).sum()), scope=TABLE)
    _put(sink, raw, mine, owner, process, (first, last, kind, closed, begin, end), payloads)
    if recorded_until is not None:
        return _Open()
    over = [opens[closes < 0], starts[ends < 0], _lone_ends(mine, ends)]
    kept_rows = np.sort(np.concatenate(over))
    return _Open(
        np.concatenate([mine[kept_rows], rows[tails]]),
        np.concatenate([owner[kept_rows], thread[tails]]),
        {
            place: payloads[row]
            for place, row in enumerate(kept_rows.tolist() if payloads else [])
            if row in payloads
        },
    )


def _overlap(begin: IntArray, end: IntArray, within: Intervals) -> BoolArray:
    """Whether each time span has a moment in common with one of some disjoint intervals."""
    starts, stops = within
    place = np.searchsorted(starts, end, side="right") - 1
    return (place >= 0) & (np.append(stops, 0)[place] >= begin)


def _cut_off(begin: IntArray, ends: IntArray) -> IntArray:
    """The first end of recording after each beginning; the beginning itself where none came."""
    place = np.searchsorted(ends, begin)
    return np.where(place < len(ends), np.append(ends, 0)[place], begin)


def _tails(rows: AnyArray, thread: IntArray) -> IntArray:
    """Rows of each thread from its last event on: what follows may be that event's payload."""
    events = np.flatnonzero(rows["op"] != layout.BYTES)
    threads, back = with_first(thread[events][::-1])
    since = events[::-1][back]
    place = np.minimum(np.searchsorted(threads, thread), max(len(threads) - 1, 0))
    known = threads[place] == thread if len(threads) else np.zeros(len(thread), bool)
    return np.flatnonzero(known & (np.arange(len(rows)) >= np.where(known, since[place], 0)))


def _lone_ends(rows: AnyArray, ends: IntArray) -> IntArray:
    """Ends of ranges whose start has not come: another thread's events may be later in the file."""
    found = np.flatnonzero(rows["op"] == layout.FINISH)
    return found[~among(found, ends[ends >= 0])]


def _read_waits(
    sink: Sink,
    raw: Raw,
    rows: AnyArray,
    thread: IntArray,
    process: int,
    pairs: tuple[IntArray, IntArray],
    within: Intervals | None,
) -> BoolArray:
    """Fill ``api_call`` and ``gil`` with the waits among the ranges; returns which those are."""
    opens, closes = pairs
    domain = rows["domain"][opens]
    reported = np.zeros(len(opens), bool)
    for name in (OSRT_DOMAIN, GIL_DOMAIN):
        numbers = [number for number, text in raw.texts.items() if text == name]
        mine = among(domain, numbers) if numbers else np.zeros(len(opens), bool)
        reported |= mine
        first, last = opens[mine & (closes >= 0)], closes[mine & (closes >= 0)]
        if within is not None:
            begun, ended = (rows["time"][at].astype(np.int64) for at in (first, last))
            kept = _overlap(begun, ended, within)
            first, last = first[kept], last[kept]
        if not len(first):
            continue
        columns: dict[str, Any] = {
            "process_id": np.full(len(first), process),
            "thread_id": thread[first],
            "start_ns": sink.times(rows["time"][first]),
            "end_ns": sink.times(rows["time"][last]),
        }
        if name == GIL_DOMAIN:
            sink.put("gil", columns | {"state": constant("waiting", len(first))})
        else:
            sink.rows["osrt"] += len(first)
            called = texts(raw, rows["name"][first]).fill_null("")
            columns |= {"api": constant("osrt", len(first)), "name": called, "raw_name": called}
            sink.put("api_call", columns)
    return reported


def _put(
    sink: Sink,
    raw: Raw,
    rows: AnyArray,
    thread: IntArray,
    process: int,
    ranges: tuple[IntArray, IntArray, IntArray, BoolArray, IntArray, IntArray],
    payloads: dict[int, str],
) -> None:
    import pyarrow as pa

    first, last, kind, closed, begin, end = ranges
    order = np.argsort(begin, kind="stable")
    first, last, kind, closed = first[order], last[order], kind[order], closed[order]
    end_thread = thread[last]
    names = texts(raw, rows["name"][first]).fill_null("")
    if len(first):  # what PyTorch's profiler named (``stepscope run --ops``)
        place = np.full(len(first), process), thread[first]
        times = begin[order], end[order]
        put_operators(sink, names.dictionary_decode(), closed, place, times)
    sink.put(
        TABLE,
        {
            "kind": dictionary(kind, _KINDS),
            "process_id": np.full(len(first), process),
            "thread_id": thread[first],
            "end_thread_id": pa.array(end_thread, mask=(kind != 1) | ~closed),
            "start_ns": sink.times(begin[order]),
            "end_ns": sink.times(end[order]),
            "name": names,
            "domain": texts(raw, rows["domain"][first]),
            "payload": _payload_column(rows, first, payloads),
            "closed": closed,
            "end_missing": ~closed,
        },
    )


def _pushpop(rows: AnyArray, thread: IntArray) -> tuple[IntArray, IntArray]:
    """Rows of every push and of its pop (-1 where it was not popped).

    Pushes and pops nest within one thread and domain. A pop without a push belongs to a range
    that was opened before recording began, and is left out.
    """
    at = np.flatnonzero(among(rows["op"], (layout.PUSH, layout.POP)))
    # a thread's chunks come in order, so its rows are in order of time already
    order = at[np.lexsort((at, rows["domain"][at], thread[at]))]
    if not len(order):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    step = np.where(rows["op"][order] == layout.PUSH, 1, -1)
    key = thread[order] * (1 << 32) + rows["domain"][order]
    bounds = [0, *(np.flatnonzero(key[1:] != key[:-1]) + 1).tolist(), len(order)]
    opens, closes = [], []
    for begin, end in itertools.pairwise(bounds):
        mine, change = order[begin:end], step[begin:end]
        depth = np.cumsum(change)
        low = np.minimum.accumulate(np.minimum(depth, 0))
        orphan = (change < 0) & (low < np.concatenate(([0], low[:-1])))
        mine, change = mine[~orphan], change[~orphan]
        depth = np.cumsum(change)
        level = np.where(change > 0, depth, depth + 1)
        # on one level pushes and pops take turns, so a push's pop is the next event there
        place = np.lexsort((np.arange(len(mine)), level))
        is_push = change[place] > 0
        follows = np.concatenate((~is_push[1:] & (level[place][1:] == level[place][:-1]), [False]))
        after = np.concatenate((mine[place][1:], [-1]))
        opens.append(mine[place][is_push])
        closes.append(np.where(follows, after, -1)[is_push])
    return np.concatenate(opens), np.concatenate(closes)


def _startend(rows: AnyArray) -> tuple[IntArray, IntArray]:
    """Rows of every start and of its end, by the range's id."""
    starts = np.flatnonzero(rows["op"] == layout.BEGIN)
    ends = np.flatnonzero(rows["op"] == layout.FINISH)
    if not len(ends):
        return starts, np.full(len(starts), -1, np.int64)
    ends = ends[np.argsort(rows["id"][ends], kind="stable")]
    known = rows["id"][ends]
    place = np.minimum(np.searchsorted(known, rows["id"][starts]), len(ends) - 1)
    return starts, np.where(known[place] == rows["id"][starts], ends[place], -1)


def _payload_column(rows: AnyArray, first: IntArray, payloads: dict[int, str]) -> pa.Array:
    """The payload of each range as text: a number, or JSON of a structure."""
    import pyarrow as pa

    texts_: dict[int, str] = dict(payloads)
    for number, kind in _FORMATS.items():
        for row in first[rows["payload_type"][first] == number].tolist():
            value = np.frombuffer(rows["payload"][row].tobytes(), kind, 1)[0]
            texts_[row] = str(value)
    if not texts_:
        return pa.nulls(len(first), pa.string())
    found: list[Any] = [texts_.get(row) for row in first.tolist()]
    return pa.array(found, pa.string())
