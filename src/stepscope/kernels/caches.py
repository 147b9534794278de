"""Keys and values that are kept by putting new ones behind the old, all of which is copied."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.kernels.kernels import PHASES, Kernels
from stepscope.trace.frame import BoolArray

WRITTEN_NS: Final = 3_000
"""What it takes to write new keys or values to their place (2.6 us on an H100)."""
_JOINED: Final = re.compile("CatArray")
_BEFORE: Final = re.compile(rb"J[Jc]*(?=A)")


def grown_caches(kernels: Kernels) -> BoolArray:
    """Operations that join tensors right before attention, in a program without a backward pass.

    Between them and the attention only copies stand, as of heads that are repeated. Rotary angles
    join halves as well, but multiply them before the attention.
    """
    found = np.zeros(len(kernels.gpu.ops), bool)
    ops, compute = kernels.gpu.ops, kernels.gpu.is_compute & kernels.steady
    if (kernels.phase[compute] == PHASES.index("backward")).any():
        return found
    order = kernels.order[compute[kernels.order]]
    joins = ops.matches("name", _JOINED)[order]
    attends = kernels.in_category("attention")[order]
    if not (joins.any() and attends.any()):
        return found
    letters = np.full(len(order), ord("."), np.uint8)
    copies = kernels.in_category("copy")[order]
    for letter, which in (("c", copies), ("J", joins), ("A", attends)):
        letters[which] = ord(letter)
    for match in _BEFORE.finditer(letters.tobytes()):
        found[order[match.start() : match.end()]] = True
    return found & ops.matches("name", _JOINED)
