"""What a fused update of parameters saves over multi-tensor kernels (PyTorch's foreach)."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.kernels.kernels import Kernels, Repair, changed
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

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


def one_pass_ns(kernels: Kernels) -> float:
    """What the kernels of an update take for going once through the parameters, ns a step.

    0 where neither a fused Adam nor foreach kernels are there.
    """
    names = kernels.gpu.ops.texts["name"]
    fused = np.array([bool(_FUSED_ADAM.search(text)) for text in names] + [False])
    rows = np.flatnonzero(fused[kernels.gpu.ops["name"]] & kernels.steady)
    if len(rows):
        return kernels.per_step(float(kernels.duration_ns[rows].sum())) / ADAM_PASSES
    found = _passes(kernels, None)
    if found is None:
        return 0.0
    rows, _, all_passes, _ = found
    return kernels.per_step(float(kernels.duration_ns[rows].sum())) / all_passes


_FUSED_ADAM: Final = re.compile(r"FusedAdam|fused_adam", re.IGNORECASE)


def fused_update(kernels: Kernels, taken: BoolArray | None = None) -> Repair | None:
    """Multi-tensor kernels of PyTorch's foreach optimizers, by the passes that each makes.

    Args:
        kernels: the device's kernels.
        taken: operations that belong to something else already.

    Returns:
        The kernels of the steady steps with what they take when fused; None where there are none,
        or they pass over the parameters no more often than a fused update.
    """
    found = _passes(kernels, taken)
    if found is None:
        return None
    rows, each, all_passes, needed = found
    if not needed or needed >= all_passes:
        return None
    old = kernels.duration_ns[rows]
    new = np.rint(old * (needed / all_passes))
    return changed(rows, old, new, needed * each.min(), needed * each.max() * SPREAD)


def _passes(
    kernels: Kernels, taken: BoolArray | None
) -> tuple[IntArray, AnyArray, float, int] | None:
    """Multi-tensor kernels: rows, what a pass takes in each kind of them, passes, those needed."""
    ops = kernels.gpu.ops
    traffic = np.array([_traffic(text) for text in ops.texts["name"]] + [0])
    mine = (traffic[ops["name"]] > 0) & kernels.steady & kernels.in_phase("optimizer")
    if taken is not None:
        mine &= ~taken
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
    needed = 0
    if {"std::divides", "Sqrt"} <= operations:
        needed = ADAM_PASSES
    elif "Sqrt" not in operations and passes.sum() > 1:
        needed = MOMENTUM_PASSES
    return rows, spent / moved / passes, float((passes * moved).sum()), needed


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
