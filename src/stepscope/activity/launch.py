"""Link GPU operations to the host calls that enqueued them."""

from __future__ import annotations

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import Frame, IntArray, distinct


def launching_calls(gpu: Frame, api: Frame) -> IntArray:
    """Row of the CUDA call that enqueued each GPU operation.

    The link is the correlation id within one process (a correlation id alone is ambiguous when
    several processes are captured together). Where several calls carry one id (a runtime call and
    the driver call inside it), the earliest counts: it is the one the program made.

    Args:
        gpu: ``gpu_op`` rows with ``process_id`` and ``correlation_id``.
        api: ``api_call`` rows sorted by start, with ``process_id`` and ``correlation_id``.

    Returns:
        Rows of ``api``; -1 where no call is recorded.
    """
    calls = np.flatnonzero(api["correlation_id"] > 0)
    if not len(calls) or not len(gpu):
        return np.full(len(gpu), -1, np.int64)
    processes = distinct_values(
        np.concatenate((distinct(gpu["process_id"]), distinct(api["process_id"])))
    )
    span = int(max(gpu["correlation_id"].max(), api["correlation_id"].max())) + 1

    def key_of(frame: Frame) -> IntArray:
        if len(processes) == 1:
            return frame["correlation_id"]
        return np.searchsorted(processes, frame["process_id"]) * span + frame["correlation_id"]

    gpu_key, api_key = key_of(gpu), key_of(api)[calls]
    known = gpu["correlation_id"] > 0
    size = span * len(processes)
    if size <= 8 * (len(gpu) + len(api)) + 1_000_000:
        # Ids are counters, so a table indexed by id is small and needs no sorting.
        row_of = np.full(size, -1, np.int64)
        row_of[api_key[::-1]] = calls[::-1]
        return np.where(known, row_of[np.where(known, gpu_key, 0)], -1)
    order = np.argsort(api_key, kind="stable")
    found = np.searchsorted(api_key[order], gpu_key)
    found = np.minimum(found, len(order) - 1)
    hit = known & (api_key[order][found] == gpu_key)
    return np.where(hit, calls[order][found], -1)
