"""The Trace Event Format of chrome://tracing, which Perfetto opens as well: JSON.

Times are written in microseconds with three digits, which is exact. A process is a group of
tracks, a thread is a track; processes carry numbers of their own, because the same thread of the
operating system has several tracks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from stepscope.export.pieces import CHUNK, Flows, Piece, launches, pieces
from stepscope.intervals.distinct import distinct_values
from stepscope.timeline.classes import CLASSES
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Samples


def write(timeline: Timeline) -> Iterator[bytes]:
    """The file, in parts."""
    yield b'{"displayTimeUnit":"ns","traceEvents":['
    first = True
    for text in _events(timeline):
        yield ("\n" if first else ",\n").encode() + text.encode()
        first = False
    yield b"\n]}\n"


def _events(timeline: Timeline) -> Iterator[str]:
    """Events as JSON, many at a time."""
    flows = launches(timeline)
    groups: dict[str, int] = {}
    thread = 0
    for track in timeline.tracks:
        group = timeline.group_of(track)
        process = groups.setdefault(group, len(groups) + 1)
        if len(groups) == process:
            yield _named("process_name", process, 0, group)
            yield _sorted("process_sort_index", process, 0, process)
        content = timeline.track(track.id).content
        if isinstance(content, Samples):
            name, key = _text(track.title), _text(track.unit or "value")
            head = f'{{"ph":"C","pid":{process},"name":{name},"ts":'
            for at in range(0, len(content), CHUNK):
                piece = slice(at, at + CHUNK)
                yield ",\n".join(
                    f'{head}{_us(time)},"args":{{{key}:{json.dumps(value)}}}}}'
                    for time, value in zip(
                        content.time[piece].tolist(), content.value[piece].tolist(), strict=True
                    )
                )
            continue
        for piece_ in pieces(timeline, track):
            thread += 1
            yield _named("thread_name", process, thread, piece_.title)
            yield _sorted("thread_sort_index", process, thread, thread)
            yield from _slices(timeline, piece_, process, thread, flows.get(track.id))


def _slices(
    timeline: Timeline, piece: Piece, process: int, thread: int, flows: Flows | None
) -> Iterator[str]:
    content = piece.track.slices
    texts = timeline.names.texts
    names: dict[int, str] = {}
    categories = [f',"cat":"{key}","args":{{"id":' for key in CLASSES]
    place = f'"pid":{process},"tid":{thread}'
    head = f'{{"ph":"X",{place},"ts":'
    launch = f',{place},"name":"launch","cat":"launch","id":'
    if flows is not None:
        launch = ',\n{"ph":"s"' + launch if flows.leaves else ',\n{"ph":"f","bp":"e"' + launch
    for at in range(0, len(piece.rows), CHUNK):
        rows = piece.rows[at : at + CHUNK]
        numbers = content.name[rows]
        for number in distinct_values(numbers).tolist():
            if number not in names:
                names[number] = f',"name":{_text(texts[number])}'
        start = content.start[rows].tolist()
        made = [
            f'{head}{_us(s)},"dur":{_us(ns)}{names[n]}{categories[c]}{i}}}}}'
            for s, ns, n, c, i in zip(
                start,
                (content.end[rows] - content.start[rows]).tolist(),
                numbers.tolist(),
                content.code[rows].tolist(),
                content.id[rows].tolist(),
                strict=True,
            )
        ]
        if flows is not None:
            of_rows = flows.number[rows]
            for i in np.flatnonzero(of_rows >= 0).tolist():
                made[i] += f'{launch}{of_rows[i]},"ts":{_us(start[i])}}}'
        yield ",\n".join(made)


def _us(ns: int) -> str:
    """Nanoseconds as microseconds, exactly."""
    return f"{ns // 1000}.{ns % 1000:03}" if ns >= 0 else f"-{_us(-ns)}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _named(what: str, process: int, thread: int, name: str) -> str:
    return _json({"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}})


def _sorted(what: str, process: int, thread: int, index: int) -> str:
    return _json(
        {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"sort_index": index}}
    )
