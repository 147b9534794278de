"""Unified memory: migrations and page faults."""

from __future__ import annotations

from stepscope.reports.needs import COPIES, CPU_FAULTS, GPU_FAULTS
from stepscope.reports.report import Argument, Column, Report

_EVENTS = """
WITH events AS (
    SELECT coalesce(virtual_address, -1) AS address, duration_ns,
        CASE copy_kind WHEN 'UVM HtoD' THEN bytes END AS htod,
        CASE copy_kind WHEN 'UVM DtoH' THEN bytes END AS dtoh, NULL AS cpu, NULL AS gpu
    FROM gpu_op WHERE kind = 'memcpy' AND copy_kind IN ('UVM HtoD', 'UVM DtoH')
    UNION ALL
    SELECT coalesce(address, -1), 0, NULL, NULL, CASE kind WHEN 'cpu' THEN 1 END,
        CASE kind WHEN 'gpu' THEN coalesce(faults, -1) END
    FROM page_fault
)"""
_SUMS = "sum(htod)::BIGINT AS htod, sum(dtoh)::BIGINT AS dtoh, {} AS cpu, sum(gpu)::BIGINT AS gpu"
_BY_ADDRESS = f"""{_EVENTS}
SELECT * EXCLUDE (busy_ns),
    -- whole operations a second, as Nsight Systems computes it
    CASE WHEN busy_ns > 0
        THEN (coalesce(htod, 0) + coalesce(dtoh, 0)) * (1000000000 // busy_ns) END AS rate
FROM (
    SELECT address, {_SUMS.format("sum(cpu)::BIGINT")}, sum(duration_ns)::BIGINT AS busy_ns
    FROM events GROUP BY ALL
)
ORDER BY coalesce(rate, -1) DESC, address LIMIT {{rows}}
"""
# as in Nsight Systems: the extremes exist only where all four kinds do
_TOTALS = f"""{_EVENTS}
SELECT * EXCLUDE (least, most, complete),
    CASE WHEN complete THEN least END, CASE WHEN complete THEN most END
FROM (
    SELECT {_SUMS.format("count(cpu)")}, min(address) AS least, max(address) AS most
    FROM events
), (SELECT count(htod) * count(dtoh) * count(cpu) * count(gpu) > 0 AS complete FROM events)
"""
_BY_INSTRUCTION = """
SELECT count(*) AS number, instruction FROM page_fault WHERE kind = 'cpu'
GROUP BY instruction ORDER BY number DESC, instruction NULLS FIRST
"""

_UNIFIED = (CPU_FAULTS, GPU_FAULTS, COPIES)
REPORTS = [
    Report(
        "um_sum",
        "Unified Memory Analysis Summary",
        "Migrations and page faults of unified memory by virtual address, fastest migration first.",
        (
            Column("Virtual Address", "addr", "address that migrated or was touched"),
            Column("HtoD Migration size", "mem", "bytes migrated to the device"),
            Column("DtoH Migration size", "mem", "bytes migrated to the host"),
            Column("CPU Page Faults", doc="faults of the CPU"),
            Column(" GPU Page Faults", doc="faults of the GPU"),
            Column("Migration Throughput", "thru", "bytes times whole operations a second"),
        ),
        _BY_ADDRESS,
        arguments=(Argument("rows", "show the first N rows (-1: all)", 10, low=-1),),
        aliases=("unifiedmemory",),
        needs=_UNIFIED,
    ),
    Report(
        "um_total_sum",
        "Unified Memory Totals Summary",
        "Sums over all migrations and page faults of unified memory. The address range is empty "
        "unless there were migrations both ways and faults of both sides.",
        (
            Column("Total HtoD Migration Size", "mem", "bytes migrated to the device"),
            Column("Total DtoH Migration Size", "mem", "bytes migrated to the host"),
            Column("Total CPU Page Faults", doc="faults of the CPU"),
            Column("Total GPU PageFaults", doc="faults of the GPU"),
            Column("Minimum Virtual Address", "addr", "lowest address"),
            Column("Maximum Virtual Address", "addr", "highest address"),
        ),
        _TOTALS,
        aliases=("unifiedmemorytotals",),
        needs=_UNIFIED,
    ),
    Report(
        "um_cpu_page_faults_sum",
        "Unified Memory CPU Page Faults Summary",
        "Page faults of the CPU by the instruction that touched the page. Most first.",
        (
            Column("CPU Page Faults", doc="number of faults"),
            Column("CPU Instruction Address", doc="code that touched the page"),
        ),
        _BY_INSTRUCTION,
        aliases=("umcpupagefaults",),
        needs=(CPU_FAULTS,),
    ),
]
