"""How unevenly the work of a step is spread over the ranks."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Output, Recipe
from stepscope.jobs.recipes.stepping import PARTS, steps_of
from stepscope.reports.needs import GPU_WORK

_MEANS = ", ".join(f"avg({name}) AS {name}" for name in ("wall_ns", *PARTS, "kernels"))
_EACH = " UNION ALL ".join(
    f"SELECT '{name.removesuffix('_ns')}' AS part, avg({name}) AS mean_ns, min({name}) AS min_ns, "
    f"max({name}) AS max_ns, max({name}) / nullif(avg({name}), 0) - 1 AS imbalance_share, "
    f"arg_max(rank, {name}) AS most_rank, arg_min(rank, {name}) AS least_rank FROM rank_stats"
    for name in ("wall_ns", *PARTS)
)

RECIPE = Recipe(
    "imbalance",
    "Imbalance of the Ranks",
    "Mean steady step of every device by what it is made of. The imbalance of a part is the "
    "greatest over the mean, less one: 0 where all are equal.",
    steps_of,
    (
        Output(
            "rank_stats",
            "One device of one rank: means over its steady steps.",
            {
                **IDENTITY,
                "process_id": "operating-system process id",
                "device": "CUDA device ordinal inside the process",
                "steps": "steady steps",
                "wall_ns": "length of a step, ns",
                **PARTS,
                "kernels": "kernels of a step",
            },
            f"SELECT rank, capture, process_id, device, count(*)::BIGINT AS steps, {_MEANS} "
            "FROM part GROUP BY ALL ORDER BY rank, process_id, device",
            ("rank", "process_id", "device"),
        ),
        Output(
            "imbalance",
            "One part of a step over all devices, the one that differs most in time first.",
            {
                "part": "part of a step",
                "mean_ns": "mean of the devices, ns",
                "min_ns": "least, ns",
                "max_ns": "greatest, ns",
                "imbalance_share": "greatest over mean, less 1",
                "most_rank": "rank that has the greatest",
                "least_rank": "rank that has the least",
            },
            f"SELECT * FROM ({_EACH}) ORDER BY max_ns - mean_ns DESC, part",
            ("part",),
        ),
        Output(
            "parts",
            "One part of the mean step of one device of one rank.",
            {
                "rank": IDENTITY["rank"],
                "device": "CUDA device ordinal inside the process",
                "part": "part of a step",
                "mean_ns": "mean over the steady steps, ns",
                "beyond_mean_ns": "beyond the mean of all devices, ns",
            },
            " UNION ALL ".join(
                f"SELECT rank, device, '{name.removesuffix('_ns')}' AS part, {name} AS mean_ns, "
                f"{name} - avg({name}) OVER () AS beyond_mean_ns FROM rank_stats"
                for name in PARTS
            )
            + " ORDER BY rank, device, part",
            ("rank", "device", "part"),
        ),
    ),
    charts=(
        Chart(
            "heat",
            "parts",
            "Each part beyond the mean of all devices, by rank",
            "beyond_mean_ns",
            x="rank",
            y="part",
            unit="ns",
            middle=True,
        ),
        Chart(
            "bar",
            "parts",
            "What a step is made of, by rank",
            "mean_ns",
            y="rank",
            group="part",
            unit="ns",
            top=64,
        ),
    ),
    figures=(
        Figure(
            "compute_imbalance",
            "imbalance of compute",
            "share",
            "SELECT imbalance_share FROM imbalance WHERE part = 'compute'",
        ),
        Figure(
            "most_compute",
            "rank with most compute",
            "",
            "SELECT most_rank FROM imbalance WHERE part = 'compute'",
        ),
        Figure("step", "mean step", "ns", "SELECT avg(wall_ns) FROM rank_stats"),
    ),
    needs=(GPU_WORK,),
)
