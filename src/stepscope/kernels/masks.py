"""Masks that are given to fused attention as tensors, though they may only say "causal"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.kernels.fused_attention import RATE_SPREAD, causal_share
from stepscope.kernels.kernels import Kernels, Repair, changed
from stepscope.trace.frame import BoolArray
from stepscope.trace.shapes import shapes_of

_FUSED: Final = re.compile(r"^aten::_.*(cudnn|efficient).*attention")
"""Operators of fused attention that take a mask; FlashAttention's take none."""
_LONG: Final = 256
"""Positions from which on half of the arithmetic is worth a remark."""


@dataclass(frozen=True)
class GivenMask:
    """Fused attention under a mask that all samples and heads share.

    Attributes:
        repair: its kernels, and what they take where the mask is causal and said to be so; at most
            nothing changes.
        positions: rows and columns of the largest such mask.
    """

    repair: Repair
    positions: int


def given_mask(kernels: Kernels, mine: BoolArray) -> GivenMask | None:
    """Fused attention whose mask, by its recorded shape, may be causal.

    Args:
        kernels: the device's kernels.
        mine: operations that are looked at.
    """
    table, operator = kernels.attribution.operators, kernels.attribution.operator
    rows = np.flatnonzero(kernels.in_category("attention") & mine & (operator >= 0))
    if not len(rows) or "input_shapes" not in table:
        return None
    codes = [table[name][operator[rows]].tolist() for name in ("name", "input_shapes")]
    keys = list(zip(*codes, strict=True))
    found = {key: _mask_of(kernels, *key) for key in set(keys)}
    positions, heads = np.array([found[key] for key in keys]).T
    known = positions > 0
    rows, positions, heads = rows[known], positions[known], heads[known]
    if not len(rows):
        return None
    old = kernels.duration_ns[rows]
    share = causal_share(kernels, positions.astype(np.float64), heads.astype(np.float64))
    new = old * np.minimum(share, 1.0)
    total = float(new.sum())
    repair = changed(rows, old, new, total / RATE_SPREAD, float(old.sum()), stay=True)
    return GivenMask(repair, int(positions.max()))


def _mask_of(kernels: Kernels, name: int, shapes: int) -> tuple[int, int]:
    """Positions of a mask for all samples and heads alike, and the heads' width; (0, 0) of none."""
    texts = kernels.attribution.operators.texts
    if shapes < 0 or not _FUSED.search(texts["name"][name]):
        return 0, 0
    tensors = [shape for shape in shapes_of(texts["input_shapes"][shapes]) if len(shape) == 4]
    if not tensors:
        return 0, 0
    operands = tensors[0]
    for shape in tensors[1:]:
        shared, rows, columns = math.prod(shape[:-2]), shape[-2], shape[-1]
        if shared == 1 and rows == columns >= _LONG and rows in operands and shape != operands:
            return rows, operands[-1]
    return 0, 0
