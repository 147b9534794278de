"""Every operation of the GPU."""

from __future__ import annotations

from stepscope.reports.needs import GPU_WORK
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import KERNEL_NAMES

_SQL = """
WITH names AS (
    SELECT process_id, device, last(name) AS product FROM all_device GROUP BY ALL
), places AS (
    SELECT DISTINCT process_id, device FROM gpu_work
), devices AS (
    SELECT places.process_id, places.device, trim(
        coalesce(nullif(own.product, ''), shared.product, '') || ' (' || places.device || ')'
    ) AS product
    FROM places
    LEFT JOIN names AS own USING (process_id, device)
    LEFT JOIN (FROM names WHERE process_id IS NULL) AS shared ON shared.device = places.device
)
SELECT start_ns, duration_ns, correlation_id,
    grid_x, grid_y, grid_z, block_x, block_y, block_z, registers,
    static_shared_bytes, dynamic_shared_bytes, bytes,
    -- whole operations a second, as Nsight Systems computes it
    try(CASE WHEN duration_ns > 0 THEN bytes * (1000000000 // duration_ns) END),
    src_kind, dst_kind, devices.product, context, green_context, stream,
    CASE WHEN kind = 'kernel' THEN {kernel} ELSE memory_name END
FROM {work} AS work
LEFT JOIN (SELECT id, operation AS memory_name FROM memory_op) USING (id)
LEFT JOIN devices USING (process_id, device) ORDER BY work.id
"""

REPORTS = [
    Report(
        "cuda_gpu_trace",
        "CUDA GPU Trace",
        "Every kernel, copy and fill, in order of start.",
        (
            Column("Start", "ts", "begin on the GPU"),
            Column("Duration", "dur", "length on the GPU"),
            Column("CorrId", doc="links the operation to the call that enqueued it"),
            Column("GrdX", doc="blocks in x"),
            Column("GrdY", doc="blocks in y"),
            Column("GrdZ", doc="blocks in z"),
            Column("BlkX", doc="threads a block in x"),
            Column("BlkY", doc="threads a block in y"),
            Column("BlkZ", doc="threads a block in z"),
            Column("Reg/Trd", doc="registers a thread"),
            Column("StcSMem", "mem", "static shared memory a block"),
            Column("DymSMem", "mem", "dynamic shared memory a block"),
            Column("Bytes", "mem", "size of a copy or fill"),
            Column("Throughput", "thru", "bytes times whole operations a second: 0 beyond 1 s"),
            Column("SrcMemKd", doc="memory copied from, or set"),
            Column("DstMemKd", doc="memory copied to"),
            Column("Device", doc="product and ordinal inside the process"),
            Column("Ctx", doc="CUDA context"),
            Column("GreenCtx", doc="green context"),
            Column("Strm", doc="CUDA stream"),
            Column("Name", doc="kernel or operation"),
        ),
        _SQL,
        arguments=KERNEL_NAMES,
        aliases=("gputrace",),
        needs=(GPU_WORK,),
    )
]
