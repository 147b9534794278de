"""Counters of the GPU, over all, by kernel or by range."""

from __future__ import annotations

import pyarrow as pa

from stepscope.jobs.recipes.catalog.nvtx_gpu_proj_sum import projected
from stepscope.jobs.recipes.counters import SPREAD, SPREAD_SQL
from stepscope.jobs.recipes.recipe import (
    IDENTITY,
    Capture,
    Chart,
    Figure,
    Option,
    Output,
    Recipe,
    Values,
)
from stepscope.reports.needs import Need
from stepscope.trace.errors import UsageError

_SAMPLES = Need(
    "counters of the GPU",
    "metric_sample",
    "nsys profile --gpu-metrics-devices=all",
    "metric_sample WHERE device IS NOT NULL",
)
_COLUMNS = ("name", "device", "metric", *SPREAD)
_BY = {
    "device": "SELECT 'whole capture' AS name, device::BIGINT, metric, {spread} "
    "FROM metric_sample WHERE device IS NOT NULL GROUP BY ALL ORDER BY ALL",
    # the longest ones only: there may be a million
    "kernel": "SELECT coalesce(op.short_name, op.name) AS name, sample.device::BIGINT, metric, "
    "{spread} FROM metric_sample AS sample JOIN (SELECT * FROM kernel ORDER BY duration_ns DESC, "
    "id LIMIT {longest}) AS op ON sample.time_ns >= op.start_ns AND sample.time_ns < op.end_ns "
    "AND sample.device = coalesce(op.device, 0) GROUP BY ALL ORDER BY ALL",
    "range": "SELECT op.name, sample.device::BIGINT, metric, {spread} FROM metric_sample AS sample "
    "JOIN (SELECT * FROM {ranges} AS every ORDER BY duration_ns DESC, name, start_ns "
    "LIMIT {longest}) AS op ON sample.time_ns >= op.start_ns AND sample.time_ns < op.end_ns "
    "WHERE sample.device IS NOT NULL GROUP BY ALL ORDER BY ALL",
}


def _run(capture: Capture, values: Values) -> pa.Table:
    by = str(values["by"])
    if by not in _BY:
        raise UsageError(f"by is {by!r}; give one of {', '.join(_BY)}")
    statement = _BY[by].replace("{spread}", SPREAD_SQL).replace("{ranges}", projected("true"))
    return capture.table(statement, _COLUMNS, values)


RECIPE = Recipe(
    "gpu_metric_util_sum",
    "GPU Metric Summary",
    "Samples of the GPU's counters: all of them, those within the longest kernels, or those within "
    "the longest ranges projected onto the GPU. A name without a sample inside it has no row. The "
    "device is the physical GPU, which is taken for the one of the same number in the process.",
    _run,
    (
        Output(
            "all_stats",
            "One counter of one name, all devices; the median is that of the devices' medians.",
            {"name": "kernel or range, or whole capture", "metric": "counter", **SPREAD},
            "SELECT name, metric, sum(samples)::BIGINT AS samples, "
            "sum(mean * samples) / sum(samples) AS mean, median(median) AS median, "
            "min(min) AS min, max(max) AS max FROM part GROUP BY ALL ORDER BY name, metric",
            ("name", "metric"),
        ),
        Output(
            "rank_stats",
            "One counter of one name on one device of one rank.",
            {
                **IDENTITY,
                "name": "kernel or range, or whole capture",
                "device": "physical GPU",
                "metric": "counter",
                **SPREAD,
            },
            "SELECT rank, capture, name, device, metric, samples, mean, median, min, max FROM part "
            "ORDER BY rank, name, device, metric",
            ("rank", "name", "device", "metric"),
        ),
    ),
    charts=(
        Chart("heat", "rank_stats", "Mean of each counter by rank", "mean", x="rank", y="metric"),
        Chart("bar", "all_stats", "Mean of each counter", "mean", y="metric", group="name"),
    ),
    figures=(
        Figure("samples", "samples", "count", "SELECT sum(samples) FROM all_stats"),
        Figure("counters", "counters", "count", "SELECT count(DISTINCT metric) FROM all_stats"),
    ),
    options=(
        Option("by", "device, kernel or range", "device"),
        Option("longest", "so many of the longest kernels or ranges count", 100, 1, 100_000),
    ),
    needs=(_SAMPLES,),
    source="`nsys recipe` of the same name",
)
