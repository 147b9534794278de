"""The analysis tables about several ranks: ``collective_wait`` and ``rank_time``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.analysis.collectives import kinds
from stepscope.analysis.collectives.facts import facts, ranks_text

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.analysis.collectives.job import Collectives

WAIT_COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "instance": "number of the operation inside the job: the same on all ranks that take part",
    "step": "number of the shared steady step that its last start lies in; null outside",
    "name": "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv, ...",
    "group": "ranks that take part",
    "bytes": "message size as nccl-tests counts it; null where the capture does not tell",
    "start_ns": "begin on this rank, ns since its trace's origin",
    "end_ns": "end on this rank, ns since its trace's origin",
    "clock_offset_ns": "what was added to compare these times with other ranks', ns",
    "lateness_ns": "from the first rank's begin to this rank's, ns",
    "waiting_ns": "from this rank's begin until the last rank has begun (its own end at most), ns",
    "transfer_ns": "the rest of its time, less absent_ns, ns",
    "absent_ns": "where ranks are missing, what it takes beyond equal operations: likely waiting "
    "for them, ns",
    "exposed_waiting_ns": "part of waiting_ns that no compute kernel covers, ns",
    "exposed_transfer_ns": "part of transfer_ns that no compute kernel covers, ns",
    "last_rank": "rank that began last",
    "members": "ranks found",
    "group_size": "ranks that should take part",
    "gpu_op_id": "gpu_op.id of the kernel",
}
"""Columns of ``collective_wait``: one row a rank and matched communication kernel."""

TIME_COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "step": "number of the shared steady step",
    "start_ns": "begin of the step, ns since this trace's origin",
    "part": "compute, waiting (for the last rank, nothing covers it), transfer (not covered), "
    "absent (likely waiting for a rank that is not there), unmatched (communication without "
    "counterpart), copy, memset, or idle and the cause it is charged to. Beside these, alone is "
    "the part of compute in which no communication runs, blocking the part of transfer that other "
    "work was ready to follow, bubble the part of waiting that is in sends and receives",
    "time_ns": "time, ns; without alone, blocking and bubble the parts of a step sum to its length",
}
"""Columns of ``rank_time``: one row a rank, step that all ranks share, and part of its time. The
steps are cut at the same moments on all ranks, so that the parts can be compared between them."""


def wait_table(c: Collectives | None) -> pa.Table:
    """The ``collective_wait`` table; without rows where nothing communicates."""
    import pyarrow as pa

    if c is None:
        return _empty(WAIT_COLUMNS, {"name", "group"})
    told, matched = facts(c), c.matched
    instances = matched.instances
    of, device = told.instance, told.device
    ranks = np.array([rank.rank for rank in matched.ranks], np.int64)
    step = c.step_of(instances.last_start_ns)[of]
    op_id = [e.lane.ops["id"][rank.op] for e, rank in zip(c.explained, matched.ranks, strict=True)]
    size = instances.bytes[of]
    groups = pa.array([ranks_text(channel.ranks) for channel in matched.channels], pa.string())
    columns = {
        "rank": ranks[device],
        "process_id": np.array([r.process_id for r in matched.ranks], np.int64)[device],
        "device": np.array([r.device for r in matched.ranks], np.int64)[device],
        "instance": of,
        "step": pa.array(step, pa.int64(), mask=step < 0),
        "name": pa.array(kinds.KINDS).take(pa.array(instances.kind[of])),
        "group": groups.take(pa.array(instances.channel[of])),
        "bytes": pa.array(size, pa.int64(), mask=size < 0),
        "start_ns": told.start,
        "end_ns": told.end,
        "clock_offset_ns": np.array([r.offset_ns for r in matched.ranks], np.int64)[device],
        "lateness_ns": told.lateness,
        "waiting_ns": told.waiting,
        "transfer_ns": told.transfer,
        "absent_ns": told.absent,
        "exposed_waiting_ns": told.exposed_waiting,
        "exposed_transfer_ns": told.exposed_transfer,
        "last_rank": ranks[instances.last[of]],
        "members": instances.members[of],
        "group_size": instances.size[of],
        "gpu_op_id": np.concatenate(op_id),
    }
    return pa.table(columns)


def time_table(c: Collectives | None) -> pa.Table:
    """The ``rank_time`` table; without rows where nothing communicates."""
    import pyarrow as pa

    if c is None or not len(c.parts):
        return _empty(TIME_COLUMNS, {"part"})
    parts = c.parts
    named = {
        name: getattr(parts, name)
        for name in ("compute", "waiting", "transfer", "absent", "unmatched", "copy", "memset",
                     "alone", "blocking", "bubble")
    }  # fmt: skip
    named |= {f"idle {cause}": time for cause, time in parts.idle.items()}
    steps, devices = parts.wall.shape
    start = np.stack([rank.clock.back(parts.begin_ns) for rank in c.matched.ranks], axis=1)
    ranks = c.matched.ranks
    repeat = len(named)
    codes = np.repeat(np.arange(repeat), steps * devices)

    def each(values: list[int]) -> object:
        return np.tile(np.tile(np.array(values, np.int64), steps), repeat)

    return pa.table(
        {
            "rank": each([rank.rank for rank in ranks]),
            "process_id": each([rank.process_id for rank in ranks]),
            "device": each([rank.device for rank in ranks]),
            "step": np.tile(np.repeat(np.arange(steps), devices), repeat),
            "start_ns": np.tile(start.reshape(-1), repeat),
            "part": pa.array(list(named)).take(pa.array(codes)),
            "time_ns": np.concatenate([time.reshape(-1) for time in named.values()]),
        }
    )


def _empty(columns: dict[str, str], texts: set[str]) -> pa.Table:
    import pyarrow as pa

    return pa.schema(
        [pa.field(name, pa.string() if name in texts else pa.int64()) for name in columns]
    ).empty_table()
