"""Counters of the GPU over time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stepscope.jobs.recipes.recipe import Capture
from stepscope.jobs.recipes.utilisation import Clock, binned, map_recipe
from stepscope.reports.needs import Need

METRICS = {
    "sm_active_percent": ("SMs Active", "sm_active"),
    "sm_issue_percent": ("SM Issue", "sm_issue"),
    "tensor_active_percent": ("Tensor Active", "tensor_active"),
}
"""Column -> how the names of its counters begin, in any writing."""
GPU_METRICS = Need(
    "counters of the GPU (SM Active, SM Issue, Tensor Active)",
    "metric_sample",
    "nsys profile --gpu-metrics-devices=all",
    "metric_sample WHERE "
    + " OR ".join(f"metric ILIKE '{begin}%'" for names in METRICS.values() for begin in names),
)


def _means(capture: Capture, clock: Clock) -> pa.Table:
    found: dict[tuple[int, int], dict[str, object]] = {}
    nothing = np.full(clock.number, np.nan)
    for column, begins in METRICS.items():
        named = " OR ".join(f"metric ILIKE '{begin}%'" for begin in begins)
        rows = capture.source.columns(
            f"SELECT time_ns, coalesce(device, 0)::BIGINT AS device, value FROM metric_sample "
            f"WHERE {named}"
        )
        for device in sorted(set(rows["device"].tolist())):
            of = rows["device"] == device
            columns = found.setdefault((0, device), dict.fromkeys(METRICS, nothing))
            columns[column] = clock.mean(rows["time_ns"][of], rows["value"][of])
    return binned(clock, found, list(METRICS))


RECIPE = map_recipe(
    "gpu_metric_util_map",
    "GPU Metric Utilization Heatmap",
    "Mean of the samples of each counter. The device is the physical GPU; the process is 0.",
    None,
    {
        "sm_active_percent": "cycles in which an SM has work, percent",
        "sm_issue_percent": "cycles in which an SM issues an instruction, percent",
        "tensor_active_percent": "cycles in which tensor cores are active, percent",
    },
    (GPU_METRICS,),
    means=_means,
)
