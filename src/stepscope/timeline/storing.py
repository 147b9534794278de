"""Write the stored tracks of a trace: see :mod:`stepscope.timeline.stored`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.cache.arrays import ArrayWriter
from stepscope.timeline.build import counter_tracks, device_tracks, thread_tracks
from stepscope.timeline.links import launching_ids
from stepscope.timeline.source import Source
from stepscope.timeline.track import Names
from stepscope.timeline.writing import write_links, write_texts, write_track
from stepscope.trace.frame import Frame, from_arrow
from stepscope.trace.trace import Trace


def write_tracks(
    trace: Trace, writer: ArrayWriter, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Write all tracks of a trace that need no explanation; returns what readers are told.

    Args:
        trace: the trace.
        writer: of the file.
        progress: is told the share that is done, 0 to 1.

    Raises:
        InputError: a table is damaged.
        OSError: the file cannot be written.
    """
    frames: dict[tuple[str, tuple[str, ...]], Frame] = {}

    def read(table: str, *columns: str) -> Frame:
        # not by the trace, which keeps what it has read for other analyses
        if (table, columns) not in frames:
            frames[table, columns] = from_arrow(trace.arrow(table, list(columns)))
        return frames[table, columns]

    names = Names()
    source = Source(0, 0, read, 0, names)
    total = max(1, sum(trace.meta.rows.values()))
    about: dict[str, Any] = {"tracks": []}
    done = 0
    for part in (device_tracks, counter_tracks, thread_tracks):
        for track in part(source):
            facts = write_track(writer, track, len(about["tracks"]))
            about["tracks"].append(facts)
            done += facts["rows"]
            progress(min(1.0, done / (total + trace.rows("gpu_op"))))  # drawn twice: as busy
        frames.clear()
    write_links(writer, launching_ids(read))
    frames.clear()
    write_texts(writer, "names", names.texts)
    about["long"] = {number: texts for number, texts in names.long.items() if texts}
    threads = read("thread", "process_id", "thread_id", "name")
    devices = read("device", "device", "name")
    about["threads"] = [
        [int(p), int(t), threads.text("name", row)]
        for row, (p, t) in enumerate(zip(threads["process_id"], threads["thread_id"], strict=True))
    ]
    about["devices"] = [
        [int(device), devices.text("name", row)] for row, device in enumerate(devices["device"])
    ]
    progress(1.0)
    return about
