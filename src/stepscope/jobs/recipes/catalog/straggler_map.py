"""Which ranks the others wait for, step by step, and why."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Output, Recipe
from stepscope.jobs.recipes.stepping import ALIGNED, STEP, steps_of
from stepscope.reports.needs import GPU_WORK

_OWN = {"own": "own_ns", "compute": "compute_ns", "idle": "idle_ns", "copy": "copy_ns"}
_LATE = ", ".join(
    f"{column} - median({column}) OVER (PARTITION BY step) AS {name}_late_ns"
    for name, column in _OWN.items()
)

RECIPE = Recipe(
    "straggler_map",
    "Straggler Map",
    "A rank's own time is what a step takes without the time in which only communication runs: "
    "ranks step together, so who needs less waits for the others in there. Late is the own time "
    "beyond that of the median rank in the same step; it is negative for those who wait longer. "
    "Its parts say why: more compute (slow GPU, more work), more idle time (the host), copies.",
    steps_of,
    (
        Output(
            "rank_stats",
            "One device of one rank, the latest first.",
            {
                **IDENTITY,
                "process_id": STEP["process_id"],
                "device": STEP["device"],
                "steps": "steps that it shares with the others",
                "own_ns": "mean own time of a step, ns",
                "late_ns": "mean time that it is late in a step, ns",
                "late_share": "the same as a share of the median step",
                "latest_steps": "steps in which no other is later",
                "compute_late_ns": "of it, compute beyond the median rank's, ns",
                "idle_late_ns": "of it, idle time beyond the median rank's, ns",
                "copy_late_ns": "of it, copies beyond the median rank's, ns",
                "reason": "the largest of these: compute, idle or copy",
            },
            """
            SELECT rank, capture, process_id, device, count(*)::BIGINT AS steps,
                avg(own_ns) AS own_ns, avg(own_late_ns) AS late_ns,
                avg(own_late_ns) / nullif(any_value(typical), 0) AS late_share,
                count(*) FILTER (place = 1)::BIGINT AS latest_steps,
                avg(compute_late_ns) AS compute_late_ns, avg(idle_late_ns) AS idle_late_ns,
                avg(copy_late_ns) AS copy_late_ns,
                CASE greatest(avg(compute_late_ns), avg(idle_late_ns), avg(copy_late_ns))
                    WHEN avg(compute_late_ns) THEN 'compute' WHEN avg(idle_late_ns) THEN 'idle'
                    ELSE 'copy' END AS reason
            FROM (SELECT *, median(wall_ns) OVER () AS typical, row_number() OVER (
                PARTITION BY step ORDER BY own_late_ns DESC, rank, process_id, device) AS place
                FROM lateness)
            GROUP BY rank, capture, process_id, device
            ORDER BY late_ns DESC, rank, process_id, device""",
            ("rank", "process_id", "device"),
        ),
        Output(
            "lateness",
            "One step on one device of one rank; steps of one rank alone are left out.",
            {
                **IDENTITY,
                "process_id": STEP["process_id"],
                "device": STEP["device"],
                "step": "number of the step",
                "wall_ns": "its length, ns",
                "own_ns": "of it, the rank's own time, ns",
                "own_late_ns": "own time beyond the median rank's, ns",
                "compute_late_ns": "compute beyond the median rank's, ns",
                "idle_late_ns": "idle time beyond the median rank's, ns",
                "copy_late_ns": "copies and fills beyond the median rank's, ns",
            },
            f"""{ALIGNED}, own AS (
                SELECT *, wall_ns - exposed_communication_ns AS own_ns,
                    exposed_copy_ns + memset_ns AS copy_ns,
                    count(*) OVER (PARTITION BY step) AS there
                FROM placed WHERE again = 1)
            SELECT rank, capture, process_id, device, step, wall_ns, own_ns, {_LATE}
            FROM own WHERE there > 1 ORDER BY rank, process_id, device, step""",
            ("rank", "process_id", "device", "step"),
        ),
    ),
    charts=(
        Chart(
            "heat",
            "lateness",
            "Time that each rank is late, by step",
            "own_late_ns",
            x="step",
            y="rank",
            unit="ns",
            middle=True,
        ),
        Chart(
            "bar",
            "rank_stats",
            "Mean time that each rank is late in a step",
            "late_ns",
            y="rank",
            unit="ns",
        ),
        Chart(
            "heat",
            "lateness",
            "Compute beyond the median rank's",
            "compute_late_ns",
            x="step",
            y="rank",
            unit="ns",
            middle=True,
        ),
        Chart(
            "heat",
            "lateness",
            "Idle time beyond the median rank's",
            "idle_late_ns",
            x="step",
            y="rank",
            unit="ns",
            middle=True,
        ),
    ),
    figures=(
        Figure(
            "latest_rank",
            "rank that is latest",
            "",
            "SELECT rank FROM rank_stats ORDER BY late_ns DESC, rank LIMIT 1",
        ),
        Figure("late", "late by, in a step", "ns", "SELECT max(late_ns) FROM rank_stats"),
        Figure(
            "late_share", "of the median step", "share", "SELECT max(late_share) FROM rank_stats"
        ),
        Figure(
            "reason",
            "because of more",
            "",
            "SELECT reason FROM rank_stats ORDER BY late_ns DESC, rank LIMIT 1",
        ),
    ),
    needs=(GPU_WORK,),
)
