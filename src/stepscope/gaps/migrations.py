"""Pages of managed memory that move: no call asks for the copy, so who was late is known otherwise.

A page goes to the host when the CPU touches it. A device that idles until then waits for a host
that has been computing, or whatever else it did. Where the program called for the move
(``cudaMemPrefetchAsync``), in either direction, that call is what the copy waited for. A page that
goes to an idle device without such a call tells nothing.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.activity.device import UNKNOWN_NS, GpuTimeline
from stepscope.trace.frame import IntArray

MIGRATION: Final = re.compile("^UVM ")
"""Kinds of copies that move pages of managed memory."""

_TO_HOST: Final = "UVM DtoH"
_PREFETCH: Final = re.compile(r"^(cuda|cu|hip)MemPrefetch")


def asked_ns(gpu: GpuTimeline, ops: IntArray, idle_from_ns: IntArray) -> IntArray:
    """When moves of pages were asked for that each ended a time in which the device was idle.

    Args:
        gpu: the device.
        ops: rows of ``GPU.ops``.
        idle_from_ns: since when the device was idle.

    Returns:
        The begin of the first prefetch in the idle time; else, of pages that go to the host, the
        moment in which they begin to; ``UNKNOWN_NS`` for all else.
    """
    kinds = gpu.ops.texts.get("copy_kind", [])
    if not any(map(MIGRATION.search, kinds)):
        return np.full(len(ops), UNKNOWN_NS)
    start = gpu.ops["start_ns"][ops]
    found = np.where(gpu.ops.equals("copy_kind", _TO_HOST)[ops], start, UNKNOWN_NS)
    api = gpu.host.api
    prefetches = np.sort(api["start_ns"][api.matches("name", _PREFETCH)])
    if len(prefetches):
        at = np.searchsorted(prefetches, idle_from_ns)
        first = prefetches[np.minimum(at, len(prefetches) - 1)]
        asked = gpu.ops.matches("copy_kind", MIGRATION)[ops]
        asked &= (at < len(prefetches)) & (first < start)
        found = np.where(asked, first, found)
    return found
