"""Kernels too short or too small to fill the GPU."""

from __future__ import annotations

from stepscope.reports.needs import KERNELS, Need
from stepscope.reports.report import ROWS, Argument, Column, Report

_STORMS = """
SELECT greatest(max(end_ns) - min(start_ns), 1) AS span, min(start_ns) AS begin_ns, count(*),
    sum(duration_ns) * 100::DOUBLE / span, process_id, device
FROM (
    SELECT *, duration_ns < {us} * 1000 AS tiny,
        sum((duration_ns >= {us} * 1000)::INT) OVER (PARTITION BY process_id, device ORDER BY id)
            AS run
    FROM kernel
)
WHERE tiny GROUP BY process_id, device, run HAVING count(*) >= {count}
ORDER BY span DESC, begin_ns, process_id, device LIMIT {rows}
"""
# communication takes few SMs on purpose: it waits for the network
_SMALL = """
WITH sizes AS (
    SELECT process_id, device, last(sm_count) AS units FROM all_device GROUP BY ALL
), small AS (
    SELECT kernel.name, kernel.duration_ns, coalesce(own.units, shared.units) AS units,
        greatest(coalesce(grid_x, 1), 1)::BIGINT * greatest(coalesce(grid_y, 1), 1)
            * greatest(coalesce(grid_z, 1), 1) AS blocks
    FROM kernel
    LEFT JOIN sizes AS own USING (process_id, device)
    LEFT JOIN sizes AS shared ON shared.device = kernel.device AND shared.process_id IS NULL
    ANTI JOIN communication ON communication.name::VARCHAR = kernel.name
    WHERE grid_x > 0
)
SELECT sum(duration_ns)::DOUBLE * 100
        / greatest((SELECT sum(duration_ns)::DOUBLE FROM kernel), 1) AS share,
    sum(duration_ns)::BIGINT AS total, count(*), total::DOUBLE / count(*), blocks, units,
    blocks::DOUBLE / units, name
FROM small WHERE blocks * 100 < units * {filled}
GROUP BY name, blocks, units HAVING share >= {share}
ORDER BY total DESC, blocks, name LIMIT {rows}
"""

RULES = [
    Report(
        "tiny_kernels",
        "Storms of Tiny Kernels",
        "Runs of consecutive kernels of one device that are all shorter than the limit. Longest "
        "first.",
        (
            Column("Duration", "dur", "first start to last end"),
            Column("Start", "ts", "begin"),
            Column("Kernels", doc="number of kernels"),
            Column("Busy", "ratio", "work in percent of the duration"),
            Column("PID", doc="process"),
            Column("Device ID", doc="device ordinal inside the process"),
        ),
        _STORMS,
        arguments=(
            ROWS,
            Argument("us", "a kernel is tiny below so many us", 10, low=1),
            Argument("count", "leave out runs of fewer kernels", 100, low=2),
        ),
        needs=(KERNELS,),
        none_found="No long run of tiny kernels.",
        advice="A launch costs the host some 5 us, so kernels as short as these cannot keep the "
        "GPU busy. Fuse them (torch.compile, fused or foreach optimizers) or replay them as a CUDA "
        "graph.",
    ),
    Report(
        "small_grids",
        "Kernels With Fewer Blocks Than SMs",
        "Kernels by name and number of blocks whose grid has fewer blocks than the given share of "
        "the device's SMs, so that the others have nothing to do. Communication is "
        "left out. Longest total first.",
        (
            Column("Time", "ratio", "share of the time of all kernels"),
            Column("Total Time", "dur", "sum of the durations"),
            Column("Instances", doc="number of kernels"),
            Column("Avg", "dur", "mean duration"),
            Column("Blocks", doc="blocks of the grid"),
            Column("SMs", doc="SMs of the device"),
            Column("Filled", doc="blocks a SM", decimals=2),
            Column("Name", doc="kernel"),
        ),
        _SMALL,
        arguments=(
            ROWS,
            Argument(
                "filled", "show grids that fill less than so many percent", 75, low=1, high=100
            ),
            # more than its share no kernel can gain
            Argument("share", "leave out less than so many percent of the kernels' time", 5, low=0),
        ),
        needs=(
            KERNELS,
            Need(
                "number of SMs of its GPUs",
                "device",
                "nsys profile -t cuda (torch.profiler: ProfilerActivity.CUDA)",
                "device WHERE sm_count > 0",
            ),
        ),
        none_found="Every kernel has blocks for most SMs.",
        advice="Part of the GPU is idle during these kernels whatever its utilisation says. Give "
        "them more work at once (larger batch, joined tensors), let the library choose a split "
        "(split-K), or run them beside others on a second stream.",
    ),
]
