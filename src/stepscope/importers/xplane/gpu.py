"""Planes of GPUs: kernels, copies and memory sets of each stream, and their operations of HLO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.importers.common.cuda import (
    COPY_LABELS,
    MEMORY_KINDS,
    MEMSET_NAME,
    copy_name,
    short_kernel_name,
)
from stepscope.importers.common.sink import Sink
from stepscope.importers.common.texts import dictionary
from stepscope.importers.xplane.hlo import Instruction, Program
from stepscope.importers.xplane.space import MISSING, Events, Line, Plane
from stepscope.intervals.distinct import (
    distinct_rows,
    distinct_values,
    with_counts,
    with_inverse,
)
from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

DEVICE: Final = re.compile(r"/device:GPU:(\d{1,6})")
_STREAM: Final = re.compile(r"Stream #(\d{1,18})")
_COPY: Final = re.compile(
    r"Memcpy([HDAP])(?:2|to)([HDAP])|Memcpy(P2P|PtoP)|MemcpyOther|Memcpy\b"
    r"|Copy(Host|Device)To(Host|Device)"  # as ROCm's tracer calls them
)
_SET: Final = re.compile(r"Memset\b|FillBuffer\b")
_WHOLE_GRAPH: Final = re.compile(r"CudaGraph(?:Execution)?[: ]?\d*$|CudaGraphExecution")
_NUMBER: Final = re.compile(r"(\w+):(-?\d+(?:,\d+)*)")
_WORD: Final = re.compile(r"(\w+):([A-Za-z_]\w*)")
_MOST: Final = 2**31 - 1
_KINDS: Final = ("kernel", "memcpy", "memset", "graph")
KERNEL, MEMCPY, MEMSET, GRAPH = range(4)
_DERIVED: Final = {"XLA Modules": "xla_module", "Steps": "xla_step"}
"""Lines that xprof adds to a plane of a GPU, and the domain under which their events stand."""


@dataclass
class Gpus:
    """What the planes of GPUs told.

    Attributes:
        operations: of HLO, by which host events are known to be theirs.
        kernels: number of kernels.
        launched: correlation ids of the work, a part an array.
        amd: whether a plane is of an AMD GPU.
        undescribed: number of kernels that no instruction of HLO describes.
    """

    operations: set[str] = field(default_factory=set)
    kernels: int = 0
    launched: list[IntArray] = field(default_factory=list)
    amd: bool = False
    graphs: int = 0


def read_gpu(
    sink: Sink, plane: Plane, process: int, programs: dict[str, Program], gpus: Gpus
) -> None:
    """Fill ``gpu_op``, ``range``, ``stream`` and ``device`` from the plane of one GPU."""
    match = DEVICE.search(plane.name)
    device = int(match[1]) if match else 0
    facts = plane.facts
    gpus.amd |= "AMD" in str(facts.get("device_vendor", "")).upper()
    _device(sink, facts, process, device)
    for line in plane.lines:
        stream = _STREAM.match(line.name)
        if stream is not None:
            for events in line.events():
                _operations(sink, line, events, (process, device, int(stream[1])), programs, gpus)
        elif line.name in _DERIVED:
            for events in line.events():
                _derived(sink, line, events, (process, device))


def _device(sink: Sink, facts: dict[str, str | int | float], process: int, device: int) -> None:
    def whole(name: str, scale: int = 1) -> int | None:
        value = facts.get(name)
        return int(value) * scale if isinstance(value, int) and 0 <= value < 2**50 else None

    def small(name: str) -> int | None:
        value = whole(name)
        return value if value is not None and value <= _MOST else None

    vendor = str(facts.get("device_vendor", ""))
    name = str(facts.get("gpu_device_name") or facts.get("device_type_string") or "") or vendor
    sink.put_records(
        "device",
        [
            {
                "process_id": process,
                "device": device,
                "physical_id": device,
                "name": name or None,
                "sm_count": small("core_count"),
                "compute_major": small("compute_cap_major"),
                "compute_minor": small("compute_cap_minor"),
                "memory_bytes": whole("memory_size"),
                "memory_bandwidth": whole("memory_bandwidth"),
                "clock_hz": whole("clock_rate", 1000),  # told in kHz
            }
        ],
    )


def _derived(sink: Sink, line: Line, events: Events, place: tuple[int, int]) -> None:
    process, device = place
    count = len(events)
    sink.put(
        "range",
        {
            "kind": dictionary(np.zeros(count, np.int32), ["gpu_annotation"]),
            "process_id": np.full(count, process),
            "start_ns": sink.times(events.start_ns),
            "end_ns": sink.times(events.end_ns),
            "name": names_of(events, line.plane),
            "domain": dictionary(np.zeros(count, np.int32), [_DERIVED[line.name]]),
            "device": np.full(count, device, np.int32),
            "closed": np.ones(count, bool),
        },
    )


def names_of(events: Events, plane: Plane) -> pa.Array:
    """Names of events, as a column."""
    numbers, code = with_inverse(events.name)
    return dictionary(code, [plane.names.get(n) or f"[event {n}]" for n in numbers.tolist()])


def _operations(
    sink: Sink,
    line: Line,
    events: Events,
    place: tuple[int, int, int],
    programs: dict[str, Program],
    gpus: Gpus,
) -> None:
    process, device, stream = place
    count = len(events)
    plane, stats = line.plane, events.stats
    numbers, code = with_inverse(events.name)
    names = [plane.names.get(n) or f"[event {n}]" for n in numbers.tolist()]
    kinds = np.array([_kind(name) for name in names], np.int64)
    details: list[str] = []
    reported = np.full(count, -1, np.int64)
    for name in ("kernel_details", "memcpy_details", "memset_details", "Memset_details"):
        reported = np.maximum(reported, stats.texts(name, details))
    known = [_details(text) for text in details]
    kind = kinds[code]
    gpus.kernels += int((kind == KERNEL).sum())
    gpus.graphs += int((kind == GRAPH).sum())
    correlation = stats.numbers("correlation_id")
    gpus.launched.append(distinct_values(correlation[correlation > 0]))
    copies = [_copy_kind(name) if kinds[i] == MEMCPY else None for i, name in enumerate(names)]
    shown = [_shown(name, int(kinds[i]), copies[i]) for i, name in enumerate(names)]
    short = [
        short_kernel_name(name) if kinds[i] == KERNEL else None for i, name in enumerate(names)
    ]

    def number(*keys: str) -> pa.Array:
        return _numbers(reported, [next((k[key] for key in keys if key in k), None) for k in known])

    def word(*keys: str) -> pa.Array:
        # of no kernel: its details name no memory
        texts = [next((w for key in keys if (w := words(k, key))), None) for k in known]
        return dictionary(reported, texts)

    def words(item: dict[str, Any], key: str) -> str | None:
        value = item.get(key)
        kind = str(value).lower() if value is not None else None
        return kind if kind in MEMORY_KINDS else ("unknown" if kind else None)

    columns: dict[str, Any] = {
        "kind": dictionary(kind, list(_KINDS)),
        "process_id": np.full(count, process),
        "device": np.full(count, device, np.int32),
        "context": _small(stats.numbers("context_id")),
        "stream": np.full(count, stream),
        "correlation_id": _nullable(np.where(correlation > 0, correlation, MISSING)),
        "start_ns": sink.times(events.start_ns),
        "end_ns": sink.times(events.end_ns),
        "name": dictionary(code, shown),
        "short_name": dictionary(code, short),
        "registers": number("regs"),
        "static_shared_bytes": number("static_shared", "group_mem"),
        "dynamic_shared_bytes": number("dynamic_shared"),
        "local_bytes": number("private_mem"),
        "bytes": number("size", "num_bytes"),
        "copy_kind": dictionary(code, copies),
        "src_memory": word("kind_src", "kind"),
        "dst_memory": word("kind_dst"),
        "graph_id": _nullable(_positive(stats.numbers("cuda_graph_id"))),
        "graph_node_id": _nullable(stats.numbers("cuda_graph_node_id")),
        **{
            f"{what}_{axis}": number(f"{what}_{axis}")
            for what in ("grid", "block")
            for axis in "xyz"
        },
    }
    sink.put("gpu_op", columns)
    sink.streams.add((process, -1, device, stream))
    _hlo(sink, events, place, programs, gpus, (code, names, kind))


def _hlo(
    sink: Sink,
    events: Events,
    place: tuple[int, int, int],
    programs: dict[str, Program],
    gpus: Gpus,
    named: tuple[IntArray, list[str], IntArray],
) -> None:
    """Ranges on the GPU that say which operation of HLO each kernel is, from which line."""
    code, names, kind = named
    process, device, stream = place
    stats = events.stats
    operations: list[str] = []
    modules: list[str] = []
    scopes: list[str] = []
    sources: list[str] = []
    operation = stats.texts("hlo_op", operations)
    module = stats.texts("hlo_module", modules)
    scope = np.full(len(events), -1, np.int64)
    # the scope stands in `name`, in others in `tf_op`; the last one that is told counts
    for key in ("tf_op", "name"):
        found = stats.texts(key, scopes)
        scope = np.where(found >= 0, found, scope)
    source = stats.texts("source", sources)
    gpus.operations.update(operations)
    by_place, placed = _by_place(events, (module, modules), programs, named)
    keys = (code, operation, module, scope, source, placed)
    rows = np.flatnonzero((operation >= 0) & (kind != GRAPH))
    if not len(rows):
        return
    first, inverse = distinct_rows([key[rows] for key in keys])
    titles: list[str | None] = []
    places: list[str | None] = []
    for c, o, m, s, at, known in np.stack([key[rows][first] for key in keys], 1).tolist():
        program = programs.get(modules[m]) if m >= 0 else None
        made = program.instruction(names[c], operations[o]) if program is not None else None
        if known >= 0:
            made = by_place[known]
        title = _scope(scopes[s] if s >= 0 else "") or (made.scope if made is not None else "")
        line = (sources[at] if at >= 0 else "") or (made.source if made is not None else "")
        instruction = made.name if made is not None else operations[o]
        titles.append(title or instruction)
        places.append(f"{instruction} {line}".strip())
    sink.put(
        "range",
        {
            "kind": dictionary(np.zeros(len(rows), np.int32), ["gpu_annotation"]),
            "process_id": np.full(len(rows), process),
            "start_ns": sink.times(events.start_ns[rows]),
            "end_ns": sink.times(events.end_ns[rows]),
            "name": dictionary(inverse, titles),
            "payload": dictionary(inverse, places),
            "domain": dictionary(np.zeros(len(rows), np.int32), ["hlo"]),
            "device": np.full(len(rows), device, np.int32),
            "stream": np.full(len(rows), stream),
            "closed": np.ones(len(rows), bool),
        },
    )


def _by_place(
    events: Events,
    modules: tuple[IntArray, list[str]],
    programs: dict[str, Program],
    named: tuple[IntArray, list[str], IntArray],
) -> tuple[list[Instruction], IntArray]:
    """Instructions of kernels in command buffers, by their place among those of one launch.

    Returns:
        Instructions, and which of them each event is; -1 where its place tells nothing.
    """
    code, names, kind = named
    module, titles = modules
    placed = np.full(len(events), -1, np.int64)
    found: list[Instruction] = []
    graph, node, launch = (
        events.stats.numbers(name)
        for name in ("cuda_graph_id", "cuda_graph_node_id", "correlation_id")
    )
    inside = (graph > 0) & (node != MISSING) & (kind == KERNEL) & (module >= 0)
    for number in distinct_values(graph[inside]).tolist():
        rows = np.flatnonzero(inside & (graph == number))
        program = programs.get(titles[int(module[rows[0]])])
        if program is None:
            continue
        launches, counts = with_counts(launch[rows])
        whole = rows[launch[rows] == launches[np.argmax(counts)]]
        whole = whole[np.argsort(events.start_ns[whole], kind="stable")]
        made = program.in_order([names[c] for c in code[whole].tolist()])
        place_of: dict[int, int] = {}
        for at, instruction in zip(node[whole].tolist(), made, strict=True):
            if instruction is not None:
                place_of[at] = len(found)
                found.append(instruction)
        placed[rows] = [place_of.get(at, -1) for at in node[rows].tolist()]
    return found, placed


def _scope(text: str) -> str:
    """A name scope without the type that TensorFlow puts behind it; empty where it says nothing."""
    return "" if text == "XlaModule:" else text.rstrip(":")


def _kind(name: str) -> int:
    if _WHOLE_GRAPH.match(name):
        return GRAPH
    if _SET.match(name):
        return MEMSET
    return MEMCPY if _COPY.match(name) else KERNEL


def _copy_kind(name: str) -> str | None:
    match = _COPY.match(name)
    if match is None:
        return None
    source, target = match[1] or match[4] or "", match[2] or match[5] or ""
    kind = "PtoP" if match[3] else f"{source[:1]}to{target[:1]}"
    return kind if kind in COPY_LABELS else None


def _shown(name: str, kind: int, copy: str | None) -> str:
    if kind == MEMCPY:
        return copy_name(copy or "")
    return MEMSET_NAME if kind == MEMSET else name


def _details(text: str) -> dict[str, Any]:
    """``regs:20 grid:4,1,1`` as a dictionary; a triple gives three entries."""
    found: dict[str, Any] = dict(_WORD.findall(text))
    for name, value in _NUMBER.findall(text):
        parts = [int(part) for part in value.split(",") if len(part) < 19]
        if len(parts) == 3:
            found |= {f"{name}_{axis}": part for axis, part in zip("xyz", parts, strict=True)}
        elif len(parts) == 1:
            found[name] = parts[0]
    return found


def _numbers(reported: IntArray, values: Sequence[Any]) -> pa.Array:
    """The number of each row's details; null where they tell none."""
    sound = [v if isinstance(v, int) and 0 <= v <= _MOST else MISSING for v in values]
    return _nullable(np.array([*sound, MISSING], np.int64)[reported])


def _nullable(values: IntArray) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, mask=values == MISSING)


def _small(values: IntArray) -> pa.Array:
    return _nullable(np.where((values < 0) | (values > _MOST), MISSING, values))


def _positive(values: IntArray) -> IntArray:
    return np.where(values > 0, values, MISSING)


nullable = _nullable
