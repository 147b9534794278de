"""Perfetto's own format: a stream of ``TracePacket`` messages, written field by field.

Only the handful of fields that a timeline needs are written; their numbers are those of
``protos/perfetto/trace/trace_packet.proto`` and ``track_event/*.proto`` of the Perfetto project,
where a field's number never changes. Times are nanoseconds on the trace's own clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stepscope.export.pieces import CHUNK, begins_and_ends, launches, pieces
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Samples
from stepscope.trace.frame import BoolArray, IntArray

_PACKET = 1  # Trace.packet
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60
_EVENT_NAMES = 2  # InternedData.event_names; EventName: iid 1, name 2
_TYPE, _TRACK, _NAME_ID, _COUNTER, _FLOWS, _FLOW_ENDS = 9, 11, 10, 44, 47, 48
_BEGIN, _END, _SAMPLE = 1, 2, 4
_CLEARED, _NEEDS = 1, 2
_UUID, _NAME, _PARENT, _IS_COUNTER, _ORDER, _RANK = 1, 2, 5, 8, 11, 12
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering


def varint(value: int) -> bytes:
    """A number of any size, 7 bits a byte; negative ones in two's complement of 64 bits."""
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def number(field: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    """A field that holds text or another message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def _double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def _packet(content: bytes) -> bytes:
    return message(_PACKET, content + number(_SEQUENCE, 1))


def _track(uuid: int, name: str, parent: int, rank: int, *, counter: bool = False) -> bytes:
    content = number(_UUID, uuid) + message(_NAME, name.encode("utf-8", "replace"))
    if parent:
        content += number(_PARENT, parent) + number(_RANK, rank)
    if counter:
        content += message(_IS_COUNTER, b"")
    else:
        content += number(_ORDER, _EXPLICIT)
    return _packet(message(_DESCRIPTOR, content))


def write(timeline: Timeline) -> Iterator[bytes]:
    """The file, in parts."""
    flows = launches(timeline)
    facts: set[int] = set()
    groups: dict[str, int] = {}
    yield _packet(number(_FLAGS, _CLEARED))
    uuid = 0
    for track in timeline.tracks:
        group = timeline.group_of(track)
        if group not in groups:
            uuid += 1
            groups[group] = uuid
            yield _track(uuid, group, 0, 0)
        content = timeline.track(track.id).content
        if isinstance(content, Samples):
            uuid += 1
            yield _track(uuid, track.title, groups[group], uuid, counter=True)
            head = number(_TYPE, _SAMPLE) + number(_TRACK, uuid)
            for at, value in zip(content.time.tolist(), content.value.tolist(), strict=True):
                yield _packet(
                    number(_TIMESTAMP, at) + message(_EVENT, head + _double(_COUNTER, value))
                )
            continue
        names = [n for n in content.names().tolist() if n not in facts]
        facts.update(names)
        interned = b"".join(
            message(
                _EVENT_NAMES,
                number(1, n + 1) + message(2, timeline.names.texts[n].encode("utf-8", "replace")),
            )
            for n in names
        )
        if interned:
            yield _packet(message(_INTERNED, interned) + number(_FLAGS, _NEEDS))
        of_track = flows.get(track.id)
        for piece in pieces(timeline, track):
            uuid += 1
            yield _track(uuid, piece.title, groups[group], uuid)
            time, begins, row = begins_and_ends(content, piece.rows)
            for at in range(0, len(time), CHUNK):
                part = slice(at, at + CHUNK)
                rows = row[part]
                flow = None if of_track is None else of_track.number[rows]
                leaves = of_track is not None and of_track.leaves
                numbers = content.name[rows].astype(np.int64) + 1
                yield _packets(uuid, time[part], begins[part], numbers, flow, leaves)


def _packets(
    uuid: int,
    time: IntArray,
    begins: BoolArray,
    names: IntArray,
    flow: IntArray | None,
    leaves: bool,
) -> bytes:
    """Packets of begins and ends, all at once: the same fields as one by one.

    Each packet is a row of a table of bytes, of which the used ones are taken. No packet is as
    long as 128 bytes, so that every length takes one byte.
    """
    n = len(time)
    columns: list[npt.NDArray[np.uint8]] = []
    used: list[BoolArray] = []
    every = np.ones(n, bool)

    def fixed(content: bytes, where: BoolArray) -> None:
        for byte in content:
            columns.append(np.full(n, byte, np.uint8))
            used.append(where)

    def numbers(values: IntArray, where: BoolArray) -> None:
        rest: npt.NDArray[np.uint64] = values.astype(np.uint64)  # negative ones wrap, as they must
        seven = np.uint64(7)
        going = where
        while going.any():
            more = rest > 127
            columns.append(
                (rest & np.uint64(127) | (more.astype(np.uint64) << seven)).astype(np.uint8)
            )
            used.append(going)
            rest = rest >> seven
            going = going & more

    arrow = begins & (flow >= 0) if flow is not None else np.zeros(n, bool)
    # the packet: its length comes first, but is known last
    fixed(varint(_PACKET << 3 | 2) + b"\0", every)
    whole = len(columns) - 1
    fixed(varint(_TIMESTAMP << 3), every)
    numbers(time, every)
    fixed(varint(_EVENT << 3 | 2) + b"\0", every)
    event = len(columns) - 1
    fixed(number(_TYPE, _BEGIN), begins)
    fixed(number(_TYPE, _END), ~begins)
    fixed(number(_TRACK, uuid), every)
    fixed(varint(_NAME_ID << 3), begins)
    numbers(names, begins)
    if flow is not None and arrow.any():
        fixed(varint((_FLOWS if leaves else _FLOW_ENDS) << 3 | 1), arrow)
        for byte in range(8):
            columns.append(((flow + 1) >> (8 * byte) & 255).astype(np.uint8))
            used.append(arrow)
    last = len(columns)
    fixed(number(_FLAGS, _NEEDS) + number(_SEQUENCE, 1), every)
    mask = np.stack(used, 1)
    table = np.stack(columns, 1)
    table[:, event] = mask[:, event + 1 : last].sum(1)
    table[:, whole] = mask[:, whole + 1 :].sum(1)
    return table[mask].tobytes()
