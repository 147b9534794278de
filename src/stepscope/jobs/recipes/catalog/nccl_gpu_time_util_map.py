"""When communication and compute kernels ran, by device."""

from __future__ import annotations

from stepscope.intervals import intersect, union
from stepscope.jobs.recipes.recipe import Capture
from stepscope.jobs.recipes.utilisation import Spans, map_recipe, spans_by_device
from stepscope.reports.needs import Need

_KERNELS = "SELECT process_id, device, start_ns, end_ns FROM kernel WHERE "
NCCL_KERNEL = "regexp_matches(name, '^(void )?nccl', 'i')"
"""How a kernel of NCCL is known, as ``nsys recipe`` does since 2024: by the begin of its name."""
NCCL_KERNELS = Need(
    "kernels of NCCL",
    "gpu_op",
    "nsys profile -t cuda,nvtx on a job of several GPUs",
    f"gpu_op WHERE kind = 'kernel' AND {NCCL_KERNEL}",
)


def kinds_of_kernels(capture: Capture) -> dict[tuple[int, int], dict[str, Spans]]:
    """All kernels, those of NCCL, the others, and what both cover, by device."""
    none = capture.source.columns(f"{_KERNELS} false")
    empty = none["start_ns"], none["end_ns"]
    every = spans_by_device(capture, f"{_KERNELS} true")
    nccl = spans_by_device(capture, f"{_KERNELS} {NCCL_KERNEL}")
    rest = spans_by_device(capture, f"{_KERNELS} NOT {NCCL_KERNEL}")
    found = {}
    for device, spans in every.items():
        ours, others = nccl.get(device, empty), rest.get(device, empty)
        found[device] = {
            "all_percent": spans,
            "nccl_percent": ours,
            "compute_percent": others,
            "overlap_percent": intersect(union(*ours), union(*others)),
        }
    return found


RECIPE = map_recipe(
    "nccl_gpu_time_util_map",
    "NCCL GPU Time Utilization Heatmap",
    "Share of the time in which kernels ran: any, those of NCCL (by name), others, and both at "
    "once.",
    kinds_of_kernels,
    {
        "all_percent": "any kernel runs, percent of the time",
        "nccl_percent": "kernels of NCCL run, percent of the time",
        "compute_percent": "other kernels run, percent of the time",
        "overlap_percent": "both run, percent of the time",
    },
    (NCCL_KERNELS,),
)
