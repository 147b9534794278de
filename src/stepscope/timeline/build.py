"""Which tracks a trace has, and how each is made from the canonical tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from stepscope.activity.device import API_COLUMNS, GPU_COLUMNS, rows_by
from stepscope.intervals import subtract, union
from stepscope.intervals.algebra import Intervals
from stepscope.kernels.categories import classify
from stepscope.timeline import classes
from stepscope.timeline.source import Source
from stepscope.timeline.threads import state_tracks
from stepscope.timeline.track import Samples, Slices, Track, slices
from stepscope.trace.frame import BoolArray, Frame, IntArray, distinct

# where the analyses read the same table, the same columns: what is read once serves both
GPU = GPU_COLUMNS
CALL = API_COLUMNS
RANGE = ("id", "kind", "process_id", "thread_id", "start_ns", "end_ns", "name", "device", "stream")
HOST = ("id", "process_id", "thread_id", "start_ns", "end_ns", "name")

CUDA_CALLS = "CUDA API"
"""Title of the tracks of CUDA calls."""
_APIS = {
    "cuda": (CUDA_CALLS, ("runtime", "driver")),
    "libraries": ("Libraries", ("cublas", "cudnn", "nccl", "mpi")),
    "os": ("OS runtime", ("osrt", "syscall")),
}


def device_tracks(source: Source) -> Iterator[Track]:
    """Per device: what it is busy with, its streams, memory; ids are given later."""
    gpu = source.read("gpu_op", *GPU)
    memory = source.read("memory_event", "process_id", "time_ns", "device", "total_allocated_bytes")
    for (process_id, device), mine in _rows_by_both(gpu, "process_id", "device").items():
        place: dict[str, Any] = {
            "rank_trace": source.rank_trace,
            "rank": source.rank,
            "process_id": process_id,
            "device": device,
        }
        stem = f"{source.rank}/{process_id}/gpu{device}"
        yield Track(
            0, "Busy", "gpu_op", f"{stem}/busy", build=partial(_busy, source, mine), **place
        )
        for stream, rows in rows_by(gpu["stream"][mine]).items():
            yield Track(
                0,
                f"Stream {stream}",
                "gpu_op",
                f"{stem}/stream{stream}",
                build=partial(_stream, source, mine[rows]),
                stream=stream,
                **place,
            )
        sized = (memory["device"] == device) & (memory["process_id"] == process_id)
        sized &= memory["total_allocated_bytes"] >= 0
        if sized.any():
            yield Track(
                0,
                "Memory allocated",
                "memory_event",
                f"{stem}/memory",
                build=partial(_memory, source, sized),
                kind="counter",
                unit="bytes",
                **place,
            )


def counter_tracks(source: Source) -> Iterator[Track]:
    """One track a hardware counter and device.

    Counters name the physical GPU; their tracks stand with the device that the process knows it as.
    """
    devices = source.read("device", "device", "physical_id")
    ordinal = dict(zip(devices["physical_id"].tolist(), devices["device"].tolist(), strict=True))
    samples = source.read("metric_sample", "time_ns", "device", "metric", "value")
    for device, metric in _pairs(samples["device"], samples["metric"]):
        name = samples.texts["metric"][metric]
        mine = (samples["device"] == device) & (samples["metric"] == metric)
        yield Track(
            0,
            name if device >= 0 else f"{name} (CPU)",
            "metric_sample",
            f"{source.rank}/counter{device}/{name}",
            source.rank_trace,
            source.rank,
            build=partial(_samples, source, mine),
            kind="counter",
            device=ordinal.get(device, device) if device >= 0 else -1,
        )


def thread_tracks(source: Source) -> Iterator[Track]:
    """Per thread: ranges, operators, calls, Python functions, in the order people read them."""
    ranges = source.read("range", *RANGE)
    kinds = ranges.equals("kind", "pushpop", "startend", "annotation")
    parts: dict[str, tuple[str, tuple[str, ...], dict[tuple[int, int], IntArray]]] = {
        "Ranges": ("range", RANGE, _rows_of_threads(ranges, kinds))
    }
    for title, table in (("Operators", "operator"), ("Python", "python_function")):
        parts[title] = (table, HOST, _rows_of_threads(source.read(table, *HOST)))
    calls = source.read("api_call", *CALL)
    for title, apis in _APIS.values():
        parts[title] = ("api_call", CALL, _rows_of_threads(calls, calls.equals("api", *apis)))
    gil = source.read("gil", "id", "process_id", "thread_id", "start_ns", "end_ns", "state")
    parts["Python lock"] = ("gil", (), _rows_of_threads(gil))
    found = {thread for _, _, rows in parts.values() for thread in rows}
    launching = parts[CUDA_CALLS][2].keys()

    def order(thread: tuple[int, int]) -> tuple[bool, ...]:
        """The main thread, then threads that talk to the GPU, then the others."""
        return thread[0] != thread[1], thread not in launching

    for process_id, thread_id in sorted(found, key=lambda t: (t[0], order(t), t[1])):
        for title, (table, columns, rows) in parts.items():
            mine = rows.get((process_id, thread_id))
            if mine is None:
                continue
            if title == "Python lock":
                build = partial(_gil, source, mine)
            elif table == "api_call":
                build = partial(_calls, source, mine, title == "OS runtime")
            else:
                build = partial(source.taken, table, columns, mine)
            yield Track(
                0,
                title,
                table,
                f"{source.rank}/{process_id}/{thread_id}/{title}",
                source.rank_trace,
                source.rank,
                build=build,
                process_id=process_id,
                thread_id=thread_id,
            )
    yield from state_tracks(source)


def _rows_of_threads(
    frame: Frame, mask: BoolArray | None = None
) -> dict[tuple[int, int], IntArray]:
    """Rows of each (process, thread), ascending, of those that are selected."""
    return _rows_by_both(frame, "process_id", "thread_id", mask)


def _rows_by_both(
    frame: Frame, one: str, other: str, mask: BoolArray | None = None
) -> dict[tuple[int, int], IntArray]:
    """Rows of each pair of values, ascending, of the rows that are selected."""
    chosen = np.arange(len(frame)) if mask is None else np.flatnonzero(mask)
    return {
        (first, second): chosen[outer[rows]]
        for first, outer in rows_by(frame[one][chosen]).items()
        for second, rows in rows_by(frame[other][chosen[outer]]).items()
    }


def _pairs(a: IntArray, b: IntArray) -> list[tuple[int, int]]:
    """Distinct pairs, ascending."""
    first = distinct(a).tolist()
    return [(x, y) for x in first for y in distinct(b if len(first) == 1 else b[a == x]).tolist()]


def _stream(source: Source, rows: IntArray) -> Slices:
    ops = source.read("gpu_op", *GPU).take(rows).with_used_texts("name")
    labels = [classify(name).label or name for name in ops.texts["name"]]
    labels = [
        name if name.startswith("[") else label
        for name, label in zip(ops.texts["name"], labels, strict=True)
    ]
    numbers = source.names.numbers(labels)
    for number, name in zip(numbers.tolist(), ops.texts["name"], strict=False):
        known = source.names.long.setdefault(number, [])
        if name not in known:
            known.append(name)
    return slices(
        ops["start_ns"] + source.offset_ns,
        ops["end_ns"] + source.offset_ns,
        numbers[ops["name"]],
        classes.gpu_codes(ops),
        ops["id"],
    )


def _busy(source: Source, mine: IntArray) -> Slices:
    """What the device is busy with: each moment belongs to the first class that runs then."""
    ops = source.read("gpu_op", *GPU).take(mine)
    code = classes.gpu_codes(ops)
    kernel = ops.equals("kind", "kernel", "graph")
    communication = code == classes.CODE["kernel_communication"]
    parts = {
        "busy_compute": kernel & ~communication,
        "busy_communication": communication,
        "busy_copy": ops.equals("kind", "memcpy"),
        "busy_memset": ops.equals("kind", "memset"),
    }
    taken: Intervals = union(np.empty(0, np.int64), np.empty(0, np.int64))
    start, end, codes, names = [], [], [], []
    for key, rows in parts.items():
        own = union(ops["start_ns"][rows], ops["end_ns"][rows])
        left = subtract(own, taken)
        taken = union(np.concatenate((taken[0], own[0])), np.concatenate((taken[1], own[1])))
        start.append(left[0] + source.offset_ns)
        end.append(left[1] + source.offset_ns)
        codes.append(np.full(len(left[0]), classes.CODE[key], np.uint8))
        names.append(np.full(len(left[0]), source.names.number(classes.CLASSES[key]), np.int64))
    return slices(
        np.concatenate(start),
        np.concatenate(end),
        np.concatenate(names),
        np.concatenate(codes),
        np.arange(sum(map(len, start)), dtype=np.int64),
    )


def _calls(source: Source, rows: IntArray, osrt: bool) -> Slices:
    frame = source.read("api_call", *CALL).take(rows).with_used_texts("name")
    return source.sliced(frame, classes.call_codes(frame.texts["name"], osrt=osrt))


def _gil(source: Source, rows: IntArray) -> Slices:
    frame = source.read("gil", "id", "process_id", "thread_id", "start_ns", "end_ns", "state")
    frame = frame.take(rows)
    texts = frame.texts["state"]
    code = [classes.CODE.get(f"lock_{text}", classes.CODE["api_other"]) for text in [*texts, ""]]
    numbers = source.names.numbers(texts)
    return slices(
        frame["start_ns"] + source.offset_ns,
        frame["end_ns"] + source.offset_ns,
        numbers[frame["state"]],
        np.array(code, np.uint8)[frame["state"]],
        frame["id"],
    )


def _memory(source: Source, mask: BoolArray) -> Samples:
    events = source.read(
        "memory_event", "process_id", "time_ns", "device", "total_allocated_bytes"
    ).take(mask)
    return Samples(
        events["time_ns"] + source.offset_ns, events["total_allocated_bytes"].astype(np.float64)
    )


def _samples(source: Source, mask: BoolArray) -> Samples:
    samples = source.read("metric_sample", "time_ns", "device", "metric", "value").take(mask)
    return Samples(samples["time_ns"] + source.offset_ns, samples["value"])
