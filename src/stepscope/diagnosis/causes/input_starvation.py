"""The device waits for the next batch."""

from __future__ import annotations

from stepscope.analysis.silence import (
    BATCH_PINNED,
    BATCH_UPLOADED,
    EVIDENCE,
    NAMED_INPUT,
    OS_WAIT,
)
from stepscope.diagnosis.cause import Case, Cause, Detection, idle_figure

_ID = "input_starvation"


def detect(case: Case) -> Detection | None:
    """Idle time in which the training thread was getting input."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    segments = case.explanation.gaps.segments
    codes = set(segments["evidence"][case.explanation.segments_of(_ID)].tolist())
    weak = codes == {BATCH_UPLOADED}
    pinned = BATCH_PINNED in codes
    why = [EVIDENCE[c] for c in (NAMED_INPUT, OS_WAIT, BATCH_PINNED, BATCH_UPLOADED) if c in codes]
    where = case.place(_ID)
    inside = " in {range}" if where.range else ""
    says = f"the GPU waits for the next batch{inside}"
    if why:
        says += f" ({why[0]})"
    if weak:
        says += "; without annotations, other host work between steps looks the same"
    do = [
        "raise DataLoader(num_workers=...) until the wait disappears, with "
        "persistent_workers=True and prefetch_factor=4",
        "move decoding and augmentation off the training thread, or prepare the data offline",
        "keep pin_memory=True and copy with non_blocking=True, so that the copy overlaps too",
    ]
    if pinned:
        do.insert(0, "the batch is prepared and pinned on the training thread itself: set "
                  "num_workers to 2 or more")  # fmt: skip
    return Detection(
        time_ns=time,
        unsure_ns=case.idle_ns("launch_bound"),
        direct_ns=case.direct_ns(_ID),
        says=says,
        texts=where.texts(),
        do=do,
        figures=[idle_figure(_ID)],
        where=where,
        next_capture=(
            "torch.profiler.profile(activities=[CPU, CUDA], with_stack=True), or "
            "nsys profile -t cuda,nvtx,osrt --pytorch=autograd-nvtx python train.py"
            if weak or not codes - {-1}
            else None
        ),
    )


CAUSE = Cause(
    id=_ID,
    title="Input starvation",
    definition=(
        "The GPU is idle because the next batch is not ready: the training thread loads, decodes "
        "or waits for it, and enqueues the next step only afterwards."
    ),
    look_alikes=(
        "host_compute is host work that is not loading: told apart by annotations (dataload, "
        "DataLoader.__next__), Python functions of the input pipeline, waits in the operating "
        "system, and by what the thread does next (pin and upload a batch). blocking_copy is the "
        "upload itself. A slow loader that hides behind the GPU costs nothing and is not reported."
    ),
    prediction="the step without the idle time spent getting input",
    reference="docs/how-it-works.md, idle time",
    min_share=0.05,
    detect=detect,
)
