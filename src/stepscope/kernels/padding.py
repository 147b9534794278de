"""Images that are padded by kernels of their own before convolutions that could pad them."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.intervals.distinct import among, distinct_values
from stepscope.kernels.kernels import LAYOUT_CHANGE, PHASES, SCATTERED_COPY, Kernels
from stepscope.kernels.written_out import made_elements
from stepscope.trace.frame import BoolArray, IntArray

_MOST: Final = 2
"""Elements of a padded image over those of the image, at most."""
_BEFORE: Final = 4
"""Kernels that may stand between padding and the convolution: casts of weights and of the bias."""
_BEHIND: Final = 6
"""Those between the gradient of a convolution's input and the part of it that is cut out: the
gradients of its weights and bias."""


def padded_apart(kernels: Kernels, mine: BoolArray) -> IntArray:
    """Rows of the kernels that pad: the new image is filled, and the image copied into it.

    In the backward pass the gradient of the image is cut out of that of the padded one by a copy of
    as many elements, behind the convolution.

    Args:
        kernels: the device's kernels.
        mine: operations that are looked at.
    """
    order = kernels.order[(kernels.gpu.is_compute & mine)[kernels.order]]
    if not len(order):
        return order
    constants = kernels.of_operation("Fill")[order]
    copies = kernels.gpu.ops.matches("name", SCATTERED_COPY)[order]
    elements = made_elements(kernels, order)
    convolves = kernels.in_category("convolution")[order]
    convolves |= kernels.gpu.ops.matches("name", LAYOUT_CHANGE)[order]
    backward = kernels.phase[order] == PHASES.index("backward")
    copy = np.flatnonzero(copies[1:] & constants[:-1] & ~backward[1:]) + 1
    larger = elements[copy - 1] > elements[copy]
    copy = copy[larger & (elements[copy - 1] <= _MOST * elements[copy])]
    copy = copy[_near(convolves, copy, 1, _BEFORE)]
    if not len(copy):
        return order[:0]
    cut = np.flatnonzero(
        copies & backward & among(elements, distinct_values(elements[copy]).tolist())
    )
    cut = cut[_near(convolves, cut, -1, _BEHIND)]
    cut = cut if len(cut) <= len(copy) else cut[:0]  # others are among them
    found: IntArray = np.sort(order[np.concatenate((copy - 1, copy, cut))])
    return found


def _near(which: BoolArray, at: IntArray, direction: int, most: int) -> BoolArray:
    """Whether one of some kernels follows within so many others, or precedes (direction -1)."""
    found = np.zeros(len(at), bool)
    for distance in range(1, most + 2):
        place = at + direction * distance
        inside = (place >= 0) & (place < len(which))
        found[inside] |= which[place[inside]]
    return found
