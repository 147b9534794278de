"""Projected ranges by name."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.catalog.nvtx_gpu_proj_trace import PROJECTED, PROJECTED_RANGES
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK, RANGES


def projected(condition: str) -> str:
    """Rows for a FROM: the projections of the ranges of which a condition holds."""
    return f"""(
        WITH {PROJECTED_RANGES}
        SELECT range.name AS name, gpu_ns AS duration_ns, gpu_start_ns AS start_ns,
            gpu_start_ns + gpu_ns AS end_ns
        FROM projected JOIN range ON range.id = projected.id
        WHERE gpu_ns > 0 AND {condition}
    )"""


RECIPE = summary_recipe(
    "nvtx_gpu_proj_sum",
    "NVTX GPU Projection Summary",
    f"Ranges that launched GPU work, by text, whatever their domain. {PROJECTED}",
    projected("true"),
    (RANGES, CUDA_CALLS, GPU_WORK),
    quartiles="linear",
    what="text of the range",
)
