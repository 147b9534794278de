"""A window of a timeline by itself: all that a page needs that has no server behind it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import distinct_values
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Samples, Track
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import AnyArray, BoolArray
from stepscope.trace.scope import Scope, time_scope
from stepscope.trace.trace import RankTrace
from stepscope.trace.units import milliseconds

MOST_ROWS = 300_000
"""More rows make a page that browsers take seconds to open."""

_FACTS = {
    "gpu_op": (
        *("process_id", "correlation_id", "name", "grid_x", "grid_y", "grid_z"),
        *("block_x", "block_y", "block_z", "registers", "static_shared_bytes"),
        *("dynamic_shared_bytes", "bytes", "copy_kind", "src_memory", "dst_memory"),
    ),
    "api_call": ("process_id", "correlation_id", "return_value"),
    "operator": ("input_shapes", "input_types", "sequence_number"),
    "range": ("domain",),
}


def chosen(
    timeline: Timeline, window: str, step: int | None, explained: Sequence[tuple[int, Explanation]]
) -> tuple[int, int]:
    """Begin and end of what is asked for, on the job's clock, ns.

    Args:
        timeline: the timeline.
        window: ``[start]/[end]``, or empty.
        step: number of a step, of the first device; None for the window.
        explained: (rank, explanation), needed for a step.

    Raises:
        UsageError: the window is written wrong, or there is no such step.
    """
    if step is not None:
        first = explained[0][1]
        steps = len(first.bounds_ns) - 1
        if not 0 <= step < steps:
            raise UsageError(f"there is no step {step}; the capture holds 0 to {steps - 1}")
        offset = timeline.offsets_ns[0]
        return int(first.bounds_ns[step]) + offset, int(first.bounds_ns[step + 1]) + offset
    if not window:
        return timeline.begin_ns, timeline.end_ns
    scope = time_scope(window)
    begin = timeline.begin_ns if scope.start_ns is None else scope.start_ns
    end = timeline.end_ns if scope.end_ns is None else scope.end_ns
    begin, end = max(begin, timeline.begin_ns), min(end, timeline.end_ns)
    if end <= begin:
        span = f"{milliseconds(timeline.begin_ns)} to {milliseconds(timeline.end_ns)}"
        raise UsageError(f"the window {window!r} is empty; the capture covers {span}")
    return begin, end


def extract(timeline: Timeline, begin: int, end: int) -> dict[str, Any]:
    """Layout, rows and samples of ``[begin, end)``; arrays as base64 of little-endian numbers.

    Raises:
        UsageError: the window holds too many rows.
    """
    total = 0
    used: set[int] = set()
    tracks: dict[int, dict[str, Any]] = {}
    for number in range(len(timeline.tracks)):
        track = timeline.track(number)
        content = track.content
        if isinstance(content, Samples):
            # the last sample before the window holds until the first one inside
            first = max(0, int(np.searchsorted(content.time, begin, side="left")) - 1)
            shown = slice(first, int(np.searchsorted(content.time, end, side="left")))
            total += shown.stop - shown.start
            tracks[number] = {
                "time": packed(content.time[shown], "f8"),
                "value": packed(content.value[shown], "f8"),
            }
            continue
        inside = (content.start < end) & ((content.end > begin) | (content.start >= begin))
        total += int(inside.sum())
        if total > MOST_ROWS:
            break
        used.update(distinct_values(content.name[inside]).tolist())
        tracks[number] = {
            "start": packed(content.start[inside], "f8"),
            "end": packed(content.end[inside], "f8"),
            "depth": packed(content.depth[inside], "u1"),
            "name": packed(content.name[inside], "u4"),
            "code": packed(content.code[inside], "u1"),
            "facts": _facts(timeline, track, inside),
        }
    if total > MOST_ROWS:
        raise _too_large("the chosen time holds too many rows")
    layout = {**timeline.layout(), "begin": begin, "end": end}
    names = {number: timeline.names.texts[number] for number in sorted(used)}
    return {"layout": layout, "tracks": tracks, "names": names}


def refuse_too_large(
    rank_traces: Sequence[RankTrace], scope: Scope | None, offsets_ns: Sequence[int] | None
) -> None:
    """Refuse what holds too many rows: all of it by the metadata, a window by the rows' times.

    Args:
        rank_traces: the traces.
        scope: the window, on the job's clock; None for all.
        offsets_ns: what is added to the times of each trace to be on that clock, ns.

    Raises:
        UsageError: it does.
    """
    rows = sum(m.trace.meta.rows.get(table, 0) for m in rank_traces for table in _SHOWN_WHOLE)
    if rows > MOST_ROWS and scope is not None and offsets_ns is not None:
        rows = sum(
            _rows_inside(rank_trace, scope, offset)
            for rank_trace, offset in zip(rank_traces, offsets_ns, strict=True)
        )
    if rows > MOST_ROWS:
        raise _too_large(f"{'the window' if scope else 'the capture'} holds {rows:,} rows or more")


_SHOWN_WHOLE = ("gpu_op", "operator", "python_function", "gil")
"""Tables of which every row is shown; others have rows that no track shows."""


def _rows_inside(rank_trace: RankTrace, scope: Scope, offset_ns: int) -> int:
    count = 0
    for table in _SHOWN_WHOLE:
        if rank_trace.trace.meta.rows.get(table):
            frame = rank_trace.trace.frame(table, "start_ns", "end_ns")
            inside = np.ones(len(frame), bool)
            if scope.start_ns is not None:
                inside &= frame["end_ns"] > scope.start_ns - offset_ns
            if scope.end_ns is not None:
                inside &= frame["start_ns"] < scope.end_ns - offset_ns
            count += int(inside.sum())
    return count


def _too_large(what: str) -> UsageError:
    return UsageError(
        f"{what}, and one page can show {MOST_ROWS:,}; choose a shorter time with --window or a "
        "step with --only-step, or leave --static out"
    )


def packed(values: AnyArray, kind: str) -> str:
    """Numbers as text."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode()


def _facts(timeline: Timeline, track: Track, inside: BoolArray) -> dict[str, Any]:
    """Columns of the rows, without those that hold nothing."""
    wanted = _FACTS.get(track.table, ())
    if not wanted or (track.table == "gpu_op" and track.stream < 0):
        return {}
    frame = timeline.sources[track.rank_trace].read(track.table, *wanted)
    rows = track.slices.id[inside]
    found: dict[str, Any] = {}
    for column in wanted:
        values = frame[column][rows]
        if column in frame.texts:
            codes = distinct_values(values[values >= 0])
            if len(codes):
                texts = {int(code): frame.texts[column][code] for code in codes}
                found[column] = {"texts": texts, "codes": packed(values, "f8")}
        elif len(values) and (values != -1).any():
            found[column] = {"values": packed(values, "f8")}
    return found
