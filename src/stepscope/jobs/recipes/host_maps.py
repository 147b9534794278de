"""What threads of a process did beside the kernels of its devices."""

from __future__ import annotations

import numpy as np

from stepscope.intervals import intersect, union
from stepscope.jobs.recipes.recipe import Capture
from stepscope.jobs.recipes.utilisation import Spans, spans_by_device


def calls_beside_kernels(
    capture: Capture, rows: str, column: str
) -> dict[tuple[int, int], dict[str, Spans]]:
    """Kernels, calls of the same process and what both cover, by device.

    Args:
        capture: the capture.
        rows: what follows FROM in the statement for the calls.
        column: what the calls' column is called.
    """
    kernels = spans_by_device(capture, "SELECT process_id, device, start_ns, end_ns FROM kernel")
    calls = spans_by_device(
        capture, f"SELECT process_id, 0 AS device, start_ns, end_ns FROM {rows}"
    )
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    found = {}
    for (process, device), busy in kernels.items():
        called = calls.get((process, 0), nothing)
        found[process, device] = {
            "kernel_percent": busy,
            column: called,
            "overlap_percent": intersect(union(*busy), union(*called)),
        }
    return found
