"""How much of the communication compute covers."""

from __future__ import annotations

import pyarrow as pa

from stepscope.intervals import total, union
from stepscope.jobs.recipes.catalog.nccl_gpu_time_util_map import NCCL_KERNELS, kinds_of_kernels
from stepscope.jobs.recipes.recipe import IDENTITY, Capture, Chart, Figure, Output, Recipe, Values

_NAMES = ("process_id", "device", "nccl_ns", "compute_ns", "overlap_ns", "busy_ns", "span_ns")


def _run(capture: Capture, values: Values) -> pa.Table:
    del values
    rows = []
    for (process, device), found in kinds_of_kernels(capture).items():
        nccl, compute, both, every = (
            total(union(*found[f"{name}_percent"]))
            for name in ("nccl", "compute", "overlap", "all")
        )
        start, end = found["all_percent"]
        span = int(end.max() - start.min())
        rows.append(dict(zip(_NAMES, (process, device, nccl, compute, both, every, span),
                             strict=True)))  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.int64()) for name in _NAMES]))


RECIPE = Recipe(
    "nccl_gpu_overlap_trace",
    "NCCL GPU Overlap",
    "Time in which kernels of NCCL (by name) and other kernels run on each device, and in which "
    "both do. Times are unions: what runs beside itself counts once.",
    _run,
    (
        Output(
            "overlap",
            "One device of one rank.",
            {
                **IDENTITY,
                "process_id": "operating-system process id",
                "device": "CUDA device ordinal inside the process",
                "nccl_ns": "kernels of NCCL run, ns",
                "compute_ns": "other kernels run, ns",
                "overlap_ns": "both run, ns",
                "busy_ns": "any kernel runs, ns",
                "span_ns": "from the first kernel's begin to the last one's end, ns",
                "hidden_share": "overlap as a share of the NCCL time",
                "exposed_share": "NCCL time that nothing covers, as a share of the span",
            },
            "SELECT rank, capture, process_id, device, nccl_ns, compute_ns, overlap_ns, busy_ns, "
            "span_ns, overlap_ns / nullif(nccl_ns, 0) AS hidden_share, "
            "(nccl_ns - overlap_ns) / nullif(span_ns, 0) AS exposed_share FROM part "
            "ORDER BY rank, process_id, device",
            ("rank", "process_id", "device"),
        ),
    ),
    charts=(
        Chart(
            "line",
            "overlap",
            "Share of the NCCL time that compute covers, by rank",
            "hidden_share",
            x="rank",
        ),
        Chart("bar", "overlap", "Time of NCCL kernels by rank", "nccl_ns", y="rank", unit="ns"),
    ),
    figures=(
        Figure(
            "hidden",
            "NCCL time that compute covers",
            "share",
            "SELECT sum(overlap_ns) / nullif(sum(nccl_ns), 0) FROM overlap",
        ),
        Figure(
            "exposed",
            "of the span, NCCL alone",
            "share",
            "SELECT sum(nccl_ns - overlap_ns) / nullif(sum(span_ns), 0) FROM overlap",
        ),
    ),
    needs=(NCCL_KERNELS,),
    source="`nsys recipe` of the same name (since 2024)",
)
