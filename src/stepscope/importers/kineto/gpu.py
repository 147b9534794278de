"""GPU-side tables: kernels, copies, memory sets, synchronisations, communication."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.importers.common.cuda import (
    COPY_LABELS,
    MEMORY_KINDS,
    MEMSET_NAME,
    copy_name,
    short_kernel_name,
)
from stepscope.importers.common.texts import dictionary
from stepscope.importers.kineto.events import MISSING, NO_TEXT, Args
from stepscope.importers.kineto.spans import (
    Context,
    Events,
    Ints,
    Metadata,
    Spans,
    external_ids,
    integers,
    metadata,
    nullable,
    nullable32,
    runs,
    triples,
)
from stepscope.trace.text import LONGEST_JUDGED

KERNEL, MEMCPY, MEMSET = range(3)
_KINDS = ("kernel", "memcpy", "memset")
_COPY = re.compile(r"Memcpy\s+(\S+)(?:\s+\(([^()]*?)\s*->\s*([^()]*?)\))?")
_SET = re.compile(r"Memset\s+\(([^()]*)\)")
_MEMORY = {kind.replace("_", " "): kind for kind in MEMORY_KINDS}
_OF_ROCTRACER = {
    **{
        f"Copy{source}To{target}{plane}": (
            MEMCPY,
            f"Memcpy {source[0]}to{target[0]} ({source} -> {target})",
        )
        for source in ("Host", "Device")
        for target in ("Host", "Device")
        for plane in ("", "2D")
    },
    "FillBuffer": (MEMSET, "Memset (Device)"),
}
"""Commands of ROCm's runtime, which Kineto wrote as they are until May 2024, and until 2023 among
the kernels: their kind, and the name that it has written since."""
_SYNC_KINDS = {
    "Event Sync": "event",
    "Stream Wait Event": "stream_wait_event",
    "Stream Sync": "stream",
    "Stream Synchronize": "stream",
    "Context Sync": "context",
    "Device Sync": "context",
}
_NO_ID = 2**32 - 1
_INT32_MAX = 2**31 - 1


def _memory(text: str | None) -> str:
    return _MEMORY.get((text or "").strip().lower(), "unknown")


def _small(values: Ints) -> npt.NDArray[np.int32]:
    """As int32, with -1 for what is absent, negative or too large."""
    return np.where((values < 0) | (values > _INT32_MAX), -1, values).astype(np.int32)


def _beyond_small(values: Ints) -> int:
    """How many numbers int32 does not hold; what stands for no number is none of them."""
    return int(((values > _INT32_MAX) & (values != _NO_ID)).sum())


def _positive(part: npt.NDArray[np.int32]) -> Any:
    # MISSING needs 64 bits: beside an int32 column numpy would wrap it to 0, or raise
    return nullable32(np.where(part < 0, np.int64(MISSING), part))


class GpuOperations(Spans):
    """Kernels, copies and memory sets."""

    table = "gpu_op"

    def __init__(self) -> None:
        super().__init__()
        self._kind = KERNEL
        self.communications: list[Metadata] = []

    def add_copies(self, events: Events) -> None:
        """Take over memory copies."""
        self._add_kind(events, MEMCPY)

    def add_sets(self, events: Events) -> None:
        """Take over memory sets."""
        self._add_kind(events, MEMSET)

    def _add_kind(self, events: Events, kind: int) -> None:
        self._kind = kind
        self.add(events)
        self._kind = KERNEL

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """Where it ran, what launched it, how large it is."""
        count = len(events)
        device = _first_of([a.device for a in args], [a.in_device for a in args])
        device = _first_of(device, [event.pid for event in events])
        context = _first_of([a.context for a in args], [a.in_context for a in args])
        stream = _first_of([a.stream for a in args], [event.tid for event in events])
        kernel = self._kind == KERNEL
        grid = triples((a.grid for a in args), count) if kernel else _missing(count, 3)
        block = triples((a.block for a in args), count) if kernel else _missing(count, 3)
        shape = np.concatenate([grid, block], axis=1)
        registers = self.whole([a.registers for a in args])
        correlation = self.whole([a.correlation for a in args])
        self.too_large += sum(map(_beyond_small, (device, context, shape, registers)))
        small = _small(device)
        if kernel:
            for row, a in enumerate(args):
                if a.collective is not NO_TEXT:
                    external, columns = metadata(a, self.counted)
                    columns["device"] = max(int(small[row]), 0)
                    if correlation[row] != MISSING:
                        columns["correlation_id"] = int(correlation[row])
                    self.communications.append((external, columns))
        return {
            "kind": np.full(count, self._kind, dtype=np.int32),
            "name": self.names.codes_of([event.name for event in events]),
            "device": small,
            "context": _small(context),
            "stream": stream,
            "correlation": correlation,
            "external": external_ids(args),
            "shape": _small(shape),
            "registers": _small(registers),
            "shared": self.whole([a.shared_bytes for a in args]),
            "bytes": self.whole([a.bytes for a in args]),
            "graph": self.whole([a.graph_id for a in args]),
            "node": self.whole([a.graph_node_id for a in args]),
        }

    def output(self, context: Context, start: Ints) -> dict[str, Any]:
        """All columns; names of copies and sets as Nsight Systems writes them."""
        code = self.columns.pop("name")
        commands = [_OF_ROCTRACER.get(name, (KERNEL, name)) for name in self.names.texts]
        names = [name for _, name in commands]
        copies = {name: m for name in names if (m := _COPY.match(name[:LONGEST_JUDGED]))}
        sets = {name: m for name in names if (m := _SET.match(name[:LONGEST_JUDGED]))}
        shown = [_shown(name, copies.get(name), name in sets) for name in names]
        short = [None if n in copies or n in sets else short_kernel_name(n) for n in names]
        source = [_memory(m[2]) if (m := copies.get(n) or None) else _set(sets, n) for n in names]
        target = [_memory(m[3]) if (m := copies.get(n) or None) else None for n in names]
        kinds = [m[1] if (m := copies.get(n)) and m[1] in COPY_LABELS else None for n in names]
        kind = np.maximum(self.columns.pop("kind"), np.array([k for k, _ in commands])[code])
        self.columns.pop("external")
        shape = self.columns.pop("shape")
        graph = self.columns.pop("graph")
        graph = np.where(graph <= 0, MISSING, graph)  # 0: launched outside of any graph
        node = self.columns.pop("node")
        device = self.columns.pop("device")
        size = _with_asked(
            context.asked, self.columns.peek("correlation"), self.columns.pop("bytes"), kind
        )
        columns = {
            "kind": (kind, lambda part: dictionary(part, _KINDS)),
            "process_id": context.launchers.of(device, self.columns.peek("correlation")),
            "device": np.maximum(device, 0),
            "context": (self.columns.pop("context"), _positive),
            "stream": np.maximum(self.columns.pop("stream"), 0),
            "correlation_id": (self.columns.pop("correlation"), nullable),
            "registers": (self.columns.pop("registers"), _positive),
            "dynamic_shared_bytes": (self.columns.pop("shared"), nullable),
            "bytes": (size, nullable),
            "graph_id": (graph, nullable),
            "graph_node_id": (np.where(graph == MISSING, MISSING, node), nullable),
        }
        for column, texts in (
            ("name", shown),
            ("short_name", short),
            ("copy_kind", kinds),
            ("src_memory", source),
            ("dst_memory", target),
        ):
            columns[column] = (code, lambda part, texts=texts: dictionary(part, texts))
        for axis, column in enumerate(
            ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
        ):
            columns[column] = (shape[:, axis], _positive)
        return columns

    def streams(self) -> list[tuple[int, int, int]]:
        """The distinct (device, context, stream); context -1 where unknown."""
        place = (self.columns.peek(name) for name in ("device", "context", "stream"))
        return sorted({(device, context, stream) for (device, context, stream), _ in runs(*place)})


def _with_asked(
    asked: tuple[Ints, Ints], correlation: Ints, size: Ints, kind: npt.NDArray[Any]
) -> Ints:
    """Sizes of operations; of copies that state none (ROCm), what their calls asked for."""
    known, sizes = asked
    lacking = np.flatnonzero((kind == MEMCPY) & (size == MISSING))
    if not len(known) or not len(lacking):
        return size
    at = np.minimum(np.searchsorted(known, correlation[lacking]), len(known) - 1)
    found = size.copy()
    found[lacking] = np.where(known[at] == correlation[lacking], sizes[at], MISSING)
    return found


def _missing(count: int, width: int) -> Ints:
    return np.full((count, width), MISSING)


def _first_of(first: Any, second: list[Any]) -> Ints:
    """Integers of ``first``, of ``second`` where absent."""
    found = integers(first) if isinstance(first, list) else first
    missing = found == MISSING
    return np.where(missing, integers(second), found) if missing.any() else found


def _shown(name: str, copy: re.Match[str] | None, is_set: bool) -> str:
    if is_set:
        return MEMSET_NAME
    return copy_name(copy[1]) if copy else name


def _set(sets: dict[str, re.Match[str]], name: str) -> str | None:
    return _memory(sets[name][1]) if name in sets else None


class Synchronisations(Spans):
    """What streams, contexts and events were waited for (cuda_sync)."""

    table = "sync"

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """What waited for what."""
        stream = self.whole([a.stream for a in args])
        event = self.whole([a.wait_on_event for a in args])
        return {
            "name": self.names.codes_of([event.name for event in events]),
            "device": _first_of([a.device for a in args], [event.pid for event in events]),
            "context": self.whole([a.context for a in args]),
            "stream": np.where((stream < 0) | (stream == _NO_ID), MISSING, stream),
            "correlation": self.whole([a.correlation for a in args]),
            "event": np.where(event < 0, MISSING, event),
        }

    def output(self, context: Context, start: Ints) -> dict[str, Any]:
        """All columns."""
        kinds = [_SYNC_KINDS.get(name, "unknown") for name in self.names.texts]
        device = self.columns.pop("device")
        return {
            "process_id": context.launchers.of(device, self.columns.peek("correlation")),
            "device": (np.where(device < 0, MISSING, device), nullable32),
            "context": (self.columns.pop("context"), nullable32),
            "stream": (self.columns.pop("stream"), nullable),
            "correlation_id": (self.columns.pop("correlation"), nullable),
            "kind": (self.columns.pop("name"), lambda part: dictionary(part, kinds)),
            "event_id": (self.columns.pop("event"), nullable),
        }
