"""The ``collective_wait`` table: every communication kernel, waiting apart from transferring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.job import ranks_text
from stepscope.derived import DEVICE, DerivedTable
from stepscope.jobs.view import JobView

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
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
    "transfer_ns": "the rest of its time, less missing_ns, ns",
    "missing_ns": "where ranks are missing, what it takes beyond equal operations: likely waiting "
    "for them, ns",
    "exposed_waiting_ns": "part of waiting_ns that no compute kernel covers, ns",
    "exposed_transfer_ns": "part of transfer_ns that no compute kernel covers, ns",
    "last_rank": "rank that began last",
    "members": "ranks found",
    "group_size": "ranks that should take part",
    "gpu_op_id": "gpu_op.id of the kernel",
}


def wait_table(job: JobView) -> pa.Table:
    """The ``collective_wait`` table; without rows where nothing communicates."""
    import pyarrow as pa

    c = job.collectives
    if c is None:
        texts = {"name": pa.string(), "group": pa.string()}
        return pa.schema([(name, texts.get(name, pa.int64())) for name in COLUMNS]).empty_table()
    facts, matched = c.facts, c.matched
    instances = matched.instances
    of, device = facts.instance, facts.device
    ranks = np.array([rank.rank for rank in matched.ranks], np.int64)
    step = c.step_of(instances.last_start_ns)[of]
    op_id = [e.gpu.ops["id"][rank.op] for e, rank in zip(c.explained, matched.ranks, strict=True)]
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
        "start_ns": facts.start,
        "end_ns": facts.end,
        "clock_offset_ns": np.array([r.offset_ns for r in matched.ranks], np.int64)[device],
        "lateness_ns": facts.lateness,
        "waiting_ns": facts.waiting,
        "transfer_ns": facts.transfer,
        "missing_ns": facts.missing,
        "exposed_waiting_ns": facts.exposed_waiting,
        "exposed_transfer_ns": facts.exposed_transfer,
        "last_rank": ranks[instances.last[of]],
        "members": instances.members[of],
        "group_size": instances.size[of],
        "gpu_op_id": np.concatenate(op_id),
    }
    return pa.table(columns)


TABLE = DerivedTable(
    "collective_wait",
    "One communication kernel that was matched with those of other ranks.",
    COLUMNS,
    wait_table,
)
