"""Time lost between kernels that were enqueued in time."""

from __future__ import annotations

import numpy as np

from stepscope.diagnosis.cause import Case, Cause, Detection, idle_figure, kernel_figures, located
from stepscope.diagnosis.frameworks import in_jax
from stepscope.intervals.distinct import distinct_values
from stepscope.kernels.kernels import CATEGORY_NAMES

_ID = "small_kernels"


@in_jax(
    "compile larger parts at once (jax.jit), so that XLA fuses neighbours and makes one "
    "command buffer of them",
    "give each kernel more work: larger batches, jax.vmap or jax.lax.scan instead of Python loops",
)
def detect(case: Case) -> Detection | None:
    """Idle time of the device's own turnaround."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    explanation = case.explanation
    kernels = explanation.kernels
    ended = explanation.gaps.segments["op"][explanation.segments_of(_ID)]
    rows = distinct_values(ended[ended >= 0])
    category = kernels.category[rows]
    most = np.bincount(category[category >= 0], minlength=len(CATEGORY_NAMES))
    what = f"of the category {CATEGORY_NAMES[int(np.argmax(most))]}" if most.any() else "copies"
    return Detection(
        time_ns=time,
        direct_ns=case.direct_ns(_ID),
        message=(
            "the kernels are so short that the GPU's own turnaround between two of them takes a "
            "noticeable part of the step; most of them are {what}"
        ),
        texts={"what": what},
        recommendations=[
            "merge kernels: torch.compile, fused optimizers, channels_last where layouts differ",
            "capture the step in a CUDA graph, where the turnaround is shorter: "
            "torch.compile(model, mode='reduce-overhead')",
            "give each kernel more work: larger batches",
        ],
        figures=[
            idle_figure(_ID),
            *kernel_figures(),
        ],
        where=located(kernels.attribution.heaviest(rows)),
    )


CAUSE = Cause(
    id=_ID,
    title="Small kernels",
    definition=(
        "From the end of one kernel to the start of the next, already enqueued one the GPU needs "
        "about 1 us. Thousands of short kernels per step make that add up."
    ),
    differential=(
        "launch_bound waits for the host; here the host was in time. unfused_optimizer and "
        "fusion_opportunity name the kernels themselves, where those cost more than the turnaround."
    ),
    prediction="the step without the turnaround gaps; fusion cannot remove all of them",
    reference="docs/how-it-works.md, idle time",
    min_share=0.10,
    detect=detect,
)
