"""How long kernels are."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Option, Output, Recipe
from stepscope.reports.needs import KERNELS

_EDGE = "pow(2.0, bin / 2.0)"

RECIPE = Recipe(
    "cuda_gpu_kern_hist",
    "CUDA GPU Kernel Duration Histogram",
    "Number of kernels by duration. Bins are half powers of two: each is 1.41 times as wide as the "
    "one before it, so that kernels of a microsecond and of a millisecond have the same room.",
    """
    SELECT floor(2 * log2(greatest(duration_ns, 1)))::BIGINT, count(*)::BIGINT,
        sum(duration_ns)::BIGINT
    FROM kernel WHERE {name} = '' OR coalesce(short_name, name) = {name} OR name = {name}
    GROUP BY ALL
    """,
    (
        Output(
            "histogram",
            "One bin, all ranks together.",
            {
                "bin": "number of the bin",
                "from_ns": "shortest duration in it, ns",
                "until_ns": "durations in it are shorter than this, ns",
                "kernels": "how many",
                "total_ns": "their time, ns",
                "kernels_percent": "share of all kernels, percent",
                "total_percent": "share of the time of all kernels, percent",
            },
            f"SELECT bin, {_EDGE} AS from_ns, {_EDGE.replace('bin', '(bin + 1)')} AS until_ns, "
            "sum(kernels)::BIGINT AS kernels, sum(total_ns)::BIGINT AS total_ns, "
            "100.0 * sum(kernels) / sum(sum(kernels)) OVER () AS kernels_percent, "
            "100.0 * sum(total_ns) / sum(sum(total_ns)) OVER () AS total_percent "
            "FROM part GROUP BY bin ORDER BY bin",
            ("bin",),
        ),
        Output(
            "rank_histogram",
            "One bin on one rank.",
            {
                **IDENTITY,
                "bin": "number of the bin",
                "from_ns": "shortest duration in it, ns",
                "kernels": "how many",
                "total_ns": "their time, ns",
            },
            f"SELECT rank, capture, bin, {_EDGE} AS from_ns, kernels, total_ns FROM part "
            "ORDER BY rank, bin",
            ("rank", "bin"),
        ),
    ),
    columns=("bin", "kernels", "total_ns"),
    charts=(
        Chart(
            "line",
            "histogram",
            "Kernels by duration (bins of half powers of two of ns)",
            "kernels",
            x="bin",
        ),
        Chart("line", "histogram", "Time of kernels by duration", "total_ns", x="bin", unit="ns"),
        Chart(
            "heat", "rank_histogram", "Kernels by duration and rank", "kernels", x="bin", y="rank"
        ),
    ),
    figures=(
        Figure("kernels", "kernels", "count", "SELECT sum(kernels) FROM histogram"),
        Figure(
            "short",
            "shorter than 8 us",
            "share",
            "SELECT coalesce(sum(kernels) FILTER (bin < 26), 0) / sum(kernels) FROM histogram",
        ),
    ),
    options=(Option("name", "only kernels of this name, short or whole; empty: all", ""),),
    needs=(KERNELS,),
    source="`nsys recipe` of the same name; the bins are Stepscope's",
)
