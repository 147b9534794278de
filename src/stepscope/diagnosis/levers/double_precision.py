"""Kernels that compute in double precision, which training seldom wants."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.lever import Found, Lever
from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.kernels import MATH_NAMES, NOT_VECTORISED, changed
from stepscope.kernels.precision import in_precision
from stepscope.trace.frame import BoolArray

_ID: Final = "double_precision"
_DOUBLE: Final = re.compile(r"<(bool, )?double\b|lambda\((bool, )?double[,)]")
"""Doubles as the first type of a template or as an operand of a function, behind a mask perhaps:
numbers that kernels in single precision are given (rates of an optimizer) stand elsewhere."""
_BY_ELEMENT: Final = re.compile(f"{NOT_VECTORISED}|index|roll")
"""Kernels that compute where each element is, gathers and rotations among them."""

MOVED, BY_ELEMENT = 0.5, 0.9
"""Time of kernels in single precision over double: of those that move tensors, and of those that
compute places. 0.47 to 0.53, and 0.89 and 0.95 (500 kernels of a training step, H100)."""
LEAST: Final = 0.7
"""Part of that that may be left: where a GPU has few units for doubles, kernels wait for these."""
MOST: Final = 1.4


def find(case: Case, taken: BoolArray) -> Found | None:
    """Kernels in double precision, GEMMs and convolutions among them."""
    kernels = case.explanation.kernels
    products = kernels.in_category(*PRODUCTS) & (kernels.math == MATH_NAMES.index("fp64"))
    others = kernels.gpu.ops.matches("name", _DOUBLE) & ~kernels.in_category(*PRODUCTS)
    rows = np.flatnonzero((products | others) & kernels.gpu.is_compute & kernels.steady & ~taken)
    if not len(rows):
        return None
    old = kernels.duration_ns[rows]
    by_element = kernels.gpu.ops.matches("name", _BY_ELEMENT)[rows]
    new = old * np.where(by_element, BY_ELEMENT, MOVED)
    of_product = products[rows]
    new[of_product] = in_precision(kernels, rows[of_product], "fp32")
    total = float(new.sum())
    return Found(
        repair=changed(rows, old, np.rint(new).astype(np.int64), LEAST * total, MOST * total),
        message=(
            "{kernels_per_step} kernels a step compute in double precision and take "
            "{kernels_ns_per_step}; in single precision they move half of the bytes and take some "
            "{changed_ns_per_step}"
        ),
        recommendations=[
            "make data single precision where it is read: NumPy's arrays are float64, and "
            "torch.from_numpy and torch.tensor keep that; .float(), or astype(np.float32)",
            "one such tensor makes double precision of all that is computed with it: look where "
            "the first of these kernels stands",
            "torch.get_default_dtype() tells whether torch.set_default_dtype was called",
        ],
        next_capture=None if len(kernels.attribution.operators) else captures.STACKS,
    )


LEVER = Lever(
    id=_ID,
    title="Double precision",
    definition=(
        "Kernels compute in float64, twice the bytes of float32; many GPUs have 1/32 or 1/64 of "
        "the arithmetic for it. Mostly nobody wanted it: NumPy's arrays have that type, and what "
        "is computed with one of them has it, too."
    ),
    differential=(
        "memory_bound_kernels and fusion_opportunity say how the same kernels could move less; "
        "lower_precision is about GEMMs in TF32 and half precision."
    ),
    prediction=(
        "kernels that move tensors take half of their time, those that compute places of elements "
        "nine tenths, GEMMs what single precision takes"
    ),
    reference="measured kernels of a training step in both types (H100, PyTorch 2.11)",
    find=find,
    refines=("memory_bound_kernels", "fusion_opportunity", "inefficient_kernel"),
    order=0,
)
