"""Gradients of indexing whose rows are indexed again and again.

PyTorch sorts the indices of ``table[index]`` and lets one warp add up all gradients of a row, one
after another. Where a table of twenty rows is indexed by every pixel, most of the device waits for
twenty warps. The gradient of ``embedding`` is summed by many warps a row, and those of
``index_select`` and ``gather`` by atomic additions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.kernels.kernels import Kernels
from stepscope.trace.frame import BoolArray, FloatArray

_GRADIENT: Final = re.compile(r"indexing_backward_kernel(\w*)<(?:at::|c10::)?(\w+)")
_OF_A_THREAD: Final = 4  # elements of a row
_WARP: Final = 32
_BYTES: Final = {"double": 8, "long": 8, "Half": 2, "BFloat16": 2}
_PASSES: Final = 3.0
"""Over the gradients, in which many blocks sum them: parts of a row, their sums, and the sort."""
_SPREAD: Final = 3.0


@dataclass(frozen=True)
class RepeatedRows:
    """Gradients of indexing; arrays have one value an operation of ``GPU.ops``.

    Attributes:
        found: which operations they are.
        new_ns: what each takes where many blocks sum it; 0 for others. Of short rows it is an upper
            bound, as a launch tells whole warps only.
    """

    found: BoolArray
    new_ns: FloatArray

    @property
    def least_ns(self) -> FloatArray:
        """The least that each may take."""
        return self.new_ns / _SPREAD

    @property
    def most_ns(self) -> FloatArray:
        """The most, if the kernel is replaced."""
        return self.new_ns * _SPREAD


def repeated_rows(kernels: Kernels) -> RepeatedRows:
    """Such gradients, and what they would take, by what they are launched for.

    Args:
        kernels: the device's kernels.
    """
    matches = [_GRADIENT.search(name) for name in kernels.gpu.ops.texts["name"]]
    if not any(matches) or not kernels.attainable_bandwidth:
        none = np.zeros(len(kernels.gpu.ops))
        return RepeatedRows(none > 0, none)
    # a block has a warp for each of its indices, and the grid's second dimension cuts long rows
    each = [
        (1 if one[1] == "_stride_1" else _WARP * (1 if one[1] else _OF_A_THREAD))
        * _BYTES.get(one[2], 4)
        if one
        else 0
        for one in matches
    ]
    of_index = np.array([*each, 0], np.float64)[kernels.gpu.ops["name"]]
    indices = kernels.blocks * kernels.threads / _WARP  # those of a row that is cut count again
    bandwidth = kernels.attainable_bandwidth
    return RepeatedRows(of_index > 0, indices * of_index * _PASSES / bandwidth * 1e9)
