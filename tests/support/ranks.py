"""Several ranks by hand, without files: lanes from plain arrays, with known truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.activity.device import GpuTimeline, HostSide
from stepscope.collectives.calls import Participant
from stepscope.trace.frame import Frame

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"
SAID_COLUMNS = ("process_id", "correlation_id", "name", "dtype", "in_elements", "out_elements",
                "group_name", "group_size", "group_ranks", "sequence")  # fmt: skip


@dataclass
class Op:
    """One kernel: times in ns on the job's clock, and what the framework said about it."""

    start: int
    end: int
    name: str = ALL_REDUCE
    stream: int = 20
    grid: int = 24
    output: dict[str, Any] = field(default_factory=dict)


def participant(
    rank: int,
    ops: Sequence[Op],
    *,
    clock: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] = lambda time: time,
    epoch_ns: int | None = 0,
    machine: str = "",
    world_size: int | None = None,
) -> Participant:
    """A rank that executed some kernels; ``clock`` turns the job's times into its own."""
    ops = sorted(ops, key=lambda op: op.start)
    names = list(dict.fromkeys(op.name for op in ops)) or ["none"]
    n = len(ops)
    start = clock(np.array([op.start for op in ops], np.int64)).astype(np.int64)
    end = clock(np.array([op.end for op in ops], np.int64)).astype(np.int64)
    ids = np.arange(n)
    gpu = Frame(
        {
            "id": ids,
            "kind": np.zeros(n, np.int32),
            "process_id": np.full(n, 100 + rank),
            "device": np.full(n, rank),
            "stream": np.array([op.stream for op in ops], np.int64),
            "correlation_id": ids + 1,
            "start_ns": start,
            "end_ns": end,
            "name": np.array([names.index(op.name) for op in ops], np.int32),
            "bytes": np.full(n, -1),
            "copy_kind": np.full(n, -1, np.int32),
        },
        {"kind": ["kernel"], "name": names, "copy_kind": []},
    )
    grid = Frame(
        {"id": ids, "grid_x": np.array([op.grid for op in ops], np.int64)}
        | {name: np.ones(n, np.int64) for name in ("grid_y", "grid_z", "block_y", "block_z")}
        | {"block_x": np.full(n, 544)}
    )
    output = [
        {"process_id": 100 + rank, "correlation_id": i + 1} | op.output
        for i, op in enumerate(ops)
        if op.output
    ]
    texts: dict[str, list[str]] = {}
    columns: dict[str, Any] = {}
    for name in SAID_COLUMNS:
        values = [row.get(name) for row in output]
        if name in ("name", "dtype", "group_name", "group_ranks"):
            known = list(dict.fromkeys(v for v in values if v is not None))
            texts[name] = known
            columns[name] = np.array(
                [-1 if v is None else known.index(v) for v in values], np.int32
            )
        else:
            columns[name] = np.array([-1 if v is None else v for v in values], np.int64)
    tables = {"gpu_op": grid, "collective": Frame(columns, texts)}
    empty = Frame({})
    host = HostSide(100 + rank, empty, empty, empty, empty, [])
    gpu_timeline = GpuTimeline(100 + rank, rank, gpu, np.full(n, -1, np.int64), host)
    return Participant(
        rank,
        gpu_timeline,
        lambda table, *_: tables.get(table, empty),
        rank,
        epoch_ns,
        machine,
        world_size,
    )


def collective_times(
    n: int, ranks: int, seed: int = 0, *, spacing_ns: int = 2_000_000, jitter_ns: int = 3_000
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(starts, ends) of ``n`` collectives on each rank: irregular, ends together but for jitter."""
    draw = np.random.default_rng(seed)
    ready = np.cumsum(draw.integers(spacing_ns // 2, 3 * spacing_ns // 2, n))
    starts = ready[None, :] + draw.integers(0, spacing_ns // 4, (ranks, n))
    transfer = draw.integers(100_000, 200_000, n)
    ends = starts.max(axis=0) + transfer + draw.integers(0, jitter_ns, (ranks, n))
    return starts, ends
