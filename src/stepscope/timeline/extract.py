"""A window of a timeline by itself: all that a page needs that has no server behind it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import distinct_values
from stepscope.timeline.answers import (
    Extract,
    PackedFact,
    PackedSamples,
    PackedSlices,
    TimelineLayout,
)
from stepscope.timeline.explained import INFERRED
from stepscope.timeline.links import COLUMNS as OPERATOR_COLUMNS
from stepscope.timeline.links import forward_of, launching_ids
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Samples, Slices, Track
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import AnyArray, BoolArray, Frame, IntArray
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


def extract(timeline: Timeline, begin: int, end: int) -> Extract:
    """Layout, rows and samples of ``[begin, end)``; arrays as base64 of little-endian numbers.

    Raises:
        UsageError: the window holds too many rows.
    """
    total = 0
    used: set[int] = set()
    tracks: dict[int, PackedSlices | PackedSamples] = {}
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
        inside = in_page(content, begin, end)
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
    layout: TimelineLayout = {**timeline.layout(), "begin": begin, "end": end}
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


def in_page(slices: Slices, begin: int, end: int) -> BoolArray:
    """Rows of a track that a page of ``[begin, end)`` holds; they are numbered in their order."""
    found: BoolArray = (slices.start < end) & ((slices.end > begin) | (slices.start >= begin))
    return found


LINKS = ("launch", "end_of_gap", "launch_after_gap", "gradient")
"""What leads from one row to another: a call to what it launched, a gap to what ended it, that
one's call to the gap, a forward operator to one that computes its gradient."""


def linked_rows(timeline: Timeline, begin: int, end: int) -> IntArray:
    """Links between the rows of a page of ``[begin, end)``, five numbers each.

    They are the position in ``LINKS``, and track and row of where it comes from and leads to.
    """
    found = [np.empty((0, 5), np.int64)]

    def add(kind: str, one: IntArray, other: IntArray) -> None:
        both = (one[:, 0] >= 0) & (other[:, 0] >= 0)
        number = np.full((int(both.sum()), 1), LINKS.index(kind))
        found.append(np.concatenate((number, one[both], other[both]), axis=1))

    for rank_trace, source in enumerate(timeline.sources):
        op, api_call, operator = (
            _places(timeline, rank_trace, table, begin, end)
            for table in ("gpu_op", "api_call", "operator")
        )
        stored = timeline.stored[rank_trace]
        call = launching_ids(source.read) if stored is None else stored.file["links.call"]
        add("launch", api_call(call), op(np.arange(len(call))))
        forward, backward = _gradients(source.read("operator", *OPERATOR_COLUMNS))
        add("gradient", operator(forward), operator(backward))
        for track in timeline.tracks:
            if track.rank_trace == rank_trace and track.table == "idle_gap":
                rows = np.flatnonzero(in_page(timeline.track(track.id).slices, begin, end))
                gap = np.stack((np.full(len(rows), track.id), np.arange(len(rows))), axis=1)
                facts = timeline.gap_facts(track)
                add("end_of_gap", gap, op(facts["op"][rows]))
                add("launch_after_gap", api_call(facts["call"][rows]), gap)
    return np.concatenate(found).reshape(-1)


def _gradients(operators: Frame) -> tuple[IntArray, IntArray]:
    """Ids of forward operators, and of those that compute their gradients."""
    if not len(operators):
        return operators["id"], operators["id"]
    forward = forward_of(operators)
    known = np.flatnonzero(forward >= 0)
    return operators["id"][forward[known]], operators["id"][known]


def _places(
    timeline: Timeline, rank_trace: int, table: str, begin: int, end: int
) -> Callable[[IntArray], IntArray]:
    """Gives track and row in the page of rows of a table, by their ids; -1 where there is none."""
    known = np.full((timeline.rank_traces[rank_trace].trace.rows(table) + 1, 2), -1, np.int64)
    for track in timeline.tracks:
        if track.rank_trace == rank_trace and track.table == table:
            if table == "gpu_op" and track.stream < 0:
                continue
            slices = timeline.track(track.id).slices
            ids = slices.id[np.flatnonzero(in_page(slices, begin, end))]
            known[ids] = np.stack((np.full(len(ids), track.id), np.arange(len(ids))), axis=1)
    return lambda ids: known[ids]  # the last row stands for what is unknown, -1


def packed(values: AnyArray, kind: str) -> str:
    """Numbers as text."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode()


def _facts(timeline: Timeline, track: Track, inside: BoolArray) -> dict[str, PackedFact]:
    """Columns of the rows, without those that hold nothing."""
    if track.table == "idle_gap":
        return _gap_facts(timeline, track, inside)
    wanted = _FACTS.get(track.table, ())
    if not wanted or (track.table == "gpu_op" and track.stream < 0):
        return {}
    frame = timeline.sources[track.rank_trace].read(track.table, *wanted)
    rows = track.slices.id[inside]
    found: dict[str, PackedFact] = {}
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


def _gap_facts(timeline: Timeline, track: Track, inside: BoolArray) -> dict[str, PackedFact]:
    from stepscope.gaps.untraced_cpu import EVIDENCE

    known = {name: of[inside] for name, of in timeline.gap_facts(track).items()}
    late = np.where(known["call"] >= 0, known["late"], -1)
    return {
        "evidence": {"texts": dict(enumerate(EVIDENCE)), "codes": packed(known["evidence"], "f8")},
        "inferred": {"texts": {1: INFERRED}, "codes": packed(known["inferred"], "f8")},
        "call_began_after_ns": {"values": packed(late, "f8")},
    }
