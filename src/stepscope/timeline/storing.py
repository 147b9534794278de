"""Make the file of stored tracks of a trace: see :mod:`stepscope.timeline.stored`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.activity.device import launching_calls
from stepscope.timeline.build import counter_tracks, device_tracks, thread_tracks
from stepscope.timeline.source import Source
from stepscope.timeline.track import Names
from stepscope.timeline.writing import write_links, write_texts, write_track
from stepscope.trace.arrays import ArrayWriter
from stepscope.trace.frame import Frame, IntArray, from_arrow
from stepscope.trace.trace import Trace

_LINK = ("id", "process_id", "correlation_id", "start_ns")


def store_tracks(
    trace: Trace, path: Path, identity: str, progress: Callable[[float], None]
) -> None:
    """Store all tracks of a trace that need no explanation.

    Args:
        trace: the trace.
        path: the file to write.
        identity: what the file is said to depend on.
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
    with ArrayWriter(path) as writer:
        header: dict[str, Any] = {"identity": identity, "tracks": []}
        done = 0
        for part in (device_tracks, counter_tracks, thread_tracks):
            for track in part(source):
                facts = write_track(writer, track, len(header["tracks"]))
                header["tracks"].append(facts)
                done += facts["rows"]
                progress(min(1.0, done / (total + trace.rows("gpu_op"))))  # drawn twice: as busy
            frames.clear()
        write_links(writer, _calls(read))
        frames.clear()
        write_texts(writer, "names", names.texts)
        header["long"] = {number: texts for number, texts in names.long.items() if texts}
        threads = read("thread", "process_id", "thread_id", "name")
        devices = read("device", "device", "name")
        header["threads"] = [
            [int(p), int(t), threads.text("name", row)]
            for row, (p, t) in enumerate(
                zip(threads["process_id"], threads["thread_id"], strict=True)
            )
        ]
        header["devices"] = [
            [int(device), devices.text("name", row)] for row, device in enumerate(devices["device"])
        ]
        writer.close(header)
    progress(1.0)


def _calls(read: Callable[..., Frame]) -> IntArray:
    """``api_call.id`` of what launched each ``gpu_op``; -1 where unknown."""
    gpu = read("gpu_op", *_LINK)
    api = read("api_call", "api", *_LINK)
    api = api.take(api.equals("api", "runtime", "driver"))
    call = launching_calls(gpu, api)
    if not len(api):
        return call
    return np.where(call >= 0, api["id"][np.maximum(call, 0)], -1)
