"""How far a prediction can be trusted, what to fall back on, and what ends the idle time."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.ranking import INSUFFICIENT, WORTH, Ranked
from stepscope.diagnosis.result import SAME_STEP
from stepscope.gaps.idle import CAUSES
from stepscope.intervals import overlap_per_window, union
from stepscope.intervals.distinct import distinct_rows

_FACTOR: Final = 2
"""A range whose ends are further apart tells the order of magnitude only."""
_TENTH: Final = 10
_FEWEST: Final = 3
"""Fewer unaffected steps have no mean to rely on."""
_HALF: Final = 0.5
_DIRECTIONS: Final = {"HtoD": "upload", "DtoH": "readback"}


def why_unreliable(item: Ranked) -> str:
    """Why a prediction is no more than an order of magnitude; empty where it holds."""
    p = item.predicted
    if item.cause.id == INSUFFICIENT:
        return ""
    if p.replay_failed:
        return "the replay of the unchanged step misses the measured one by more than a tenth"
    step = item.case.job_step_ns
    if step - p.high_ns < WORTH * step:
        return "its range reaches today's step, so that the repair may gain nothing"
    if p.high_ns > _FACTOR * p.low_ns:
        return "the ends of its range are more than a factor of two apart"
    return ""


def unaffected_figure(item: Ranked) -> Figure | None:
    """The mean of the steady steps without the cause; None where fewer than three are.

    Nor where the rank's own steps are not as long as the job's, which the prediction is about.
    """
    case, cause = item.case, item.cause.id
    if case.step_ns <= SAME_STEP * case.job_step_ns:
        return None
    e = case.explanation
    steady = "FROM step WHERE steady AND {gpu}"
    if cause == "step_jitter":
        left, affected = e.n_steady - len(e.outliers), "SELECT step FROM step_outlier WHERE {gpu}"
    elif _is_idle_time(item):
        rows = e.segments_of(cause)
        begin, end = (e.gaps.segments[name][rows] for name in ("start_ns", "end_ns"))
        # a gap may begin in one step and last through the next
        bounds = e.bounds_ns[e.first : e.last + 2]
        held = overlap_per_window(union(begin, end), bounds[:-1], bounds[1:])
        limit = max(int(item.detection.time_ns / _TENTH), 1)
        left = int((held < limit).sum())
        affected = (
            "SELECT s.step FROM (SELECT * FROM step WHERE {gpu}) s JOIN "
            f"(SELECT * FROM idle_gap WHERE cause = '{cause}' AND {{gpu}}) g "
            "ON g.start_ns < s.end_ns AND g.end_ns > s.start_ns GROUP BY s.step "
            "HAVING sum(least(g.end_ns, s.end_ns) - greatest(g.start_ns, s.start_ns)) "
            f">= {limit}"
        )
    else:
        return None
    if left < _FEWEST or left == e.n_steady:
        return None
    return Figure(
        "unaffected_step_ns",
        "ns",
        f"SELECT round(avg(wall_ns))::BIGINT {steady} AND step NOT IN ({affected})",
    )


def gaps_end_at(item: Ranked) -> tuple[str, Figure] | None:
    """The operation that ends most of a cause's idle time, and the share that it ends."""
    if not _is_idle_time(item):
        return None
    found = _ending(item.case, item.cause.id)
    if found is None:
        return None
    text, which = found
    of_cause = f"FROM idle_gap WHERE cause = '{item.cause.id}' AND {{gpu}}"
    return text, Figure(
        "gaps_end_share",
        "share",
        f"SELECT round(sum(end_ns - start_ns) / (SELECT sum(end_ns - start_ns) {of_cause}), 4) "
        f"{of_cause} AND gpu_op_id IN (SELECT id FROM gpu_op WHERE {which} AND {{gpu}})",
    )


def _is_idle_time(item: Ranked) -> bool:
    """Whether the cause's time is the idle time that is charged to it."""
    own = item.detection.time_sql or item.cause.time_sql
    return item.cause.id in CAUSES and not own and item.cause.id != "unexplained"


def _ending(case: Case, cause: str) -> tuple[str, str] | None:
    """(text, condition on ``gpu_op``) of what ends half of a cause's idle time or more."""
    e = case.explanation
    segments = e.gaps.segments.take(e.segments_of(cause))
    length = segments["end_ns"] - segments["start_ns"]
    known = segments["op"] >= 0
    if not known.any():
        return None
    ops, row = e.gpu.ops, segments["op"][known]
    columns = [ops[name][row].astype(np.int64) for name in ("kind", "copy_kind", "name")]
    columns[2] = np.where(ops.equals("kind", "kernel")[row], columns[2], -1)
    first, group = distinct_rows(columns)
    held = np.bincount(group, weights=length[known])
    best = int(np.argmax(held))
    if held[best] < _HALF * length.sum():
        return None
    kind, copy_kind, name = (int(column[first[best]]) for column in columns)
    what = ops.texts["kind"][kind]
    if what == "memcpy":
        direction = ops.texts["copy_kind"][copy_kind] if copy_kind >= 0 else ""
        which = f" AND copy_kind = '{direction}'" if direction else " AND copy_kind IS NULL"
        return _DIRECTIONS.get(direction, "copy"), f"kind = 'memcpy'{which}"
    if what == "kernel" and name >= 0:
        text = ops.texts["name"][name]
        # braces of a name would be places of the figure's statement
        quoted = text.replace("'", "''").replace("{", "{{").replace("}", "}}")
        return f"kernel {e.kernels.classes[name].label}", f"kind = 'kernel' AND name = '{quoted}'"
    return (what, "kind = 'memset'") if what == "memset" else None
