"""Memory of every device over its capture."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Output, Recipe
from stepscope.reports.needs import Need

_MEMORY = Need(
    "allocations",
    "memory_event",
    "nsys profile --cuda-memory-usage=true, torch.profiler with profile_memory=True, or "
    "stepscope run --record memory",
    "memory_event WHERE device >= 0",
)
_SQL = """
SELECT process_id, device, count(*)::BIGINT, count(*) FILTER (bytes > 0)::BIGINT,
    max(held)::BIGINT, arg_max(time_ns, held)::BIGINT, max(total_reserved_bytes)::BIGINT,
    arg_max(held, place)::BIGINT
FROM (
    SELECT *, row_number() OVER (PARTITION BY process_id, device ORDER BY time_ns, id) AS place,
        coalesce(total_allocated_bytes, sum(bytes) OVER (
            PARTITION BY process_id, device ORDER BY time_ns, id)) AS held
    FROM (SELECT *, row_number() OVER () AS id FROM memory_event WHERE device >= 0)
) GROUP BY ALL
"""

RECIPE = Recipe(
    "memory_by_rank",
    "Memory by Rank",
    "Most memory that each device held, by what the source counts: PyTorch's caching allocator "
    "(allocated and reserved), or allocations of the driver while it was recorded, which do not "
    "hold what was allocated before.",
    _SQL,
    (
        Output(
            "memory",
            "One device of one rank, most memory first.",
            {
                **IDENTITY,
                "process_id": "operating-system process id",
                "device": "CUDA device ordinal inside the process",
                "events": "allocations and releases",
                "allocations": "of them, allocations",
                "peak_bytes": "most that was allocated at one time, bytes",
                "peak_time_ns": "when, ns since the capture's origin",
                "reserved_peak_bytes": "most that the caching allocator held of the driver, bytes; "
                "null where it is not recorded",
                "last_bytes": "allocated at the end, bytes",
            },
            "SELECT rank, capture, * EXCLUDE (input, rank, capture) FROM part "
            "ORDER BY peak_bytes DESC, rank, process_id, device",
            ("rank", "process_id", "device"),
        ),
    ),
    columns=(
        *("process_id", "device", "events", "allocations", "peak_bytes", "peak_time_ns"),
        *("reserved_peak_bytes", "last_bytes"),
    ),
    charts=(
        Chart(
            "bar",
            "memory",
            "Most memory allocated at one time, by rank",
            "peak_bytes",
            y="rank",
            unit="bytes",
        ),
        Chart(
            "bar",
            "memory",
            "Most memory reserved, by rank",
            "reserved_peak_bytes",
            y="rank",
            unit="bytes",
        ),
        Chart(
            "line",
            "memory",
            "Most memory allocated, over the ranks",
            "peak_bytes",
            x="rank",
            unit="bytes",
        ),
    ),
    figures=(
        Figure("peak", "most memory of a rank", "bytes", "SELECT max(peak_bytes) FROM memory"),
        Figure(
            "peak_rank",
            "that rank",
            "",
            "SELECT rank FROM memory ORDER BY peak_bytes DESC, rank LIMIT 1",
        ),
        Figure(
            "spread",
            "most over least, less 1",
            "share",
            "SELECT max(peak_bytes) / nullif(min(peak_bytes), 0) - 1 FROM memory",
        ),
    ),
    needs=(_MEMORY,),
)
