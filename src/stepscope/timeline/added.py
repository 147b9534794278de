"""Tracks that exports have beside those of the page: counters, and the critical path."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from stepscope.activity.counters import Series, bandwidth, queue_length
from stepscope.activity.device import launching_calls, rows_by
from stepscope.intervals.distinct import among, distinct_values
from stepscope.timeline.classes import CODE
from stepscope.timeline.source import Source
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Samples, Slices, Track, slices
from stepscope.trace.frame import IntArray

_GPU = (
    *("id", "kind", "process_id", "device", "stream", "correlation_id", "start_ns", "end_ns"),
    *("bytes", "copy_kind"),
)


@dataclass(frozen=True)
class Drawn:
    """Stretches of time with a text, to be drawn with the tracks of one device.

    Attributes:
        rank: the rank.
        process_id: the process.
        device: device ordinal inside the process.
        start_ns: begins on the job's clock.
        end_ns: ends.
        texts: what each is.
    """

    rank: int
    process_id: int
    device: int
    start_ns: IntArray
    end_ns: IntArray
    texts: Sequence[str]


def with_tracks(timeline: Timeline, tracks: Sequence[Track]) -> Timeline:
    """The same timeline with further tracks, each behind the others of its device."""
    found = copy.copy(timeline)
    order = [*timeline.tracks]
    for track in tracks:
        group = timeline.group_of(track)
        at = [n for n, other in enumerate(order) if timeline.group_of(other) == group]
        order.insert(at[-1] + 1 if at else len(order), track)
    # numbers are positions; the tracks of the timeline itself keep theirs
    found.tracks = [replace(track, id=number) for number, track in enumerate(order)]
    return found


def counter_tracks(timeline: Timeline) -> Iterator[Track]:
    """The length of each stream's queue, and the bandwidth of each kind of copies."""
    for source in timeline.sources:
        gpu = source.read("gpu_op", *_GPU)
        api = source.read("api_call", "api", "process_id", "correlation_id", "start_ns")
        api = api.take(api.equals("api", "runtime", "driver"))
        call = launching_calls(gpu, api)
        work = gpu.equals("kind", "kernel", "memcpy", "memset")
        launched = np.flatnonzero((call >= 0) & work)
        begun = api["start_ns"][call[launched]]
        for (process, device), rows in _by_device(gpu["process_id"], gpu["device"]).items():
            mine = np.flatnonzero(among(launched, rows))
            for stream, part in rows_by(gpu["stream"][launched[mine]]).items():
                at = mine[part]
                none = np.zeros(len(at), np.int64)
                series = queue_length(none, begun[at], gpu["start_ns"][launched[at]])
                yield _counter(source, process, device, f"Queue length, stream {stream}",
                               "operations", series)  # fmt: skip
            sized = rows[(gpu["bytes"][rows] >= 0) & gpu.equals("kind", "memcpy", "memset")[rows]]
            kinds = [f"Copy {text}" for text in gpu.texts["copy_kind"]]
            code = gpu["copy_kind"][sized].astype(np.int64)
            memset = gpu.equals("kind", "memset")[sized]
            code = np.where(memset, len(kinds), np.where(code < 0, len(kinds) + 1, code))
            titles = [*kinds, "Memset", "Copy"]
            for kind in distinct_values(code).tolist():
                of = sized[code == kind]
                none = np.zeros(len(of), np.int64)
                series = bandwidth(none, gpu["start_ns"][of], gpu["end_ns"][of], gpu["bytes"][of])
                yield _counter(source, process, device, f"{titles[kind]} bandwidth", "GB/s",
                               series, 1e-9)  # fmt: skip


def _by_device(process: IntArray, device: IntArray) -> dict[tuple[int, int], IntArray]:
    found = {}
    for number, rows in rows_by(process).items():
        for ordinal, part in rows_by(device[rows]).items():
            found[(number, ordinal)] = rows[part]
    return found


def _counter(
    source: Source,
    process: int,
    device: int,
    title: str,
    unit: str,
    series: Series,
    scale: float = 1.0,
) -> Track:
    def build() -> Samples:
        return Samples(series.time_ns + source.offset_ns, series.value.astype(np.float64) * scale)

    return Track(
        0,
        title,
        "gpu_op",
        f"{source.rank}/{process}/gpu{device}/{title}",
        source.rank_trace,
        source.rank,
        build=build,
        kind="counter",
        process_id=process,
        device=device,
        unit=unit,
    )


def drawn_track(timeline: Timeline, title: str, drawn: Drawn) -> Track:
    """A track of stretches."""
    rank_trace = next(n for n, one in enumerate(timeline.rank_traces) if one.rank == drawn.rank)
    return Track(
        0,
        title,
        "critical_path",
        f"{drawn.rank}/{drawn.process_id}/gpu{drawn.device}/{title}",
        rank_trace,
        drawn.rank,
        build=partial(_slices, timeline, drawn),
        process_id=drawn.process_id,
        device=drawn.device,
    )


def _slices(timeline: Timeline, drawn: Drawn) -> Slices:
    known = {text: timeline.names.number(text) for text in dict.fromkeys(drawn.texts)}
    return slices(
        drawn.start_ns,
        drawn.end_ns,
        np.array([known[text] for text in drawn.texts], np.int64),
        np.full(len(drawn.texts), CODE["step_steady"], np.uint8),
        np.arange(len(drawn.texts)),
    )
