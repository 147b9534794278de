"""Read a trace: pair the begins and ends of each track, and hand tracks to their tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepscope.importers.common.about import Option, without_rows
from stepscope.importers.common.cuda import COPY_LABELS, MEMSET_NAME, short_kernel_name
from stepscope.importers.common.protobuf import DamageError, mapped
from stepscope.importers.common.sink import Sink
from stepscope.importers.common.texts import dictionary
from stepscope.importers.perfetto.packets import Trace, Track, read_packets
from stepscope.intervals.distinct import with_inverse
from stepscope.trace.errors import InputError
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_RANK: Final = re.compile(r"Rank (\d{1,7}) · ")
_OUR_GPU: Final = re.compile(r"(?:Rank \d+ · )?GPU (\d{1,6})(?: · (.*))?$")
_OUR_THREAD: Final = re.compile(r"(?:Rank \d+ · )?Thread (\d{1,18})(?: · (.*?))?( · main)?$")
_LANE: Final = re.compile(r" \(overlapping \d+\)$")
_STREAM: Final = re.compile(r"\bstream\s*[#\[(]?\s*(\d{1,18})", re.IGNORECASE)
_QUEUE: Final = re.compile(r"\bqueue\s*\[?\s*(\d{1,18})\]?.*\(GPU\)", re.IGNORECASE)
_GPU: Final = re.compile(r"\b(?:GPU|device|agent)\s*[#\[(]?\s*(\d{1,6})", re.IGNORECASE)
_CALL: Final = re.compile(r"(?:cuda|cu|hip|hsa_|nccl|rccl)[A-Z_]\w*$")
_DRIVER: Final = re.compile(r"cu[A-Z]|hsa_")
_COPY: Final = re.compile(
    r"\[CUDA memcpy ([\w-]+)\]|Memcpy\s+(\w+)|(?:MEMORY_)?COPY_(\w+?)_TO_(\w+)", re.IGNORECASE
)
_SET: Final = re.compile(r"\[CUDA memset\]|Memset\b", re.IGNORECASE)
_GRAPH: Final = re.compile(r"\[CUDA graph|CUDA graph \d")
_LABELS: Final = {label: kind for kind, label in COPY_LABELS.items()}
_OURS: Final = {
    "Ranges": "range", "Operators": "operator", "Python": "python_function", "CUDA API": "api_call",
}  # fmt: skip
_LACKING: Final = (
    Option("api_call", "CUDA calls", "stepscope run, or nsys profile -t cuda"),
    Option("range", "ranges", "stepscope run, or nsys profile -t nvtx"),
    Option("operator", "framework operators", "torch.profiler"),
    Option("python_function", "Python functions", "torch.profiler with with_stack=True"),
    Option("sync", "synchronisation records", "nsys profile -t cuda"),
    Option("memory_event", "allocations", "torch.profiler with profile_memory=True"),
    Option("cpu_sample", "samples of stacks", "stepscope run --sample-hz 100"),
)


@dataclass(frozen=True)
class Role:
    """What a track is.

    Attributes:
        table: ``gpu_op``, ``api_call``, ``range``, ``operator``, ``python_function``; ``host``
            where names of slices decide between calls and ranges; empty for what is derived.
        device: GPU.
        stream: its stream.
        thread: thread of the host.
    """

    table: str
    device: int = 0
    stream: int = 0
    thread: int = 0


def read(path: Path, writer: TraceWriter) -> Meta:
    """Fill the tables from a trace.

    Args:
        path: the trace.
        writer: receives the tables.

    Raises:
        InputError: it is damaged, of several ranks, or holds no track of a GPU's stream.
    """
    with mapped(path, writer.folder) as data:
        try:
            trace = read_packets(data)
        except DamageError as error:
            raise InputError(
                f"{path} is damaged or not whole: it holds {error}; the capture or a copy did not "
                "finish, copy it again, or capture again"
            ) from error
    roles, names, ranks = _roles(trace)
    if len(ranks) > 1:
        raise InputError(
            f"{path} holds {len(ranks)} ranks on one timeline; export each rank by itself, or give "
            "the captures that it was made from"
        )
    if trace.local_clocks:
        raise InputError(
            f"{path} tells its times on clocks of its writers; open it in Perfetto, or give the "
            "capture that it was made from"
        )
    if not any(role.table == "gpu_op" for role in roles.values()):
        raise InputError(
            f"{path} is a trace of Perfetto without a track that is named as a GPU's stream or "
            "queue; give the capture of the GPU's work that belongs to it"
        )
    slices = _paired(trace, writer)
    if not len(slices.start):
        raise InputError(f"{path} is a trace of Perfetto without slices; check what wrote it")
    meta = Meta()
    origin = 0 if int(slices.start.min()) < 10**17 else int(slices.start.min())
    sink = Sink(writer, origin)
    process = next((t.process for t in trace.tracks.values() if t.process), 0)
    process = process or _main_thread(trace)
    _write(sink, trace, slices, roles, process)
    _things(sink, roles, names, process)
    if origin >= 10**18:
        meta.origin_epoch_ns = origin
    meta.window_start_ns = min(0, int(slices.start.min()) - origin)
    meta.window_end_ns = sink.latest_ns
    if ranks and (rank := next(iter(ranks))) is not None:
        meta.rank, meta.rank_source = rank, "title of its tracks"
    writer.problems.count(
        "unread_events", trace.instants, scope="range", detail="events without duration"
    )
    meta.missing = without_rows(_LACKING, sink.rows)
    return meta


def _roles(trace: Trace) -> tuple[dict[int, Role], dict[tuple[str, int], str], set[int | None]]:
    """What each track is, names of GPUs and threads, and the ranks that titles tell."""
    roles: dict[int, Role] = {}
    names: dict[tuple[str, int], str] = {}
    ranks: set[int | None] = set()
    nameless = 0
    for uuid, track in trace.tracks.items():
        above = trace.tracks.get(track.parent, Track())
        title = _LANE.sub("", track.title)
        gpu, thread = _OUR_GPU.match(above.title), _OUR_THREAD.match(above.title)
        if gpu or thread:
            rank = _RANK.match(above.title)
            ranks.add(int(rank[1]) if rank else None)
        stream = _STREAM.search(title or track.owner) or _QUEUE.search(title or track.owner)
        if gpu is not None:
            table = "gpu_op" if stream is not None else ""
            roles[uuid] = Role(table, int(gpu[1]), int(stream[1]) if stream else 0)
            names["gpu", int(gpu[1])] = gpu[2] or ""
        elif thread is not None:
            roles[uuid] = Role(_OURS.get(title, ""), thread=int(thread[1]))
            names["thread", int(thread[1])] = thread[2] or ""
        elif stream is not None:
            on = _GPU.search(title) or _GPU.search(above.title) or _GPU.search(above.owner)
            roles[uuid] = Role("gpu_op", int(on[1]) if on else 0, int(stream[1]))
        else:
            nameless += 1
            number = track.thread or nameless
            roles[uuid] = Role("host", thread=number)
            names["thread", number] = track.owner or title
    return roles, names, ranks


def _main_thread(trace: Trace) -> int:
    """The process by its main thread, which has its number; 0 where no title says which it is."""
    found = (_OUR_THREAD.match(track.title) for track in trace.tracks.values())
    return next((int(match[1]) for match in found if match and match[3]), 0)


@dataclass(frozen=True)
class _Slices:
    """Slices of all tracks."""

    track: IntArray
    start: IntArray
    end: IntArray
    name: IntArray
    flow: IntArray
    closed: BoolArray


def _paired(trace: Trace, writer: TraceWriter) -> _Slices:
    """Each begin with the end that closes it: the next one at its depth on its track."""
    track, time, begins, name, flow = trace.slices()
    order = np.lexsort((time, track))  # stable: what happens at one time stays in its order
    track, time, begins = track[order], time[order], begins[order]
    name, flow = name[order], flow[order]
    first = np.ones(len(track), bool)
    first[1:] = track[1:] != track[:-1]
    run = np.cumsum(first) - 1
    while len(track):
        depth = _depth(begins, first, run)
        loose = ~begins & (depth < 0)
        if not loose.any():
            break
        # only the first end below the ground of each track is surely one without a begin
        at = np.flatnonzero(loose)
        _, where = _first_of(run[at])
        keep = np.ones(len(track), bool)
        keep[at[where]] = False
        writer.problems.count("malformed_event", len(where), scope="range", detail="loose end")
        track, time, begins = track[keep], time[keep], begins[keep]
        name, flow = name[keep], flow[keep]
        first = np.ones(len(track), bool)
        first[1:] = track[1:] != track[:-1]
        run = np.cumsum(first) - 1
    if not len(track):
        none = np.empty(0, np.int64)
        return _Slices(none, none, none, none, none, np.empty(0, bool))
    level = _depth(begins, first, run) + np.where(begins, 0, 1)
    order = np.lexsort((np.arange(len(track)), level, run))
    ordered = begins[order]
    begin = order[ordered]
    place = np.flatnonzero(ordered)
    after = np.minimum(place + 1, len(order) - 1)
    same = (place + 1 < len(order)) & ~ordered[after]
    same &= (run[order[after]] == run[begin]) & (level[order[after]] == level[begin])
    last = np.zeros(int(run[-1]) + 1, np.int64)
    np.maximum.at(last, run, time)
    end = np.where(same, time[order[after]], last[run[begin]])
    writer.problems.count("unclosed_range", int((~same).sum()), scope="range")
    sort = np.argsort(time[begin], kind="stable")
    begin, end, same = begin[sort], end[sort], same[sort]
    return _Slices(track[begin], time[begin], end, name[begin], flow[begin], same)


def _depth(begins: BoolArray, first: BoolArray, run: IntArray) -> IntArray:
    """Open slices of the track after each event."""
    total = np.cumsum(np.where(begins, 1, -1))
    at = np.flatnonzero(first)
    base = total[at] - np.where(begins[at], 1, -1)
    return np.asarray(total - base[run], np.int64)


def _first_of(runs: IntArray) -> tuple[IntArray, IntArray]:
    from stepscope.intervals.distinct import with_first

    return with_first(runs)


def _write(sink: Sink, trace: Trace, slices: _Slices, roles: dict[int, Role], process: int) -> None:
    tracks, place = with_inverse(slices.track)
    known = [roles.get(uuid, Role("")) for uuid in tracks.tolist()]
    texts = [*trace.names.texts, "[no name]"]
    called = np.array([_CALL.match(text) is not None for text in texts], bool)
    table = np.array([_TABLES.index(role.table) for role in known], np.int64)[place]
    host = table == _TABLES.index("host")
    split = np.where(called[slices.name], _TABLES.index("api_call"), _TABLES.index("range"))
    table = np.where(host, split, table)
    columns = {
        what: np.array([getattr(role, what) for role in known], np.int64)[place]
        for what in ("device", "stream", "thread")
    }
    for number, name in enumerate(_TABLES[:5]):
        rows = np.flatnonzero(table == number)
        if not len(rows):
            continue
        common = {
            "process_id": np.full(len(rows), process),
            "start_ns": sink.times(slices.start[rows]),
            "end_ns": sink.times(slices.end[rows]),
        }
        code = np.where(slices.name[rows] < 0, len(texts) - 1, slices.name[rows])
        make = _gpu if name == "gpu_op" else _host
        sink.put(name, {**common, **make(name, slices, rows, code, texts, columns)})


_TABLES: Final = ("gpu_op", "api_call", "range", "operator", "python_function", "host", "")


def _gpu(
    _: str,
    slices: _Slices,
    rows: IntArray,
    code: IntArray,
    texts: list[str],
    columns: dict[str, AnyArray],
) -> dict[str, Any]:
    kinds = [_kind(text) for text in texts]
    each = list(zip(texts, kinds, strict=True))
    copies = [_copy(text) if kind == "memcpy" else None for text, kind in each]
    shown = [MEMSET_NAME if kind == "memset" else text for text, kind in each]
    short = [short_kernel_name(text) if kind == "kernel" else None for text, kind in each]
    return {
        "kind": dictionary(code, kinds),
        "device": columns["device"][rows],
        "stream": columns["stream"][rows],
        "correlation_id": _links(slices.flow[rows]),
        "name": dictionary(code, shown),
        "short_name": dictionary(code, short),
        "copy_kind": dictionary(code, copies),
    }


def _host(
    table: str,
    slices: _Slices,
    rows: IntArray,
    code: IntArray,
    texts: list[str],
    columns: dict[str, AnyArray],
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "thread_id": columns["thread"][rows],
        "name": dictionary(code, list(texts)),
    }
    if table == "api_call":
        apis = ["driver" if _DRIVER.match(text) else "runtime" for text in texts]
        found |= {
            "api": dictionary(code, apis),
            "raw_name": dictionary(code, list(texts)),
            "correlation_id": _links(slices.flow[rows]),
        }
    elif table == "range":
        found |= {
            "kind": dictionary(np.zeros(len(rows), np.int32), ["annotation"]),
            "closed": slices.closed[rows],
        }
    return found


def _links(flow: IntArray) -> Any:
    """Flows as correlation ids: a call and the work it enqueued share one."""
    import pyarrow as pa

    return pa.array(flow, mask=flow <= 0)


def _kind(text: str) -> str:
    if _SET.match(text):
        return "memset"
    if _COPY.match(text):
        return "memcpy"
    return "graph" if _GRAPH.match(text) else "kernel"


def _copy(text: str) -> str | None:
    match = _COPY.match(text)
    if match is None:
        return None
    if match[3]:
        kind = f"{match[3][0].upper()}to{match[4][0].upper()}"
    else:
        kind = _LABELS.get(match[1] or "", match[2] or "")
    return kind if kind in COPY_LABELS else None


def _things(
    sink: Sink, roles: dict[int, Role], names: dict[tuple[str, int], str], process: int
) -> None:
    sink.put_records("process", [{"process_id": process}])
    gpus = sorted({role.device for role in roles.values() if role.table == "gpu_op"})
    sink.put_records(
        "device",
        [
            {"process_id": process, "device": gpu, "name": names.get(("gpu", gpu)) or None}
            for gpu in gpus
        ],
    )
    streams = {(r.device, r.stream) for r in roles.values() if r.table == "gpu_op"}
    sink.put_records(
        "stream",
        [{"process_id": process, "device": d, "stream": s} for d, s in sorted(streams)],
    )
    threads = {role.thread for role in roles.values() if role.table not in ("gpu_op", "")}
    sink.put_records(
        "thread",
        [
            {"process_id": process, "thread_id": t, "name": names.get(("thread", t)) or None}
            for t in sorted(threads)
        ],
    )
