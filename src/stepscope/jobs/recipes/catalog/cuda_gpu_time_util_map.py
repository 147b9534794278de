"""When kernels ran, by device."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import Capture
from stepscope.jobs.recipes.utilisation import Spans, map_recipe, spans_by_device
from stepscope.reports.needs import KERNELS


def _spans(capture: Capture) -> dict[tuple[int, int], dict[str, Spans]]:
    rows = spans_by_device(capture, "SELECT process_id, device, start_ns, end_ns FROM kernel")
    return {device: {"kernel_percent": found} for device, found in rows.items()}


RECIPE = map_recipe(
    "cuda_gpu_time_util_map",
    "CUDA GPU Time Utilization Heatmap",
    "Share of the time in which at least one kernel ran.",
    _spans,
    {"kernel_percent": "kernels run, percent of the time"},
    (KERNELS,),
)
