"""What the files say about the capture itself: who, where, when, which rank, what went wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.importers.common import about
from stepscope.importers.common.about import Option
from stepscope.importers.common.sink import Sink
from stepscope.importers.common.stretches import TABLE as STRETCHES
from stepscope.importers.common.stretches import columns, read_file
from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.raw import Files, Raw
from stepscope.trace.frame import IntArray
from stepscope.trace.meta import Meta, MissingTable

LAUNCHER_FILE = "capture.json"


@dataclass(frozen=True)
class Window:
    """The time in which a group of processes recorded, in monotonic ns."""

    start_ns: int
    end_ns: int


Intervals = tuple[IntArray, IntArray]
"""Begins and ends of disjoint intervals, ascending, in monotonic ns."""


def _json(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def launcher_message(files: Files) -> dict[str, Any]:
    """What the launcher wrote about the whole capture; empty where it wrote nothing."""
    found = _json(files.path(LAUNCHER_FILE))
    return found if isinstance(found, dict) else {}


def process_of(raw: Raw) -> int:
    """The process id of a file; from its name where its beginning is lost."""
    stated = raw.one("process").get("pid")
    if isinstance(stated, int):
        return stated
    named = re.match(r"p(\d+)", raw.name)
    return int(named[1]) if named else 0


def end_of(raw: Raw) -> int:
    """Monotonic time at which the process's recording ended, as far as the files tell."""
    return int(raw.one("end").get("time_ns", raw.last_ns))


def ends_of(raw: Raw, window: Window) -> list[int]:
    """Monotonic times at which a process's recording ended, ascending.

    A process without a GPU records all the time; its recording ends with the window.
    """
    if not raw.one("cupti"):
        return [min(end_of(raw), window.end_ns)]
    states = raw.of(layout.STATE)
    ends: list[int] = states["time"][states["recording"] == 0].tolist()
    if not len(states) or states["recording"][-1] == 1:
        ends.append(end_of(raw))
    return sorted(ends)


def rank_of(raw: Raw) -> tuple[int | None, int | None, str]:
    """Rank, world size and the variable they come from."""
    variables = {**raw.one("process").get("environment", {})}
    variables |= raw.one("end").get("environment", {})  # programs may set them themselves
    return about.rank_of(variables)


def window_of(raws: Sequence[Raw]) -> Window:
    """When recording was on, from its first begin to its last end.

    Processes that used a GPU decide; workers record all the time. What a ring has dropped lies
    before it.
    """
    deciding = _deciding(raws)
    begins, ends = _switched(deciding)
    first = min((int(raw.one("process").get("born_ns", raw.last_ns)) for raw in raws), default=0)
    kept = max(raw.whole_since_ns for raw in deciding)
    end = max(ends, default=max(map(end_of, raws)))
    if not any(raw.one("cupti") for raw in raws):
        # few events fill no block for a long time, so a ring drops them late, or never
        kept = max([kept, *(end - ring for raw in raws if (ring := _ring_ns(raw)))])
    return Window(min(max(min(begins, default=first), kept), end), end)


def recorded_in(raws: Sequence[Raw], window: Window) -> Intervals | None:
    """When ranges of a process without a GPU were recorded; None: whenever there are any.

    The collector keeps all that such a process tells: it may be a worker, which does not see what
    begins and ends the recording of its parent.
    """
    deciding = _deciding(raws)
    begins, ends = _switched(deciding)
    if not any(raw.one("cupti") for raw in raws):
        if not any(_waits(raw) or _ring_ns(raw) for raw in raws):
            return None  # from the program's start, or by the clock: the collector does it
    elif not begins or len(begins) != len(ends):  # a damaged file
        return np.array([window.start_ns]), np.array([window.end_ns])
    return _united(begins, ends, window)


def _deciding(raws: Sequence[Raw]) -> list[Raw]:
    """The processes whose begins and ends of recording count: those with a GPU, where any has."""
    return [raw for raw in raws if raw.one("cupti")] or list(raws)


def _switched(raws: Sequence[Raw]) -> tuple[list[int], list[int]]:
    """Monotonic times at which recording began, and at which it ended, of each in turn."""
    begins: list[int] = []
    ends: list[int] = []
    for raw in raws:
        states = raw.of(layout.STATE)
        begins += states["time"][states["recording"] == 1].tolist()
        ends += states["time"][states["recording"] == 0].tolist()
        if len(states) and states["recording"][-1] == 1:
            ends.append(end_of(raw))
    return begins, ends


def _united(begins: list[int], ends: list[int], window: Window) -> Intervals:
    """Intervals of several processes as one series, within a window."""
    found: list[list[int]] = []
    for switched_on, switched_off in sorted(zip(begins, ends, strict=False)):
        begin, end = max(switched_on, window.start_ns), min(switched_off, window.end_ns)
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        elif begin <= end:
            found.append([begin, end])
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _waits(raw: Raw) -> bool:
    """Whether recording waits for something to begin it: a range, a call, a word from outside."""
    return bool(raw.one("process").get("when", "process") != "process")


def _ring_ns(raw: Raw) -> int:
    """How long a ring keeps what is recorded, ns; 0: there is none."""
    stated = raw.one("process").get("ring_ns", 0)
    return stated if isinstance(stated, int) and stated > 0 else 0


def origin_of(raws: Sequence[Raw], metadata: dict[str, Any]) -> tuple[int, int | None]:
    """(monotonic, wall-clock) time of the trace's zero.

    The launcher's, which all ranks of a machine share; else the first process's birth.
    """
    stated = metadata.get("origin_monotonic_ns")
    births = [int(raw.one("process").get("born_ns", raw.last_ns)) for raw in raws]
    origin = int(stated) if isinstance(stated, int) else min(births)
    epoch = metadata.get("origin_epoch_ns")
    if isinstance(epoch, int):
        return origin, epoch
    clocks = np.concatenate([raw.of(layout.CLOCK) for raw in raws])
    if not len(clocks):
        return origin, None
    return origin, int(clocks["realtime"][0]) - int(clocks["monotonic"][0]) + origin


def meta_of(raws: Sequence[Raw], metadata: dict[str, Any]) -> Meta:
    """The metadata but for times and rows."""
    main = max(raws, key=lambda raw: (bool(raw.one("cupti")), raw.count(layout.KERNEL)))
    rank, world, source = rank_of(main)
    environment = {}
    if version := main.one("cupti").get("version"):
        environment["cupti"] = str(version)
    for name in ("driver", "cuda_driver", "python"):
        if isinstance(metadata.get(name), str):
            environment[name] = metadata[name]
    options = metadata.get("options", {})
    return Meta(
        source_version=str(metadata.get("stepscope", "")),
        rank=rank,
        world_size=world,
        rank_source=source,
        hostname=str(main.one("process").get("host", "")),
        command=shlex.join(map(str, main.one("process").get("command", []))),
        capture_options={str(k): str(v) for k, v in options.items()}
        if isinstance(options, dict)
        else {},
        environment=environment,
    )


def read_diagnostics(sink: Sink, raws: Sequence[Raw]) -> None:
    """Fill ``diagnostic``, and count what was lost."""
    problems = sink.writer.problems
    records = []
    for raw in raws:
        process = process_of(raw)
        records += [
            {
                "time_ns": int(entry.get("time_ns", 0)) - sink.origin_ns,
                "process_id": process,
                "severity": str(entry.get("severity", "info")),
                "text": str(entry.get("text", "")),
            }
            for entry in raw.all("remark")
        ]
        end = raw.one("end")
        # workers without a GPU usually leave by os._exit, and their events outlive them
        if not end and (raw.one("cupti") or not raw.one("process").get("pool")):
            command = " ".join(map(str, raw.one("process").get("command", [])[:3]))
            detail = f"process {process} ({command})"
            problems.count("unfinished_capture", 1, scope="gpu_op", detail=detail)
        for table, what in _losses(end):
            problems.count("dropped_records", what, scope=table, detail=f"process {process}")
    sink.put_records("diagnostic", records)


def _losses(end: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for table, name in (
        ("gpu_op", "cupti_dropped"),
        ("range", "dropped_nvtx"),
        ("range", "dropped_texts"),
        ("gpu_op", "dropped_blocks"),
    ):
        yield table, int(end.get(name, 0))


def read_processes_threads_devices(
    sink: Sink,
    raws: Sequence[Raw],
    names: dict[tuple[int, int], str],
    seen: dict[tuple[int, int], str],
) -> None:
    """Fill ``process``, ``thread`` and ``device``; all else has been read.

    Args:
        sink: knows the threads and GPUs seen.
        raws: the files.
        names: names that programs gave to their threads.
        seen: names that the launcher saw from outside.
    """
    processes, threads, devices = [], [], []
    for raw in raws:
        process = process_of(raw)
        command = [str(part) for part in raw.one("process").get("command", [])]
        rank = rank_of(raw)[0]
        processes.append(
            {"process_id": process, "name": shlex.join(command[:3]) or None, "rank": rank}
        )
        system: dict[str, str] = {}
        for metadata in raw.all("threads"):
            system |= metadata.get("names", {})
        for owner, thread in sorted(sink.threads):
            if owner == process:
                # a program's own names say most, the launcher's are the oldest
                key = (process, thread)
                name = names.get(key) or system.get(str(thread)) or seen.get(key)
                threads.append({"process_id": process, "thread_id": thread, "name": name})
        used = {device for p, _, device, _ in sink.streams if p == process}
        known = {int(d["device"]): d for d in raw.one("devices").get("devices", [])}
        devices += [_device(process, number, known.get(number, {})) for number in sorted(used)]
    # what the program started without CUDA or NVTX, seen from outside
    with_files = {process_of(raw) for raw in raws}
    others = sorted(key for key in sink.threads if key[0] not in with_files)
    processes += [
        {"process_id": process, "name": seen.get((process, process))}
        for process in dict.fromkeys(process for process, _ in others)
    ]
    threads += [{"process_id": p, "thread_id": t, "name": seen.get((p, t))} for p, t in others]
    sink.put_records("process", processes)
    sink.put_records("thread", threads)
    sink.put_records("device", devices)


def _device(process: int, number: int, metadata: dict[str, Any]) -> dict[str, Any]:
    clock, bus = metadata.get("memory_clock_khz"), metadata.get("memory_bus_bits")
    sm_clock = metadata.get("clock_khz")
    return {
        "process_id": process,
        "device": number,
        "name": metadata.get("name"),
        "uuid": metadata.get("uuid"),
        "sm_count": metadata.get("sm_count"),
        "compute_major": metadata.get("compute_major"),
        "compute_minor": metadata.get("compute_minor"),
        "memory_bytes": metadata.get("memory_bytes"),
        # two transfers a clock, bits to bytes: what the driver's own samples print
        "memory_bandwidth": clock * 1000 * 2 * bus // 8 if clock and bus else None,
        "clock_hz": sm_clock * 1000 if sm_clock else None,
    }


MEMBERS_FILE = "members.json"
NAMES_FILE = "names.tsv"
PROFILERS_FILE = "profilers.json"
_OTHER = re.compile(r"other profiler (began|ended): (.+)")


def members_of(files: Files, raws: Sequence[Raw]) -> set[int]:
    """Processes that belong to a capture: those with raw files, and what they started."""
    metadata = _json(files.path(MEMBERS_FILE))
    listed = metadata.get("processes", []) if isinstance(metadata, dict) else []
    return {process_of(raw) for raw in raws} | {one for one in listed if isinstance(one, int)}


def names_of(files: Files) -> dict[tuple[int, int], str]:
    """Names of the threads that the launcher saw; a process's is that of its first thread."""
    try:
        text = files.path(NAMES_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        process, thread, _, name = [*line.split("\t", 3), "", "", ""][:4]
        if process.isdigit() and thread.isdigit() and name:
            found[int(process), int(thread)] = name
    return found


def periods(raw: Raw, end_ns: int) -> Iterator[tuple[str, int, int]]:
    """(profiler, begin, end) of other profilers that the hook noted, in monotonic ns."""
    open_: dict[str, int] = {}
    for entry in raw.all("remark"):
        match = _OTHER.fullmatch(str(entry.get("text", "")))
        if match is None:
            continue
        time = int(entry.get("time_ns", 0))
        if match[1] == "began":
            open_.setdefault(match[2], time)
        elif match[2] in open_:
            yield match[2], open_.pop(match[2]), time
    for name, begin in open_.items():
        yield name, begin, end_ns


def read_stretches(sink: Sink, files: Files, processes: Sequence[int]) -> None:
    """Fill ``timed_stretch`` from what the hook timed in each process."""
    for process in sorted(processes):
        found = read_file(files.path(f"steps.{process}.tsv"))
        sink.put(STRETCHES, columns(found, process, sink.origin_ns))


def count_profilers(sink: Sink, files: Files, raws: Sequence[Raw], processes: set[int]) -> None:
    """Count other profilers, with what was lost and from when to when.

    Rows of the raw files must still be there.
    """
    problems = sink.writer.problems
    for raw in raws:
        process = process_of(raw)
        for name, begin, end in _refusals(raw):
            detail = f"process {process}, {_span(sink, begin, end)}: {name}"
            problems.count("cupti_taken", 1, scope="gpu_op", detail=detail)
        for name, begin, end in periods(raw, end_of(raw)):
            inside = _work_between(raw, begin, end)
            taken = not inside and any(raw.count(kind) for kind in layout.WORK)
            lost = (
                "no GPU work was recorded meanwhile"
                if taken
                else f"this capture went on ({inside} GPU operations within), the other one lacks "
                "them"
            )
            detail = f"{name} in process {process}, {_span(sink, begin, end)}: {lost}"
            kind = "cupti_taken" if taken else "other_profiler"
            problems.count(kind, 1, scope="gpu_op", detail=detail)
    by_process = {process_of(raw): raw for raw in raws}
    metadata = _json(files.path(PROFILERS_FILE))
    for one in metadata if isinstance(metadata, list) else []:
        if not isinstance(one, dict) or one.get("process") not in processes:
            continue
        since = int(one.get("time_ns", 0))
        detail = (
            f"{one.get('tool')} in process {one['process']}, seen at "
            f"{(since - sink.origin_ns) / 1e9:.3f} s"
        )
        if (owner := by_process.get(one["process"])) is not None:
            after = _work_between(owner, since, 1 << 63)
            detail += f"; {after} GPU operations were recorded after that"
        problems.count("other_profiler", 1, scope="gpu_op", detail=detail)


def _refusals(raw: Raw) -> Iterator[tuple[str, int, int]]:
    """(what the collector said, begin, end) where another tool had CUPTI before it."""
    for entry in raw.all("remark"):
        text = str(entry.get("text", ""))
        if text.startswith("another profiler already uses CUPTI"):
            yield text, int(entry.get("time_ns", 0)), end_of(raw)


def _work_between(raw: Raw, begin: int, end: int) -> int:
    """GPU operations that began within some monotonic time."""
    return sum(
        int(((part["start"] >= begin) & (part["start"] < end)).sum())
        for kind in layout.WORK
        for part in raw.parts(kind)
    )


def _span(sink: Sink, begin: int, end: int) -> str:
    from_s, to_s = ((time - sink.origin_ns) / 1e9 for time in (begin, end))
    return f"{from_s:.3f} to {to_s:.3f} s"


_RUN = "stepscope run"
_OPTIONS = (
    Option("gpu_op", "GPU work", _RUN),
    Option("api_call", "CUDA calls", _RUN),
    Option("range", "NVTX ranges", f"{_RUN} on a script with NVTX ranges, or --steps"),
    Option("sync", "synchronisations", _RUN),
    Option("event_record", "CUDA event records", f"{_RUN} --record event"),
    Option("memory_event", "GPU memory allocations", f"{_RUN} --record memory"),
    Option("overhead", "overhead of the tool itself", _RUN),
    Option("timed_stretch", "steps timed without recording", f"{_RUN} --steps 10"),
    Option("metric_sample", "GPU counters", f"{_RUN} --counters"),
    Option("osrt", "calls of the operating system's runtime", f"{_RUN} --waits"),
    Option("sched", "thread scheduling", "nsys profile --cpuctxsw=process-tree"),
    Option("thread_state", "states of threads", f"{_RUN} --threads-hz 20"),
    Option("cpu_sample", "samples of the CPU", f"{_RUN} --sample-hz 50, for Python stacks"),
    Option("stack_frame", "stacks of the CPU", f"{_RUN} --sample-hz 50, for Python stacks"),
    Option("gil", "use of the GIL", f"{_RUN} --waits"),
    Option("operator", "framework operators", f"{_RUN} --steps 10 --ops, or --backend torch"),
    Option("python_function", "Python function calls", f"{_RUN} --backend torch --stacks"),
    Option("collective", "descriptions of collectives", f"{_RUN} --backend torch"),
    Option("communicator", "process groups", f"{_RUN} --backend torch"),
)


def missing_tables(rows: Mapping[str, int]) -> list[MissingTable]:
    """The tables without rows, given the rows of each canonical table."""
    return about.without_rows(_OPTIONS, rows)
