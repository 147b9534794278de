"""Read a snapshot: the history of each device, its blocks, and the stacks that asked for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.importers.common.sink import Sink
from stepscope.importers.common.stream import open_text
from stepscope.importers.torch_memory.replay import (
    GONE,
    MADE,
    Event,
    Replayed,
    Settings,
    replay,
    settings_of,
)
from stepscope.importers.torch_memory.unpickle import unpickled
from stepscope.trace.errors import InputError
from stepscope.trace.meta import Meta, MissingTable
from stepscope.trace.store import TraceWriter

_LARGEST_BYTES = 4 << 30
_PROCESS = 0
_KINDS = {
    "alloc": "cache",
    "free_requested": "cache",
    "free_completed": "completed",
    "oom": "oom",
    **dict.fromkeys(MADE, "alloc"),
    **dict.fromkeys(GONE, "free"),
}
_LIVE, _PENDING = "active_allocated", "active_pending_free"
_TIMED = "time_us"
_HISTORY = "torch.cuda.memory._record_memory_history() before the model is made"


def read(path: Path, writer: TraceWriter) -> Meta:
    """Fill the tables from a snapshot.

    Raises:
        InputError: it is damaged, or no snapshot.
    """
    data = _content(path)
    snapshot = unpickled(data, path)
    if isinstance(snapshot, list):  # what torch.cuda.memory_snapshot() gives
        snapshot = {"segments": snapshot, "device_traces": []}
    try:
        return _Reader(writer, len(data)).read(snapshot)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path} is a pickle without the parts of a memory snapshot "
            f"({type(error).__name__}: {str(error)[:80]}); dump one with "
            "torch.cuda.memory._dump_snapshot(FILE)"
        ) from error
    except _TooMany as error:
        raise InputError(
            f"{path} repeats its parts more often than {len(data):,} bytes can mean; dump the "
            "snapshot again"
        ) from error


def _content(path: Path) -> bytes:
    pieces, size = [], 0
    with open_text(path) as more:
        while piece := more():
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST_BYTES:
                raise InputError(
                    f"{path} is larger than {_LARGEST_BYTES >> 30} GiB; record fewer events "
                    "(max_entries of _record_memory_history)"
                )
    return b"".join(pieces)


class _TooMany(Exception):  # noqa: N818 - never leaves this file
    """Lists that refer to one another are longer than the file."""


class _Stacks:
    """Each stack once; the lists of frames that a snapshot holds are shared by its events."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._by_list: dict[int, int | None] = {}
        self._by_frames: dict[tuple[tuple[str, str, int], ...], int] = {}

    def code(self, frames: Any) -> int | None:
        """Number of a stack; None where there is none."""
        if not frames:
            return None
        known = self._by_list.get(id(frames))  # the snapshot keeps the list alive
        if known is None:
            self._allowed -= len(frames)
            if self._allowed < 0:
                raise _TooMany
            key = tuple((str(f["name"]), str(f["filename"]), int(f["line"])) for f in frames)
            known = self._by_frames.setdefault(key, len(self._by_frames))
            self._by_list[id(frames)] = known
        return known

    def write(self, sink: Sink) -> None:
        """Write all frames, the outermost first."""
        rows: dict[str, list[Any]] = {
            "stack_id": [], "depth": [], "function": [], "module": [], "line": []
        }  # fmt: skip
        for number, frames in enumerate(self._by_frames):
            for depth, (name, filename, line) in enumerate(frames[::-1]):
                rows["stack_id"].append(number)
                rows["depth"].append(depth)
                rows["function"].append(name or "?")
                rows["module"].append(None if filename in ("", "??") else filename)
                rows["line"].append(line if 0 < line < 1 << 31 else None)
        sink.put("stack_frame", rows)


class _Reader:
    """One snapshot on its way into the tables."""

    def __init__(self, writer: TraceWriter, size: int) -> None:
        self._sink = Sink(writer)
        self._problems = writer.problems
        self._allowed = size
        self._stacks = _Stacks(size)
        self._has_frames = False

    def read(self, snapshot: Mapping[str, Any]) -> Meta:
        """Fill all tables."""
        settings = settings_of(snapshot.get("allocator_settings"))
        segments: dict[int, list[Any]] = defaultdict(list)
        for segment in snapshot["segments"]:
            segments[int(segment.get("device", 0))].append(segment)
        traces = dict(enumerate(snapshot.get("device_traces") or ()))
        for items in (traces, *traces.values(), snapshot.get("external_annotations") or ()):
            self._count(items)
        times = [event[_TIMED] for trace in traces.values() for event in trace if _TIMED in event]
        origin_us = min(times, default=0)
        rows: list[tuple[Any, ...]] = []
        for device in sorted({d for d, trace in traces.items() if trace} | segments.keys()):
            trace = traces.get(device, [])
            self._put_blocks(device, segments[device])
            rows += self._events(device, trace, segments[device], settings, origin_us)
        rows.sort(key=lambda row: row[0])
        self._put_events(rows)
        end_ns = rows[-1][0] if rows else 0
        end_ns = max(end_ns, self._annotations(snapshot.get("external_annotations"), origin_us))
        self._stacks.write(self._sink)
        return self._meta(snapshot, bool(rows), origin_us, end_ns)

    def _count(self, items: Any) -> None:
        """Lists that are shared may be gone through many times: not more than a file can mean."""
        self._allowed -= len(items)
        if self._allowed < 0:
            raise _TooMany

    def _events(
        self, device: int, trace: Any, segments: Any, settings: Settings, origin_us: int
    ) -> list[tuple[Any, ...]]:
        events: list[Event] = [
            (str(e["action"]), int(e.get("addr", 0)), int(e.get("size", 0))) for e in trace
        ]
        blocks = [block for segment in segments for block in _blocks_of(segment)]
        found = replay(
            events,
            {int(s["address"]): int(s["total_size"]) for s in segments},
            {at: size for at, size, state in blocks if state == _LIVE},
            {at: size for at, size, state in blocks if state == _PENDING},
            settings,
        )
        self._problems.count("unknown_release", found.unknown, scope="memory_event")
        self._problems.count("replay_contradicted", found.contradicted, scope="memory_event")
        rows, latest = [], 0
        for number, (event, (action, address, size)) in enumerate(zip(trace, events, strict=True)):
            at = (int(event[_TIMED]) - origin_us) * 1000 if _TIMED in event else number * 1000
            latest = max(latest, at)  # threads take their times before they take the lock
            if action in _KINDS:
                rows.append(self._row(latest, device, event, action, address, size, found, number))
        return rows

    def _row(
        self, at: int, device: int, event: Any, action: str, address: int, size: int,
        found: Replayed, number: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        if action in ("alloc", "free_requested"):
            size = found.sizes[number]
        elif action in GONE or action == "free_completed":
            size = -size
        stream = event.get("stream")
        free = event.get("device_free") if action == "oom" else None
        return (
            at,
            _KINDS[action],
            device,
            None if action == "oom" else address,
            size,
            found.allocated[number],
            found.reserved[number],
            self._stacks.code(event.get("frames")),
            None if stream is None else _signed(int(stream)),
            None if free is None else int(free),
        )

    def _put_events(self, rows: list[tuple[Any, ...]]) -> None:
        names = ("time_ns", "kind", "device", "address", "bytes", "total_allocated_bytes",
                 "total_reserved_bytes", "stack_id", "stream", "device_free_bytes")  # fmt: skip
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        self._has_frames |= any(code is not None for code in columns[7])
        self._sink.put(
            "memory_event",
            {"process_id": [_PROCESS] * len(rows), **dict(zip(names, columns, strict=True))},
        )

    def _put_blocks(self, device: int, segments: Any) -> None:
        self._count(segments)
        records = []
        for segment in segments:
            self._count(segment["blocks"])
            at = int(segment["address"])
            for block in segment["blocks"]:
                size = int(block["size"])
                history = (block.get("history") or [{}])[0]
                frames = block.get("frames") or history.get("frames")
                requested = block.get("requested_size", history.get("real_size", size))
                records.append(
                    {
                        "process_id": _PROCESS,
                        "device": device,
                        "segment_address": int(segment["address"]),
                        "segment_bytes": int(segment["total_size"]),
                        "pool": str(segment.get("segment_type", "large")),
                        "stream": _signed(int(segment.get("stream", 0))),
                        "expandable": segment.get("is_expandable") is True,
                        "address": int(block.get("address", at)),
                        "bytes": size,
                        "requested_bytes": int(requested),
                        "state": str(block["state"]),
                        "stack_id": self._stacks.code(frames),
                    }
                )
                at += size
        self._has_frames |= any(record["stack_id"] is not None for record in records)
        self._sink.put_records("memory_block", records)

    def _annotations(self, marks: Any, origin_us: int) -> int:
        """Ranges of the program that the history recorded; the end of the last one, ns."""
        open_: dict[tuple[str, int], list[int]] = defaultdict(list)
        records, latest = [], 0
        for mark in marks or ():
            at = (int(mark[_TIMED]) - origin_us) * 1000
            key = (str(mark["name"]), int(mark.get("device", 0)))
            if mark["stage"] == "START":
                open_[key].append(at)
            elif open_[key]:
                begin = open_[key].pop()
                latest = max(latest, at)
                records.append({"kind": "annotation", "process_id": _PROCESS, "thread_id": 0,
                                "start_ns": begin, "end_ns": at, "name": key[0],
                                "closed": True})  # fmt: skip
        self._sink.put_records("range", records)
        return latest

    def _meta(
        self, snapshot: Mapping[str, Any], history: bool, origin_us: int, end_ns: int
    ) -> Meta:
        meta = Meta(window_start_ns=0, window_end_ns=end_ns)
        if origin_us:
            meta.origin_epoch_ns = origin_us * 1000
        reported = snapshot.get("allocator_settings")
        if isinstance(reported, dict):
            meta.capture_options = {
                str(key): str(value)
                for key, value in reported.items()
                if not isinstance(value, dict)
            }
        timeline = "a memory snapshot holds no timeline of the GPU"
        meta.missing = [
            MissingTable(table, timeline, "stepscope run") for table in ("gpu_op", "api_call")
        ]
        if not history:
            meta.missing.append(
                MissingTable("memory_event", "the history was not recorded", _HISTORY)
            )
        if not self._has_frames:
            meta.missing.append(
                MissingTable(
                    "stack_frame", "the history holds no stacks", f"{_HISTORY}, with stacks"
                )
            )
        return meta


def _blocks_of(segment: Any) -> list[tuple[int, int, str]]:
    """Address, size and state of the blocks of a segment."""
    at, found = int(segment["address"]), []
    for block in segment["blocks"]:
        size = int(block["size"])
        found.append((int(block.get("address", at)), size, str(block["state"])))
        at += size
    return found


def _signed(number: int) -> int:
    """A handle of 64 bits as the tables hold it."""
    return number - (1 << 64) if number >= 1 << 63 else number
