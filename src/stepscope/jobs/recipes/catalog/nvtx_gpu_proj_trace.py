"""Every projected range."""

from __future__ import annotations

from stepscope.jobs.recipes.listings import listing
from stepscope.reports.registry import reports

RECIPE = listing(reports()["nvtx_gpu_proj_trace"], value="projected_duration_ns")
