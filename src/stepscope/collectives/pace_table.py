"""Every device's own need for a step beside what it took: who is late, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.collectives.late import own_time
from stepscope.collectives.stages import stages_of
from stepscope.intervals.distinct import among

if TYPE_CHECKING:
    from stepscope.collectives.job import Collectives
    from stepscope.trace.frame import AnyArray

COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "steps": "steady steps that all devices share",
    "step_ns": "their mean length, ns",
    "need_ns": "what a step would take if this device waited for no other and nothing recorded it: "
    "the longer of what its device and what its host does but wait, ns a step",
    "host_need_ns": "what its host does but wait for the device, with the cost of recording, ns a "
    "step; 0 where the steps are not known",
    "waiting_ns": "collectives wait for the last rank and nothing covers it, ns a step",
    "transfer_ns": "communication moves data and nothing covers it, ns a step",
    "blocking_ns": "part of transfer_ns that other work was ready to follow, ns a step",
    "bubble_ns": "part of waiting_ns in sends and receives, ns a step",
    "absent_ns": "likely waiting for ranks that are not there, ns a step",
    "compute_ns": "compute kernels run, ns a step",
    "alone_ns": "part of compute_ns in which no communication runs, ns a step",
    "stage": "place in the pipeline, 0 at one end of it; -1 where it is in none",
    "kernels": "compute kernels a step",
    "threads": "threads they are launched with, a step",
    "operations": "matched communication operations in these steps",
    "joined_last": "of them, those that this device began last",
    "late": "whether the others wait for this device",
    "imposed_ns": "how much sooner the job would go on if the late devices were in time, ns a "
    "step; 0 where the device is not late",
}


def columns(c: Collectives) -> dict[str, AnyArray]:
    """One value a device for each of ``COLUMNS``."""
    parts, matched = c.parts, c.matched
    n = len(matched.ranks)
    late = c.lateness
    instances = matched.instances
    inside = c.step_of(instances.last_start_ns) >= 0
    several = inside & (instances.members > 1)
    devices = late.devices if late is not None and not late.common else []
    stage = np.full(n, -1, np.int64)
    for place, members in enumerate(stages_of(c)):
        stage[members] = place
    is_late = among(np.arange(n), devices)

    def mean(values: AnyArray) -> AnyArray:
        if not len(parts):
            return np.zeros(n, np.int64)
        means: AnyArray = np.rint(values.mean(axis=0)).astype(np.int64)
        return means

    imposed = round(late.imposed_ns) if late is not None else 0
    return {
        "rank": np.array([rank.rank for rank in matched.ranks], np.int64),
        "process_id": np.array([rank.process_id for rank in matched.ranks], np.int64),
        "device": np.array([rank.device for rank in matched.ranks], np.int64),
        "steps": np.full(n, len(parts)),
        "step_ns": np.full(n, round(c.step_ns)),
        "need_ns": mean(own_time(parts, c.paces)),
        "host_need_ns": np.array([round(pace.need_ns) for pace in c.paces], np.int64),
        **{
            f"{name}_ns": mean(getattr(parts, name))
            for name in ("waiting", "transfer", "blocking", "bubble", "absent", "compute", "alone")
        },
        "stage": stage,
        "kernels": mean(c.work.kernels),
        "threads": mean(c.work.threads),
        "operations": np.array([int(inside[rank.instance].sum()) for rank in matched.ranks]),
        "joined_last": np.bincount(instances.last[several], minlength=n),
        "late": is_late,
        "imposed_ns": np.where(is_late, imposed, 0),
    }
