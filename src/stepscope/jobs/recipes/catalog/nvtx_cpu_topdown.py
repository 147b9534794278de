"""What the CPU's pipeline waits for, by range."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Option, Output, Recipe
from stepscope.reports.needs import RANGES, Need

_WORDS = ("frontend bound", "backend bound", "retiring", "bad speculation")
_NAMED = (
    "device IS NULL AND ("
    + " OR ".join(f"replace(lower(metric), '_', ' ') LIKE '%{word}%'" for word in _WORDS)
    + ")"
)
_TOPDOWN = Need(
    "top-down counters of the CPU (frontend bound, backend bound, retiring, bad speculation)",
    "cpu_metrics",
    "nsys profile --cpu-core-metrics with the top-down metrics, on a CPU that has them (Grace)",
    f"metric_sample WHERE {_NAMED}",
)

RECIPE = Recipe(
    "nvtx_cpu_topdown",
    "NVTX CPU Top-down",
    "Mean of the top-level metrics of the CPU's top-down analysis, over the samples inside the "
    "ranges of each text. A text with fewer samples than asked for has no row.",
    f"""
    SELECT range.name, metric, count(*)::BIGINT, avg(value)::DOUBLE
    FROM range JOIN (SELECT * FROM metric_sample WHERE {_NAMED}) AS sample
        ON sample.time_ns >= range.start_ns AND sample.time_ns < range.end_ns
    WHERE range.kind IN ('pushpop', 'startend', 'annotation') AND range.name IS NOT NULL
    GROUP BY ALL HAVING count(*) >= {{min_samples}} ORDER BY ALL
    """,
    (
        Output(
            "all_stats",
            "One metric of one text, all ranks.",
            {
                "name": "text of the range",
                "metric": "metric",
                "samples": "how many samples",
                "mean": "mean, in the metric's unit",
            },
            "SELECT name, metric, sum(samples)::BIGINT AS samples, "
            "sum(mean * samples) / sum(samples) AS mean FROM part GROUP BY ALL "
            "ORDER BY name, metric",
            ("name", "metric"),
        ),
        Output(
            "rank_stats",
            "One metric of one text on one rank.",
            {
                **IDENTITY,
                "name": "text of the range",
                "metric": "metric",
                "samples": "how many samples",
                "mean": "mean, in the metric's unit",
            },
            "SELECT rank, capture, name, metric, samples, mean FROM part "
            "ORDER BY rank, name, metric",
            ("rank", "name", "metric"),
        ),
    ),
    columns=("name", "metric", "samples", "mean"),
    charts=(
        Chart("heat", "all_stats", "Mean of each metric by range", "mean", x="metric", y="name"),
        Chart("bar", "all_stats", "Mean of each metric by range", "mean", y="name", group="metric"),
    ),
    figures=(Figure("samples", "samples", "count", "SELECT sum(samples) FROM all_stats"),),
    options=(Option("min-samples", "fewest samples of a text on a rank", 3, 1),),
    needs=(_TOPDOWN, RANGES),
    source="`nsys recipe` of the same name",
)
