"""Time in which stages of a pipeline stand still."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stepscope.intervals import overlap_per_window, subtract, union
from stepscope.jobs.recipes.recipe import IDENTITY, Capture, Chart, Figure, Output, Recipe, Values
from stepscope.jobs.recipes.stepping import ALIGNED, steps_of
from stepscope.reports.needs import Need

_SEND = "kind = 'kernel' AND name ILIKE '%SendRecv%'"
_POINT_TO_POINT = Need(
    "kernels that send and receive",
    "gpu_op",
    "nsys profile -t cuda,nvtx on a job with pipeline parallelism",
    f"gpu_op WHERE {_SEND}",
)


def _run(capture: Capture, values: Values) -> pa.Table:
    found = steps_of(capture, values)
    standing = np.zeros(found.num_rows, np.int64)
    of = {name: found[name].to_numpy() for name in ("process_id", "device", "start_ns", "wall_ns")}
    for e in capture.explained:
        ops = e.gpu.ops
        rows = (of["process_id"] == e.gpu.process_id) & (of["device"] == e.gpu.device)
        kernels = ops.equals("kind", "kernel")
        sends = kernels & e.gpu.is_communication & ops.that("name", lambda n: "SendRecv" in n)
        others = kernels & ~e.gpu.is_communication
        alone = subtract(
            union(ops["start_ns"][sends], ops["end_ns"][sends]),
            union(ops["start_ns"][others], ops["end_ns"][others]),
        )
        begin = of["start_ns"][rows]
        standing[rows] = overlap_per_window(alone, begin, begin + of["wall_ns"][rows])
    return found.append_column("standing_ns", pa.array(standing))


RECIPE = Recipe(
    "pipeline_bubbles",
    "Pipeline Bubbles",
    "Time of a step in which a stage does no compute: it stands in a kernel that sends or "
    "receives (what NCCL runs for point-to-point communication, and for all-to-all), or nothing "
    "runs on it at all. The time that a transfer itself takes is within the first.",
    _run,
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
                "standing_ns": "only sends and receives run, ns",
                "idle_ns": "nothing runs, ns",
                "bubble_share": "both, as a share of the step",
            },
            "SELECT rank, capture, process_id, device, count(*)::BIGINT AS steps, "
            "avg(wall_ns) AS wall_ns, avg(standing_ns) AS standing_ns, avg(idle_ns) AS idle_ns, "
            "sum(standing_ns + idle_ns) / nullif(sum(wall_ns), 0) AS bubble_share FROM part "
            "GROUP BY ALL ORDER BY rank, process_id, device",
            ("rank", "process_id", "device"),
        ),
        Output(
            "bubbles",
            "One steady step on one device of one rank.",
            {
                **IDENTITY,
                "process_id": "operating-system process id",
                "device": "CUDA device ordinal inside the process",
                "step": "number of the step",
                "wall_ns": "its length, ns",
                "standing_ns": "only sends and receives run, ns",
                "idle_ns": "nothing runs, ns",
                "bubble_percent": "both, percent of the step",
            },
            f"{ALIGNED} SELECT rank, capture, process_id, device, step, wall_ns, standing_ns, "
            "idle_ns, 100.0 * (standing_ns + idle_ns) / nullif(wall_ns, 0) AS bubble_percent "
            "FROM placed ORDER BY rank, process_id, device, step",
            ("rank", "process_id", "device", "step"),
        ),
    ),
    charts=(
        Chart(
            "heat",
            "bubbles",
            "Share of each step without compute, by rank",
            "bubble_percent",
            x="step",
            y="rank",
            unit="percent",
        ),
        Chart(
            "bar",
            "rank_stats",
            "Time in sends and receives alone, in a step",
            "standing_ns",
            y="rank",
            unit="ns",
        ),
    ),
    figures=(
        Figure(
            "bubble",
            "bubble, mean of all devices",
            "share",
            "SELECT avg(bubble_share) FROM rank_stats",
        ),
        Figure(
            "worst_rank",
            "rank with the largest",
            "",
            "SELECT rank FROM rank_stats ORDER BY bubble_share DESC, rank LIMIT 1",
        ),
    ),
    needs=(_POINT_TO_POINT,),
)
