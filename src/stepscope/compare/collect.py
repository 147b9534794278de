"""Make the profile of a run from its explained devices and its diagnosis."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.collectives.summary import summary
from stepscope.compare.profile import (
    BUSY_PARTS,
    CollectiveUse,
    FindingUse,
    KernelUse,
    PlaceUse,
    Profile,
)
from stepscope.compare.statistics import Floats, mean_error
from stepscope.diagnosis.result import Diagnosis
from stepscope.gaps.idle import CAUSES
from stepscope.intervals import overlap_per_window
from stepscope.intervals.distinct import distinct_values, with_first_and_inverse, with_inverse
from stepscope.jobs.view import Device, JobView
from stepscope.kernels.attribution import plain_range_name
from stepscope.kernels.kernels import CATEGORY_NAMES
from stepscope.trace.frame import BoolArray, Frame, IntArray

_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel|GraphLaunch")
_LONGEST_SEQUENCE = 20_000  # operations of a step that are kept for matching by position
_MOST_PLACES = 300
_BINS = 256  # parts of a long run that tell how much a kernel's time varies
_DRAWN = 600  # intervals of the typical step that are kept for drawing
_HOST_PACED = (
    # not host_sync and blocking_copy: a host that waits for the device or a copy waits as long,
    # whatever its own speed
    "launch_bound", "host_compute", "input_starvation", "profiler_overhead", "allocator_churn",
    "gil_contention", "compilation_or_warmup",
)  # fmt: skip


class _Window:
    """The steady steps of one device that all devices have: the last ``n``."""

    def __init__(self, device: Device, n: int, part: slice) -> None:
        e = device.explanation
        self.e = e
        self.device = device
        chosen = np.arange(e.last - n + 1, e.last + 1)[part]
        self.n = len(chosen)
        self.first, self.last = int(chosen[0]), int(chosen[-1])
        self.begin = e.bounds_ns[self.first : self.last + 1]
        self.end = e.bounds_ns[self.first + 1 : self.last + 2]
        ops = e.gpu.ops
        start = ops["start_ns"]
        self.steady: BoolArray = (start >= self.begin[0]) & (start < self.end[-1])
        self.step = np.searchsorted(self.begin, start, side="right") - 1


def profile_of(job: JobView, diagnosis: Diagnosis, part: slice = slice(None)) -> Profile:
    """The profile of a run.

    Where devices have unequal numbers of steady steps, the last ones that all have count.

    Args:
        job: the explained devices.
        diagnosis: their diagnosis.
        part: which of the steady steps to take, all by default: one at least, without holes.
    """
    n = min(device.explanation.n_steady for device in job.devices)
    windows = [_Window(device, n, part) for device in job.devices]
    parts = _parts(windows)
    kernels, sequence = _kernels(windows)
    ranges, operators = _places(windows)
    timeline, marks = _typical_step(windows[0])
    return Profile(
        paths=diagnosis.trace.paths,
        ranks=diagnosis.trace.ranks,
        devices=len(windows),
        steps=diagnosis.trace.steps,
        wall_ns=np.sum([w.end - w.begin for w in windows], axis=0).tolist(),
        parts_ns={name: values.tolist() for name, values in parts.items() if values.any()},
        kernels=kernels,
        sequence=sequence,
        ranges=ranges,
        operators=operators,
        collectives=_collectives(job, diagnosis.trace.paths),
        findings=[
            FindingUse(f.cause, f.time_ns_per_step, f.share_of_step, f.predicted_step_ns,
                       f.prediction_low_ns, f.prediction_high_ns, f.ranks, f.message)
            for f in diagnosis.findings
        ],
        verdict=diagnosis.verdict,
        setup=_setup(job, diagnosis),
        figures=_figures(windows, parts),
        timeline=timeline,
        marks=marks,
        idle=_typical_idle(windows[0]),
    )  # fmt: skip


def _parts(windows: list[_Window]) -> dict[str, IntArray]:
    """Every part of each step, summed over the devices."""
    found = {name: np.zeros(windows[0].n, np.int64) for name in BUSY_PARTS}
    found |= {f"idle:{cause}": np.zeros(windows[0].n, np.int64) for cause in CAUSES}
    for w in windows:
        for name in BUSY_PARTS:
            column = getattr(w.e.accounting, f"{name}_ns")
            found[name] += column[w.first : w.last + 1]
        segments = w.e.gaps.segments
        for code, cause in enumerate(CAUSES):
            rows = segments["cause"] == code
            pieces = segments["start_ns"][rows], segments["end_ns"][rows]
            if rows.any():
                found[f"idle:{cause}"] += overlap_per_window(pieces, w.begin, w.end)
    return found


def _shapes(w: _Window, rows: IntArray) -> IntArray:
    """A code for each combination of name and launch shape."""
    grid = w.e.kernels.grid
    code = w.e.gpu.ops["name"][rows].astype(np.int64)
    for column in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"):
        value = np.maximum(grid[column][rows].astype(np.int64), -1) + 1
        code = with_inverse(code * (int(value.max(initial=0)) + 1) + value)[1]
    return code


def _kernels(windows: list[_Window]) -> tuple[list[KernelUse], list[int]]:
    """Kernels by name and shape over all devices, and the sequence of a typical step."""
    index: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    totals: list[Floats] = []
    calls: list[int] = []
    about: list[tuple[str, str, str, str]] = []
    sequence: list[int] = []
    bins = min(windows[0].n, _BINS)
    for w in windows:
        kernels, ops = w.e.kernels, w.e.gpu.ops
        rows = np.flatnonzero(w.steady & w.e.gpu.is_kernel)
        if not len(rows):
            continue
        codes, first, rank_trace = with_first_and_inverse(_shapes(w, rows))
        duration = kernels.duration_ns[rows]
        matrix = np.bincount(
            rank_trace * bins + w.step[rows] * bins // w.n,
            weights=duration,
            minlength=len(codes) * bins,
        ).reshape(len(codes), bins)
        counts = np.bincount(rank_trace, minlength=len(codes))
        ranges = _heaviest(kernels.attribution.range_names, rows, rank_trace, duration)
        operators = _heaviest(kernels.attribution.operator_names, rows, rank_trace, duration)
        place = np.empty(len(codes), np.int64)
        for group, at in enumerate(rows[first].tolist()):
            name = ops.text("name", at)
            grid, block = _dims(kernels.grid, at, "grid"), _dims(kernels.grid, at, "block")
            known = kernels.classes[ops["name"][at]]
            number = index.setdefault((name, grid, block), len(index))
            if number == len(totals):
                totals.append(np.zeros(bins))
                calls.append(0)
                category = CATEGORY_NAMES[kernels.category[at]]
                about.append((known.label, category, ranges[group], operators[group]))
            totals[number] += matrix[group]
            calls[number] += int(counts[group])
            place[group] = number
        if w is windows[0]:
            sequence = _sequence(w, rows, place[rank_trace])
    if not totals:
        return [], []
    table = np.array(totals)
    each = windows[0].n * len(windows)
    means, errors = table.sum(axis=1) / each, mean_error(table) / table.mean(axis=1).clip(1e-9)
    found = [
        KernelUse(name, label, category, _three(grid), _three(block), calls[i] / each,
                  float(means[i]), float(errors[i]), range_, op)
        for i, ((name, grid, block), (label, category, range_, op)) in enumerate(
            zip(index, about, strict=True)
        )
    ]  # fmt: skip
    return found, sequence


def _three(values: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z


def _dims(grid: Frame, row: int, what: str) -> tuple[int, ...]:
    return tuple(int(grid[f"{what}_{axis}"][row]) for axis in "xyz")


def _typical(w: _Window) -> int:
    """The step of median length."""
    length = w.end - w.begin
    return int(np.argsort(length, kind="stable")[(len(length) - 1) // 2])


def _sequence(w: _Window, rows: IntArray, place: IntArray) -> list[int]:
    inside = w.step[rows] == _typical(w)
    enqueued = w.e.gpu.enqueue_begin_ns[rows[inside]]
    order = np.argsort(enqueued, kind="stable")
    found: list[int] = place[inside][order][:_LONGEST_SEQUENCE].tolist()
    return found


def _heaviest(
    named: tuple[IntArray, list[str]], rows: IntArray, rank_trace: IntArray, weight: IntArray
) -> list[str]:
    """For each group of operations, the range or operator that holds most of its time."""
    codes, texts = named
    code = codes[rows] + 1
    pair, inverse = with_inverse(rank_trace * (len(texts) + 1) + code)
    held = np.bincount(inverse, weights=weight)
    group, value = pair // (len(texts) + 1), pair % (len(texts) + 1)
    order = np.lexsort((held, group))
    last = np.append(np.flatnonzero(np.diff(group[order])), len(order) - 1)
    names = ["", *texts]
    return [names[v] for v in value[order][last].tolist()]


def _places(windows: list[_Window]) -> tuple[list[PlaceUse], list[PlaceUse]]:
    """Ranges and operators with the time they take, a step and device."""
    each = windows[0].n * len(windows)
    answers = []
    for kind in ("range", "operator"):
        host: dict[str, float] = {}
        device: dict[str, float] = {}
        seen: set[tuple[int, int]] = set()
        for w in windows:
            who = w.e.kernels.attribution
            length = np.where(w.steady, w.e.kernels.duration_ns, 0)
            held, texts = who.of_ranges(length) if kind == "range" else who.of_operators(length)
            for code in np.flatnonzero(held).tolist():
                device[texts[code]] = device.get(texts[code], 0.0) + float(held[code])
            process = (w.device.trace_rank, w.e.gpu.process_id)
            if process not in seen:
                seen.add(process)
                for name, time in _host_time(w, kind, texts):
                    host[name] = host.get(name, 0.0) + time
        processes = max(len(seen), 1) * windows[0].n
        found = [
            PlaceUse(name, host.get(name, 0.0) / processes, device.get(name, 0.0) / each)
            for name in dict.fromkeys((*host, *device))
        ]
        found.sort(key=lambda place: -max(place.host_ns, place.device_ns or 0.0))
        answers.append(found[:_MOST_PLACES])
    return answers[0], answers[1]


def _host_time(w: _Window, kind: str, texts: Sequence[str]) -> list[tuple[str, float]]:
    """Time inside each range or outermost operator on the host, in the host's steady steps."""
    who, steps = w.e.kernels.attribution, w.e.steps
    frame = who.ranges if kind == "range" else who.operators
    if not len(frame):
        return []
    begin = int(steps.begin_ns[w.first])
    last = w.last + 1
    end = int(steps.begin_ns[last]) if last < len(steps) else int(steps.end_ns)
    rows = (frame["start_ns"] >= begin) & (frame["start_ns"] < end)
    if kind == "operator":  # what others call inside is part of their time
        rows &= who.parents < 0
    length = (frame["end_ns"] - frame["start_ns"])[rows]
    held = np.bincount(frame["name"][rows], weights=length, minlength=len(texts))
    return [(texts[code], float(held[code])) for code in np.flatnonzero(held).tolist()]


def _collectives(job: JobView, paths: list[str]) -> list[CollectiveUse]:
    if job.collectives is None:
        return []
    facts = summary(job.collectives, paths)
    if not facts.steps:
        return []
    merged: dict[tuple[str, int], list[float]] = {}
    known: dict[tuple[str, int], bool] = {}
    for row in facts.operations:
        key = (row.kind, row.group_size)
        exposed = row.exposed_waiting_ns + row.exposed_transfer_ns + row.exposed_missing_ns
        values = (row.count, row.message_bytes or 0, row.waiting_ns, row.transfer_ns, exposed)
        sums = merged.setdefault(key, [0.0] * len(values))
        merged[key] = [a + b for a, b in zip(sums, values, strict=True)]
        known[key] = known.get(key, True) and row.message_bytes is not None
    found = []
    for (kind, size), sums in merged.items():
        count, nbytes, waiting, transfer, alone = (value / facts.steps for value in sums)
        known_bytes = nbytes if known[kind, size] else None
        found.append(CollectiveUse(kind, size, count, known_bytes, waiting, transfer, alone))
    return found


def _setup(job: JobView, diagnosis: Diagnosis) -> dict[str, str]:
    """What the run was made with; values of several ranks are joined."""
    found: dict[str, dict[str, None]] = {}

    def note(name: str, value: object) -> None:
        if value not in (None, "", 0):
            found.setdefault(name, {})[str(value)] = None

    for device in job.devices:
        meta, (name, sms, _) = device.meta, device.explanation.kernels.device
        note("source", meta.source)
        note("source_version", meta.source_version)
        note("gpu", name)
        note("sm_count", sms)
        note("host", meta.hostname)
        note("command", meta.command)
        note("world_size", meta.world_size)
        note("steps_found_by", device.explanation.steps.source)
        for key, value in meta.environment.items():
            note(f"environment.{key}", value)
        for key, value in meta.capture_options.items():
            note(f"capture.{key}", value)
        for table in ("operator", "python_function", "memory_event"):
            note(f"recorded.{table}", "yes" if meta.rows.get(table) else "no")
    note("ranks", diagnosis.trace.ranks)
    note("devices", diagnosis.trace.devices)
    return {name: " | ".join(values) for name, values in sorted(found.items())}


def _figures(windows: list[_Window], parts: dict[str, IntArray]) -> dict[str, float]:
    each = windows[0].n * len(windows)
    kernels = sum(int((w.steady & w.e.gpu.is_kernel).sum()) for w in windows)
    figures = {"kernels_per_step": kernels / each}
    launches, lengths, copied = 0, [], 0
    for w in windows:
        api = w.e.gpu.host.api
        ops = w.e.gpu.ops
        copies = w.steady & ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD")
        copied += int(np.maximum(ops["bytes"][copies], 0).sum())
        calls = w.e.gpu.call[w.steady]
        calls = distinct_values(calls[calls >= 0])
        launches += len(calls)
        if len(calls):
            named = api.matches("name", _LAUNCH)[calls]
            lengths.append((api["end_ns"] - api["start_ns"])[calls[named]])
    figures["launches_per_step"] = launches / each
    figures["copied_bytes_per_step"] = copied / each
    every = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    if len(every):
        # a full queue makes calls wait, which makes some of them long: the short ones tell
        figures["launch_ns"] = float(np.percentile(every, 10))
    figures["recording_ns_per_step"] = _mean(windows, lambda e: e.recording_ns / max(e.n_steady, 1))
    host = sum(int(parts[f"idle:{cause}"].sum()) for cause in _HOST_PACED)
    figures["host_paced_idle_ns"] = host / each
    peak = _peak_memory(windows)
    if peak is not None:
        figures["peak_memory_bytes"] = peak
    return figures


def _mean(windows: list[_Window], value: Callable[[Explanation], float]) -> float:
    return sum(value(w.e) for w in windows) / len(windows)


def _peak_memory(windows: list[_Window]) -> float | None:
    """Most memory that one device had allocated at a time, as far as the captures tell."""
    peaks = []
    for w in windows:
        events = w.device.read("memory_event", "device", "total_allocated_bytes")
        if len(events):
            mine = events["device"] == w.e.gpu.device
            peaks.append(int(events["total_allocated_bytes"][mine].max(initial=-1)))
    return float(max(peaks)) if peaks and max(peaks) > 0 else None


def _typical_idle(w: _Window) -> list[tuple[int, int, str]]:
    """Idle time of the step that is drawn, by cause."""
    number = _typical(w)
    begin, end = int(w.begin[number]), int(w.end[number])
    gap = w.e.gaps.segments
    start, stop = np.maximum(gap["start_ns"], begin), np.minimum(gap["end_ns"], end)
    seen = np.flatnonzero(stop - start > (end - begin) // _DRAWN)
    return [
        (int(start[i]) - begin, int(stop[i]) - begin, CAUSES[int(gap["cause"][i])])
        for i in seen.tolist()
    ]


def _typical_step(
    w: _Window,
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, str]]]:
    """A step of median length, to be drawn."""
    number = _typical(w)
    begin, end = int(w.begin[number]), int(w.end[number])
    gpu = w.e.gpu
    drawn = []
    for kind, mask in enumerate(gpu.by_class.values()):
        start, stop = gpu.union_of(mask)
        inside = (stop > begin) & (start < end)
        start, stop = np.maximum(start[inside], begin), np.minimum(stop[inside], end)
        # gaps that would be thinner than a pixel of the picture are closed
        apart = np.flatnonzero(start[1:] - stop[:-1] > (end - begin) // _DRAWN)
        first, last = np.append(0, apart + 1), np.append(apart, len(start) - 1)
        if len(start):
            drawn += [(int(a) - begin, int(b) - begin, kind)
                      for a, b in zip(start[first], stop[last], strict=True)]  # fmt: skip
    ranges = w.e.kernels.attribution.ranges
    if not len(ranges):
        return drawn, []
    step = w.first + number
    steps = w.e.steps
    host_begin = int(steps.begin_ns[step])
    host_end = int(steps.begin_ns[step + 1]) if step + 1 < len(steps) else int(steps.end_ns)
    rows = (ranges["start_ns"] >= host_begin) & (ranges["start_ns"] < host_end)
    rows &= ranges["thread_id"] == gpu.host.main_thread
    rows &= ranges["end_ns"] - ranges["start_ns"] > (end - begin) // _DRAWN
    marks = [
        (int(ranges["start_ns"][i]) - host_begin, int(ranges["end_ns"][i]) - host_begin,
         plain_range_name(ranges.text("name", i)))
        for i in np.flatnonzero(rows)[:_DRAWN].tolist()
    ]  # fmt: skip
    return drawn, marks
