"""The device is busy: no finding."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection


def detect(case: Case) -> Detection | None:
    """Never a finding: it is the verdict when there is none."""
    del case
    return None


CAUSE = Cause(
    id="gpu_bound_healthy",
    title="GPU-bound, healthy",
    definition=(
        "The GPU computes nearly all of the step. What is left to gain lies in the kernels: their "
        "precision, fusion and efficiency, not in keeping the GPU fed."
    ),
    differential=(
        "A GPU that is busy waiting inside a collective is not computing; exposed communication "
        "is accounted for separately."
    ),
    prediction="nothing is predicted: there is nothing to repair",
    reference="docs/how-it-works.md",
    min_share=1.0,
    takes_time=False,
    remedies=(
        "read what is left in the kernels, below the budget of the step in `stepscope diagnose "
        "CAPTURE`",
        "go on to single kernels: `stepscope run --backend ncu --examine CAPTURE -- python "
        "train.py`",
    ),
    detect=detect,
)
