"""Gradients that are asked whether they hold NaN, one after another.

``torch.autograd.detect_anomaly`` runs ``isnan().any()`` on each gradient of the backward pass and
reads the answer back: a kernel that compares, a reduction by "or", and a copy that the host waits
for. All of it goes with the mode.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.intervals import inside_any
from stepscope.kernels.kernels import CATEGORY_NAMES, PHASES, Kernels
from stepscope.trace.frame import IntArray

ANY: Final = r"reduce_kernel<.*\bor_kernel"
"""Name of a reduction by "or", as a regular expression."""
_ANY: Final = re.compile(ANY)
_ANSWER_BYTES: Final = 8
_MOSTLY: Final = 0.8


def nan_checks(kernels: Kernels) -> IntArray:
    """Rows of ``GPU.ops`` of such checks in the steady window.

    Args:
        kernels: the device's kernels.

    Returns:
        Ascending; empty where most of them are outside the backward pass, or there are none.
    """
    ops = kernels.gpu.ops
    order = kernels.order[kernels.steady[kernels.order]]
    seen = np.flatnonzero(~ops.equals("kind", "memset")[order])
    row = order[seen]
    asks = ops.matches("name", _ANY)[row]
    compares = kernels.category[row] == CATEGORY_NAMES.index("elementwise")
    reads = ops.equals("copy_kind", "DtoH")[row] & (ops["bytes"][row] <= _ANSWER_BYTES)
    at = 2 + np.flatnonzero(compares[:-2] & asks[1:-1] & reads[2:])
    backward = kernels.phase[row[at - 1]] == PHASES.index("backward")
    if not len(at) or backward.mean() < _MOSTLY:
        return np.zeros(0, np.int64)
    # and what is cleared between
    found: IntArray = np.sort(order[inside_any(seen[at - 2], seen[at] + 1, len(order))])
    return found
