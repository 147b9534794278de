"""The Trace Event Format of chrome://tracing, which Perfetto opens as well: JSON.

Times are written in microseconds with three digits, which is exact. A process is a group of
tracks, a thread is a track; processes carry numbers of their own, because the same thread of the
operating system has several tracks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stepscope.analysis.timeline.classes import CLASSES
from stepscope.analysis.timeline.timeline import Timeline
from stepscope.analysis.timeline.track import Samples
from stepscope.export.pieces import Piece, launches, pieces

REFERENCE = "Trace Event Format (Google); JSON object format"


def write(timeline: Timeline) -> Iterator[bytes]:
    """The file, in parts."""
    yield b'{"displayTimeUnit":"ns","traceEvents":[\n'
    first = True
    for event in _events(timeline):
        text = json.dumps(event, ensure_ascii=True, separators=(",", ":"))
        yield (b"" if first else b",\n") + text.encode()
        first = False
    yield b"\n]}\n"


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    arrows = launches(timeline)
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
            for at, value in zip(content.time.tolist(), content.value.tolist(), strict=True):
                yield {
                    "ph": "C",
                    "pid": process,
                    "ts": at / 1000,
                    "name": track.title,
                    "args": {track.unit or "value": value},
                }
            continue
        for piece in pieces(timeline, track):
            thread += 1
            yield _named("thread_name", process, thread, piece.title)
            yield _sorted("thread_sort_index", process, thread, thread)
            yield from _slices(timeline, piece, process, thread, arrows.get(track.id, {}))


def _slices(
    timeline: Timeline,
    piece: Piece,
    process: int,
    thread: int,
    arrows: dict[int, tuple[int, bool]],
) -> Iterator[dict[str, Any]]:
    content = piece.track.slices
    keys, texts = list(CLASSES), timeline.names.texts
    for row in piece.rows.tolist():
        start, end = int(content.start[row]), int(content.end[row])
        place = {"pid": process, "tid": thread}
        yield {
            "ph": "X",
            **place,
            "ts": start / 1000,
            "dur": (end - start) / 1000,
            "name": texts[int(content.name[row])],
            "cat": keys[int(content.code[row])],
            "args": {"id": int(content.id[row])},
        }
        if row in arrows:
            number, leaves = arrows[row]
            arrow = {**place, "id": number, "name": "launch", "cat": "launch", "ts": start / 1000}
            yield {"ph": "s", **arrow} if leaves else {"ph": "f", "bp": "e", **arrow}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def _sorted(what: str, process: int, thread: int, index: int) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"sort_index": index}}
