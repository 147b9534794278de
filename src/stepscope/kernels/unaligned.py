"""GEMMs in kernels for operands that the tensor cores cannot load whole, told by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.kernels.kernels import MATH_NAMES, Kernels
from stepscope.trace.frame import BoolArray, FloatArray

NAME: Final = re.compile(r"_align([124])(?!\d)")
"""cutlass's kernels for operands that are aligned to so many elements."""
BY_NAME: Final = (0.3, 0.5, 0.85)
"""What such a kernel takes on the grid, as a share, where no shapes are recorded and both are of
one design: least, usual, most."""
OLDER: Final = {(math, at): BY_NAME for math in MATH_NAMES for at in (1, 2)}
NEWER_BY_NAME: Final = {
    ("16bit", 1): (0.13, 0.19, 0.42),
    ("16bit", 2): (0.31, 0.37, 0.70),
    ("16bit", 4): (0.31, 0.37, 0.70),
    ("tf32", 1): (0.33, 0.46, 0.85),
    ("tf32", 2): (0.33, 0.46, 0.85),
}
"""The same by arithmetic and alignment from Hopper on, whose own kernels load whole tiles and take
no other operands, so that kernels of Turing and Ampere are run instead: 15 GEMMs of 64 to 50304
columns in both passes (H100, cuBLAS of CUDA 13; nine of ten lie between the ends)."""
NEWER: Final = 9
"""Major compute capability from which on that is so."""


@dataclass(frozen=True)
class Unaligned:
    """Such GEMMs; arrays have one value an operation of ``GPU.ops``.

    Attributes:
        found: whether an operation is one.
        share: (least, usual, most) of its time that it takes with aligned operands.
    """

    found: BoolArray
    share: FloatArray


def unaligned(
    kernels: Kernels, shares: Mapping[tuple[str, int], tuple[float, ...]] = NEWER_BY_NAME
) -> Unaligned:
    """GEMMs whose kernels are made for operands that are not aligned to 16 bytes.

    Args:
        kernels: the device's kernels.
        shares: what aligned ones take by arithmetic and alignment; those measured on Hopper.
    """
    names = kernels.gpu.ops.texts["name"]
    at = np.array([int(m.group(1)) if (m := NAME.search(name)) else 0 for name in names] + [0])
    aligned = at[kernels.gpu.ops["name"]]
    share = np.ones((3, len(aligned)))
    found = np.zeros(len(aligned), bool)
    for (math, to), ends in shares.items():
        such = (aligned == to) & (kernels.math == MATH_NAMES.index(math))
        share[:, such] = np.array(ends)[:, None]
        found |= such
    return Unaligned(found & kernels.in_category("matmul"), share)


def measured(kernels: Kernels) -> bool:
    """Whether the shares that were measured hold: of cuBLAS in PyTorch, on Hopper or newer."""
    torch = bool(kernels.gpu.ops.matches("name", words.TORCH_NAME).any())
    return torch and kernels.capability >= NEWER
