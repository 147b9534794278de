"""Multi-tensor kernels of an optimizer pass over the parameters again and again."""

from __future__ import annotations

from typing import Final

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.lever import Found, Lever, of_lever
from stepscope.kernels.multi_tensor import fused_update
from stepscope.trace.frame import BoolArray

_ID: Final = "fused_optimizer"


def find(case: Case, taken: BoolArray) -> Found | None:
    """Multi-tensor kernels of PyTorch's foreach optimizers, by the passes that each makes."""
    repair = fused_update(case.explanation.kernels, taken)
    if repair is None:
        return None
    passes_sql = "SELECT count(DISTINCT name) FROM gpu_op WHERE {gpu} AND " + of_lever(_ID).replace(
        "gpu_op_id IN", "id IN"
    )
    return Found(
        repair=repair,
        message=(
            "the optimizer updates many parameters in one kernel (foreach), but each operation of "
            "the update passes over all of them again: {kernels_per_step} kernels a step of "
            "{operations} operations take {kernels_ns_per_step}, one fused update some "
            "{changed_ns_per_step}"
        ),
        recommendations=[
            "torch.optim.AdamW(model.parameters(), lr=..., fused=True); Adam, SGD and Adagrad "
            "take it, too",
            "torch.compile the optimizer's step() where there is no fused one",
        ],
        figures=[Figure("operations", "count", passes_sql)],
    )


LEVER = Lever(
    id=_ID,
    title="Fused optimizer",
    definition=(
        "PyTorch's default optimizers on a GPU (foreach) launch one kernel an operation for many "
        "parameters: multiply, lerp, addcmul, square root, divide, add, addcdiv. Each reads and "
        "writes the parameters' size again, some twenty passes for AdamW. A fused optimizer makes "
        "seven."
    ),
    differential=(
        "the cause unfused_optimizer loops over the parameters one by one; it is much slower, and "
        "a finding. A fused update has a kernel of its own name and is not counted."
    ),
    prediction=(
        "the time of the kernels times the passes that a fused update makes over those that they "
        "make; a pass takes what it takes here. The range goes from the quickest kernel's pass to "
        "the slowest one's"
    ),
    reference="PyTorch: torch.optim, the parameters fused and foreach",
    find=find,
    instead=("unfused_optimizer",),
    order=1,
)
