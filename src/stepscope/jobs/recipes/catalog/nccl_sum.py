"""NCCL calls by name."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.needs import Need

NCCL_RANGES = """(
    SELECT * FROM host_range WHERE end_ns > start_ns AND CASE
        WHEN EXISTS (SELECT 1 FROM range WHERE domain = 'NCCL') THEN domain = 'NCCL'
        ELSE name ILIKE 'nccl%' END
)"""
"""Ranges of NCCL's domain; where there is none, those whose names begin with nccl."""
NCCL = Need(
    "ranges of NCCL",
    "range",
    "nsys profile -t cuda,nvtx (NCCL marks its calls itself), or torch.profiler",
    "range WHERE domain = 'NCCL' OR name ILIKE 'nccl%'",
)

RECIPE = summary_recipe(
    "nccl_sum",
    "NCCL Summary",
    "Calls of NCCL by name, on the host: those of NCCL's own NVTX domain, or, where a capture has "
    "none, ranges whose names begin with nccl.",
    NCCL_RANGES,
    (NCCL,),
    quartiles="linear",
    what="call",
)
