"""Multi-tensor kernels of an optimizer pass over the parameters again and again."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.lever import Found, Lever, changed, of_lever
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import BoolArray

_ID: Final = "fused_optimizer"

_ARGUMENTS: Final = re.compile(
    r"(?:Binary|Unary|Pointwise|Ternary)Op\w*Functor<[^<>]*?,\s*(?:\(int\))?(\d+),\s*"
    r"(?:\(int\))?(\d+),\s*(?:\(int\))?(\d+)"
)
"""A functor's numbers: lists of tensors, those that it reads, the one that it writes."""
_SAME_TWICE: Final = re.compile(r"PointwiseOp\w*Functor<.*std::multiplies")
"""The square of the gradient: both factors are one list, which is read once."""

ADAM_PASSES: Final = 7
"""A fused Adam reads parameter, gradient and two moments, and writes all but the gradient."""
MOMENTUM_PASSES: Final = 5
"""The same with one moment."""
SPREAD: Final = 1.15
"""The upper end allows so much more for a fused kernel's shorter lists of tensors."""


def find(case: Case, taken: BoolArray) -> Found | None:
    """Multi-tensor kernels of PyTorch's foreach optimizers, by the passes that each makes."""
    kernels = case.explanation.kernels
    ops = kernels.gpu.ops
    traffic = np.array([_traffic(text) for text in ops.texts["name"]] + [0])
    mine = (traffic[ops["name"]] > 0) & kernels.steady & ~taken & kernels.in_phase("optimizer")
    rows = np.flatnonzero(mine)
    if not len(rows):
        return None
    names = ops.texts["name"]
    codes = distinct_values(ops["name"][rows])
    spent = np.bincount(ops["name"][rows], weights=kernels.duration_ns[rows])[codes]
    moved = traffic[codes]
    # the quickest tells what one pass takes; others that take a multiple pass more than once
    passes = np.maximum(np.rint(spent / moved / (spent / moved).min()), 1)
    operations = {word for code in codes for word in _WORDS if word in names[code]}
    if {"std::divides", "Sqrt"} <= operations:
        needed = ADAM_PASSES
    elif "Sqrt" not in operations and passes.sum() > 1:
        needed = MOMENTUM_PASSES
    else:
        return None
    all_passes = float((passes * moved).sum())
    if needed >= all_passes:
        return None
    each = spent / moved / passes
    old = kernels.duration_ns[rows]
    new = old * (needed / all_passes)
    repair = changed(rows, old, np.rint(new), needed * each.min(), needed * each.max() * SPREAD)
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


_WORDS: Final = ("std::divides", "Sqrt", "Lerp", "std::multiplies", "std::plus")


def _traffic(name: str) -> int:
    """Passes over the parameters' size that one launch makes; 0 for other kernels."""
    if "multi_tensor_apply_kernel" not in name:
        return 0
    found = _ARGUMENTS.search(name)
    if found is None:
        return 0
    read = int(found.group(2))
    return max(read - 1 if _SAME_TWICE.search(name) else read, 1) + 1


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
