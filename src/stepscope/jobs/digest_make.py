"""The digest of one explained device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import Calls, GroupName, Participant, calls_of
from stepscope.collectives.communicators import stated
from stepscope.collectives.exposure import blocking_parts, host_waits, pace, work
from stepscope.collectives.pairs import kernels_before
from stepscope.gaps.idle import CAUSES
from stepscope.gaps.untraced_cpu import input_time
from stepscope.intervals import intersect, overlap_per_window, subtract, total, union
from stepscope.intervals.algebra import clip
from stepscope.intervals.distinct import among, distinct_rows, distinct_values
from stepscope.jobs.digest import (
    LISTS,
    LONGEST_TEXT,
    MOST_CALLS,
    MOST_KERNELS,
    MOST_STEPS,
    VERSION,
    Digest,
)
from stepscope.jobs.view import Device, JobView
from stepscope.kernels.kernels import CATEGORY_NAMES
from stepscope.trace.frame import AnyArray, IntArray

Rows = list[dict[str, Any]]

_MOST_WAITS: Final = 10
_STRETCHES_A_CALL: Final = 2
_STRETCHES: Final = 100
_MOST_STRETCHES: Final = 2000
_EVIDENCE: Final = 3
"""Slowest steps, longest gaps and longest collectives that a digest points to, each."""

_SLOWING: Final = 0xE8
"""Bits of NVML's clock reasons that slow a GPU at work: power cap, slowdowns of the hardware, by
heat, by its power brake. Idling and what the user has set are none."""


@dataclass(frozen=True)
class Extras:
    """What a digest holds that rooms above this one find.

    Attributes:
        made_by: version of Stepscope.
        capture: path of the capture.
        verdict: the diagnosis of this rank by itself.
        findings: rows of ``findings``.
        phases: rows of ``phases``.
    """

    made_by: str
    capture: str
    verdict: str = ""
    findings: Rows = field(default_factory=list)
    phases: Rows = field(default_factory=list)


def digest_of(device: Device, extras: Extras) -> Digest:
    """Summarise one device; it is looked at without any other rank."""
    e = device.explanation
    view = JobView([device])
    c = view.collectives
    p = c.participants[0] if c is not None else _participant(device)
    host = pace(p, e)
    count = min(e.n_steady, MOST_STEPS)
    bounds = e.bounds_ns[e.first : e.first + count + 1]
    tokens: dict[str, int] = {}
    groups: dict[str, int] = {}
    names: list[GroupName] = []
    calls = calls_of(p, tokens, groups, names)
    kept, with_calls = _kept_calls(calls, bounds)
    uses = {}
    if c is not None:
        likely = {guess.channel: guess.id for guess in c.groups}
        channel = c.matched.instances.channel[c.matched.ranks[0].instance]
        for op, number in zip(c.matched.ranks[0].op.tolist(), channel.tolist(), strict=True):
            uses[op] = likely.get(number, "unknown")
    getting = input_time(e.gpu, device.read)
    facts = {
        "version": VERSION,
        "made_by": extras.made_by,
        "rank": device.rank,
        "world_size": device.meta.world_size,
        "process_id": e.gpu.process_id,
        "device": e.gpu.device,
        "device_name": e.kernels.device[0],
        "hostname": device.meta.hostname,
        "source": device.meta.source,
        "capture": extras.capture,
        "capture_digest": device.meta.input_digest,
        "origin_epoch_ns": device.meta.origin_epoch_ns,
        "step_kind": e.steps.kind,
        "step_source": e.steps.source,
        "step_message": e.steps.message,
        "steps_found": len(e.steps),
        "steady_steps": e.n_steady,
        "steps_with_calls": with_calls,
        "step_ns": e.step_ns,
        "host_need_ns": host.need_ns,
        "host_recording_ns": host.recording_ns,
        "host_calling_ns": host.calling_ns,
        "host_untraced_ns": host.untraced_ns,
        "host_least_ns": host.least_ns,
        "input_ns": total(clip(getting, e.begin_ns, e.end_ns)) / e.n_steady,
        **_sampled(device),
        "memory_peak_bytes": _memory_peak(device),
        "verdict": extras.verdict,
        "problems": len(device.meta.problems),
    }
    rows: dict[str, Mapping[str, Any] | Rows] = {
        "steps": _steps(p, device, count),
        "idle": _idle(device, bounds),
        "phases": extras.phases,
        "calls": _calls(p, calls, kept, list(tokens), list(groups), uses),
        "exposure": _exposure(device, calls, kept),
        "categories": _categories(device),
        "kernels": _kernels(device),
        "waits": _waits(device),
        "findings": extras.findings,
        "evidence": _evidence(device),
    }
    return Digest(facts, {name: _columns(name, rows[name]) for name in LISTS})


def _participant(device: Device) -> Participant:
    meta = device.meta
    return Participant(device.rank, device.explanation.gpu, device.read, 0, meta.origin_epoch_ns)


def _columns(name: str, rows: Mapping[str, Any] | Rows) -> dict[str, Any]:
    """The columns of a list, from columns or rows, with its texts cut."""
    found: dict[str, Any] = {}
    for column in LISTS[name].columns:
        if isinstance(rows, list):
            values: Any = [row[column.name] for row in rows]
        else:
            values = rows[column.name]
        if column.type == "text":
            values = [cut(text) for text in values]
        else:
            kind = {"int64": np.int64, "float64": np.float64, "bool": np.bool_}[column.type]
            values = np.asarray(values, kind)
        found[column.name] = values
    return found


def cut(text: str) -> str:
    """A text that is short enough for a digest."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."


@lru_cache(maxsize=100_000)
def _key(name: str, blocks: int, threads: int) -> int:
    text = f"{name}|{blocks}|{threads}".encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def _steps(p: Participant, device: Device, count: int) -> dict[str, AnyArray]:
    e = device.explanation
    low, high = e.first, e.first + count
    begin, end = e.bounds_ns[low:high], e.bounds_ns[low + 1 : high + 1]
    a = e.accounting
    communication = e.gpu.union_of(e.gpu.is_communication)
    both = intersect(e.gpu.union_of(e.gpu.is_compute), communication)
    launched = work([p], [(begin, end)])
    return {
        "number": np.arange(low, high),
        "begin_ns": begin,
        "wall_ns": a.wall_ns[low:high],
        "compute_ns": a.compute_ns[low:high],
        "communication_ns": a.exposed_communication_ns[low:high],
        "copy_ns": a.exposed_copy_ns[low:high],
        "memset_ns": a.memset_ns[low:high],
        "idle_ns": a.idle_ns[low:high],
        "alone_ns": a.compute_ns[low:high] - overlap_per_window(both, begin, end),
        "kernels": launched.kernels[:, 0],
        "threads": launched.threads[:, 0],
    }


def _idle(device: Device, bounds: IntArray) -> Rows:
    e = device.explanation
    begin, end = bounds[:-1], bounds[1:]
    segments = e.gaps.segments
    left = e.accounting.idle_ns[e.first : e.first + len(begin)].copy()
    times: dict[str, IntArray] = {}
    for code, cause in enumerate(CAUSES):
        own = segments["cause"] == code
        if own.any():
            spent = union(segments["start_ns"][own], segments["end_ns"][own])
            times[cause] = overlap_per_window(spent, begin, end)
            left -= times[cause]
    times["unexplained"] = times.get("unexplained", np.zeros_like(left)) + left
    return [
        {"step": step, "cause": cause, "time_ns": int(time[step])}
        for cause, time in times.items()
        for step in np.flatnonzero(time).tolist()
    ]


def _kept_calls(calls: Calls, bounds: IntArray) -> tuple[IntArray, int]:
    """Rows that are kept, and how many of the steps have all of theirs."""
    n = len(bounds) - 1
    if len(calls) <= MOST_CALLS:
        return np.arange(len(calls)), n
    for steps in range(n, 0, -1):
        rows = np.flatnonzero((calls.end_ns > bounds[0]) & (calls.start_ns < bounds[steps]))
        if len(rows) <= MOST_CALLS:
            return rows, steps
    return np.flatnonzero(calls.end_ns > bounds[0])[:MOST_CALLS], 0


def _calls(
    p: Participant,
    calls: Calls,
    kept: IntArray,
    tokens: list[str],
    groups: list[str],
    uses: dict[int, str],
) -> Rows:
    known = stated(p, calls.op)
    before = kernels_before(p, calls)
    groups.append("")
    communicators = [*known.names, ""]
    return [
        {
            "start_ns": calls.start_ns[row],
            "duration_ns": calls.end_ns[row] - calls.start_ns[row],
            "kind": kinds.KINDS[calls.kind[row]],
            "looks": short_token(tokens[calls.token[row]]),
            "group": short_group(groups[calls.group[row]]),
            "communicator": communicators[known.communicator[row]],
            "use": uses.get(int(calls.op[row]), "unknown"),
            "stream": calls.stream[row],
            "sequence": calls.sequence[row],
            "bytes": calls.bytes[row],
            "nccl_bytes": known.bytes[row],
            "size": calls.size[row],
            "kernels_before": before[row],
            "stated": calls.stated[row],
        }
        for row in kept.tolist()
    ]


def short_token(text: str) -> str:
    """What a collective looks like; long kernel names become their hash."""
    if len(text) <= 48:
        return text
    return f"#{hashlib.blake2b(text.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"


def short_group(text: str) -> str:
    """The ranks of a communicator as text, with runs of equal distance shortened.

    A thousand ranks fit into a few characters: ``0..1023``, ``3..1019/8``.
    """
    parts = text.split(",")
    if len(parts) < 4 or not all(part.isdecimal() for part in parts):
        return text
    ranks = [int(part) for part in parts]
    step = ranks[1] - ranks[0]
    if step > 0 and ranks == list(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}..{ranks[-1]}" + (f"/{step}" if step > 1 else "")
    if len(text) <= LONGEST_TEXT:
        return text
    return f"#{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()} of {len(ranks)}"


def group_ranks(text: str) -> tuple[int, ...]:
    """The ranks that :func:`short_group` wrote; empty where it wrote none."""
    first, dots, rest = text.partition("..")
    if dots:
        last, _, step = rest.partition("/")
        if first.isdecimal() and last.isdecimal() and (step or "1").isdecimal():
            low, high, by = int(first), int(last), int(step or 1)
            if by > 0 and high - low < 10_000_000:
                return tuple(range(low, high + 1, by))
        return ()
    parts = text.split(",")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _exposure(device: Device, calls: Calls, kept: IntArray) -> dict[str, IntArray]:
    """The longest stretches of exposed communication as they are; between them, sums."""
    e = device.explanation
    alone = subtract(e.gpu.union_of(e.gpu.is_communication), e.gpu.union_of(e.gpu.is_compute))
    if len(kept):
        alone = clip(alone, int(calls.start_ns[kept].min()), int(calls.end_ns[kept].max()))
    start, end = alone
    if not len(start):
        return dict.fromkeys(("start_ns", "exposed_ns", "blocking_ns"), start)
    most = min(_STRETCHES_A_CALL * len(kept) + _STRETCHES, _MOST_STRETCHES)
    long = np.sort(np.argsort(start - end, kind="stable")[:most])
    knots = distinct_values(np.concatenate((start[long], end[long], start[:1], end[-1:])))
    ready = intersect(alone, blocking_parts(e, alone))
    behind = np.append(knots[1:], knots[-1])
    return {
        "start_ns": knots,
        "exposed_ns": overlap_per_window(alone, knots, behind),
        "blocking_ns": overlap_per_window(ready, knots, behind),
    }


def _spread(durations: AnyArray) -> dict[str, int]:
    low, middle, high = np.percentile(durations, (10, 50, 90), method="lower").tolist()
    return {"p10_ns": int(low), "median_ns": int(middle), "p90_ns": int(high)}


def _categories(device: Device) -> Rows:
    k = device.explanation.kernels
    found = []
    rows = np.flatnonzero(k.steady & (k.category >= 0))
    for code in distinct_values(k.category[rows]).tolist():
        own = rows[k.category[rows] == code]
        time = k.duration_ns[own]
        steps = np.bincount(k.step[own] - device.explanation.first, weights=time)
        usual = float(np.median(steps))
        found.append(
            {
                "category": CATEGORY_NAMES[code],
                "count": len(own),
                "total_ns": int(time.sum()),
                **_spread(time),
                "step_spread": float(np.median(np.abs(steps - usual))) / usual if usual else 0.0,
            }
        )
    return sorted(found, key=lambda row: (-row["total_ns"], row["category"]))


def _kernels(device: Device) -> Rows:
    e = device.explanation
    k = e.kernels
    rows = np.flatnonzero(k.steady & e.gpu.is_compute)
    if not len(rows):
        return []
    name, blocks, threads = e.gpu.ops["name"][rows], k.blocks[rows], k.threads[rows]
    first, inverse = distinct_rows((name, blocks, threads))
    time = k.duration_ns[rows]
    totals = np.bincount(inverse, weights=time)
    texts = e.gpu.ops.texts["name"]
    found = []
    for which in np.argsort(-totals, kind="stable")[:MOST_KERNELS].tolist():
        own = time[inverse == which]
        text = texts[name[first[which]]]
        category = int(k.category[rows[first[which]]])
        found.append(
            {
                "key": _key(text, int(blocks[first[which]]), int(threads[first[which]])),
                "name": text if len(text) <= 60 else text[:57] + "...",
                "category": CATEGORY_NAMES[category] if category >= 0 else "",
                "count": len(own),
                "total_ns": int(own.sum()),
                **_spread(own),
            }
        )
    return found


def _waits(device: Device) -> Rows:
    e = device.explanation
    api = e.gpu.host.api
    blocking = e.timeline.blocking.call
    rows = blocking[
        (api["start_ns"][blocking] >= e.begin_ns) & (api["start_ns"][blocking] < e.end_ns)
    ]
    waited = host_waits(e)
    spent = overlap_per_window(waited, api["start_ns"][rows], api["end_ns"][rows])
    found = []
    for code in distinct_values(api["name"][rows]).tolist():
        own = api["name"][rows] == code
        found.append(
            {
                "call": api.texts["name"][code],
                "count": int(own.sum()),
                "time_ns": int(spent[own].sum()),
            }
        )
    return sorted(found, key=lambda row: (-row["time_ns"], row["call"]))[:_MOST_WAITS]


def _sampled(device: Device) -> dict[str, float | None]:
    """Clocks and power that were sampled in the steady steps."""
    e = device.explanation
    table = device.read("metric_sample", "time_ns", "device", "metric", "value")
    found: dict[str, float | None] = dict.fromkeys(
        ("sm_clock_mhz", "sm_clock_low_mhz", "throttled_share", "power_w")
    )
    if not len(table):
        return found
    inside = (table["time_ns"] >= e.begin_ns) & (table["time_ns"] < e.end_ns)

    def of(metric: str) -> AnyArray:
        rows = inside & table.equals("metric", metric)
        several = distinct_values(table["device"][rows])
        if len(several) > 1:
            rows &= among(table["device"], [e.gpu.device])
        return table["value"][rows]

    clock, reasons, power = of("sm_clock_mhz"), of("clocks_throttle_reasons"), of("power_w")
    if len(clock):
        found["sm_clock_mhz"] = float(clock.mean())
        found["sm_clock_low_mhz"] = float(clock.min())
    if len(reasons):
        found["throttled_share"] = float(((reasons.astype(np.int64) & _SLOWING) != 0).mean())
    if len(power):
        found["power_w"] = float(power.mean())
    return found


def _memory_peak(device: Device) -> int | None:
    table = device.read("memory_event", "device", "total_reserved_bytes")
    if not len(table):
        return None
    own = table["total_reserved_bytes"][table["device"] == device.explanation.gpu.device]
    return int(own.max()) if len(own) and own.max() > 0 else None


def _evidence(device: Device) -> Rows:
    e = device.explanation
    ops, segments = e.gpu.ops, e.gaps.segments

    def step_of(at: int) -> int:
        return int(np.searchsorted(e.bounds_ns, at, side="right")) - 1

    found = []
    slow = np.argsort(-e.steady_durations_ns, kind="stable")[:_EVIDENCE] + e.first
    for step in slow.tolist():
        begin, end = int(e.bounds_ns[step]), int(e.bounds_ns[step + 1])
        found.append(("slowest step", step, begin, end, f"SELECT * FROM step WHERE step = {step}"))
    gaps = np.argsort(segments["start_ns"] - segments["end_ns"], kind="stable")[:_EVIDENCE]
    for row in gaps.tolist():
        begin, end = int(segments["start_ns"][row]), int(segments["end_ns"][row])
        sql = f"SELECT * FROM idle_gap WHERE start_ns <= {begin} AND end_ns >= {end}"
        found.append(("longest gap", step_of(begin), begin, end, sql))
    inside = (ops["start_ns"] >= e.begin_ns) & (ops["start_ns"] < e.end_ns)
    rows = np.flatnonzero(e.gpu.is_communication & inside)
    length = ops["end_ns"][rows] - ops["start_ns"][rows]
    for row in rows[np.argsort(-length, kind="stable")[:_EVIDENCE]].tolist():
        begin, end = int(ops["start_ns"][row]), int(ops["end_ns"][row])
        sql = f"SELECT * FROM gpu_op WHERE id = {int(ops['id'][row])}"
        found.append(("longest collective", step_of(begin), begin, end, sql))
    names: Sequence[str] = [column.name for column in LISTS["evidence"].columns]
    return [dict(zip(names, row, strict=True)) for row in found]
