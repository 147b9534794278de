"""What goes over NVLink."""

from __future__ import annotations

from stepscope.jobs.recipes.counters import counter_recipe
from stepscope.reports.needs import Need

RECIPE = counter_recipe(
    "nvlink_sum",
    "NVLink Summary",
    "Counters of NVLink: throughput in percent of the peak, or in the counter's own unit.",
    "metric ILIKE '%nvlink%'",
    Need(
        "counters of NVLink",
        "metric_sample",
        "nsys profile --gpu-metrics-devices=all (a metric set with NVLink: --gpu-metrics-set)",
        "metric_sample WHERE metric ILIKE '%nvlink%'",
    ),
    "`nsys recipe` of the same name",
)
