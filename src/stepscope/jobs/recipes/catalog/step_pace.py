"""How long the steps of every rank take."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Output, Recipe
from stepscope.jobs.recipes.stepping import ALIGNED, STEP, steps_of
from stepscope.reports.needs import GPU_WORK

RECIPE = Recipe(
    "step_pace",
    "Pace of the Steps",
    "Length of every steady step on every device, with what it is made of. Steps are found as "
    "stepscope diagnose finds them; warm-up and steps that the capture cuts do not count. The "
    "steps of ranks are put beside each other by the machines' clocks where these fit.",
    steps_of,
    (
        Output(
            "stats",
            "One device of one rank, over its steady steps.",
            {
                **IDENTITY,
                "process_id": STEP["process_id"],
                "device": STEP["device"],
                "steps": "steady steps",
                "median_ns": "median length, ns",
                "mean_ns": "mean length, ns",
                "min_ns": "shortest, ns",
                "max_ns": "longest, ns",
                "std_ns": "sample standard deviation, ns",
            },
            "SELECT rank, capture, process_id, device, count(*)::BIGINT AS steps, "
            "median(wall_ns) AS median_ns, avg(wall_ns) AS mean_ns, min(wall_ns) AS min_ns, "
            "max(wall_ns) AS max_ns, coalesce(stddev_samp(wall_ns), 0) AS std_ns FROM part "
            "GROUP BY ALL ORDER BY rank, process_id, device",
            ("rank", "process_id", "device"),
        ),
        Output(
            "pace",
            "One steady step on one device of one rank.",
            {**IDENTITY, **STEP},
            f"{ALIGNED} SELECT rank, capture, {', '.join(STEP)} FROM placed "
            "ORDER BY rank, process_id, device, step",
            ("rank", "process_id", "device", "step"),
        ),
    ),
    charts=(
        Chart(
            "heat", "pace", "Length of each step by rank", "wall_ns", x="step", y="rank", unit="ns"
        ),
        Chart("line", "pace", "Length of each step", "wall_ns", x="step", group="rank", unit="ns"),
        Chart(
            "heat",
            "pace",
            "Idle time of each step by rank",
            "idle_ns",
            x="step",
            y="rank",
            unit="ns",
        ),
    ),
    figures=(
        Figure("median_step", "median step", "ns", "SELECT median(wall_ns) FROM pace"),
        Figure("longest_step", "longest step", "ns", "SELECT max(wall_ns) FROM pace"),
        Figure("steps", "steady steps of all devices", "count", "SELECT count(*) FROM pace"),
    ),
    needs=(GPU_WORK,),
)
