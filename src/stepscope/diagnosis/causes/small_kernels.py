"""Time lost between kernels that were enqueued in time."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure

_ID = "small_kernels"


def detect(case: Case) -> Detection | None:
    """Idle time of the device's own turnaround."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    return Detection(
        time_ns=time,
        direct_ns=case.direct_ns(_ID),
        says=(
            "the kernels are so short that the GPU's own turnaround between two of them takes a "
            "noticeable part of the step"
        ),
        do=[
            "merge kernels: torch.compile, fused optimizers, channels_last where layouts differ",
            "give each kernel more work: larger batches",
        ],
        figures=[
            idle_figure(_ID),
            Figure(
                "kernels",
                "count",
                "SELECT count(*) FROM gpu_op WHERE kind = 'kernel' AND {lane} AND {window}",
            ),
        ],
    )


CAUSE = Cause(
    id=_ID,
    title="Small kernels",
    definition=(
        "From the end of one kernel to the start of the next, already enqueued one the GPU needs "
        "about 1 us. Thousands of short kernels a step make that add up."
    ),
    look_alikes="launch_bound waits for the host; here the host was in time.",
    prediction="the step without the turnaround gaps; fusion cannot remove all of them",
    reference="docs/how-it-works.md, idle time",
    min_share=0.10,
    detect=detect,
)
