"""NVML's GPU performance monitoring (GPM): how busy the parts of a GPU are. Hopper and newer.

Each value is the mean between two samples of the hardware's counters. No permission is needed, and
other tools may use it at the same time. Numbers and layouts are those of ``nvml.h``.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

_VERSION = 1
_MIB = 1 << 20
METRICS: dict[int, tuple[str, float]] = {
    1: ("graphics_percent", 1.0),
    2: ("sm_active_percent", 1.0),
    3: ("sm_occupancy_percent", 1.0),
    5: ("tensor_active_percent", 1.0),
    10: ("dram_bandwidth_percent", 1.0),
    11: ("fp64_active_percent", 1.0),
    12: ("fp32_active_percent", 1.0),
    13: ("fp16_active_percent", 1.0),
    20: ("pcie_transmitted_bytes_per_second", _MIB),
    21: ("pcie_received_bytes_per_second", _MIB),
    60: ("nvlink_received_bytes_per_second", _MIB),
    61: ("nvlink_transmitted_bytes_per_second", _MIB),
}
"""NVML's number of a metric -> counter, and what its value is multiplied by."""


class _Text(ctypes.Structure):
    _fields_ = (
        ("short", ctypes.c_char_p),
        ("long", ctypes.c_char_p),
        ("unit", ctypes.c_char_p),
    )


class _Metric(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("result", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("text", _Text),
    )


class _Request(ctypes.Structure):
    # The header declares room for more metrics, 98 to 333 by version; NVML reads the stated number.
    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("before", ctypes.c_void_p),
        ("after", ctypes.c_void_p),
        ("metrics", _Metric * 333),
    )


class _Support(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("supported", ctypes.c_uint))


def supported(library: Any, handle: Any) -> bool:
    """Whether a GPU has these counters and the driver gives them.

    Args:
        library: an open NVML.
        handle: the device's.
    """
    query = getattr(library, "nvmlGpmQueryDeviceSupport", None)
    answer = _Support(version=_VERSION)
    return bool(query is not None and query(handle, ctypes.byref(answer)) == 0 and answer.supported)


class Gpm:
    """The counters of one GPU, between one sample and the next."""

    def __init__(self, library: Any, handle: Any, samples: list[Any]) -> None:
        self._library = library
        self._handle = handle
        self._samples = samples
        self._taken = False
        self._request = _Request(version=_VERSION, count=len(METRICS))

    def sample(self) -> list[tuple[str, float]]:
        """(counter, mean since the last sample); nothing at the first call, or on failure."""
        before, after = self._samples
        if self._library.nvmlGpmSampleGet(self._handle, after):
            self._taken = False
            return []
        self._samples = [after, before]
        if not self._taken:
            self._taken = True
            return []
        request = self._request
        request.before, request.after = before, after
        for place, number in enumerate(METRICS):
            request.metrics[place].id = number
        if self._library.nvmlGpmMetricsGet(ctypes.byref(request)):
            return []
        found = []
        for place, (name, factor) in enumerate(METRICS.values()):
            one = request.metrics[place]
            if one.result == 0 and math.isfinite(one.value):
                found.append((name, one.value * factor))
        return found

    def close(self) -> None:
        """Give the samples back."""
        for one in self._samples:
            self._library.nvmlGpmSampleFree(one)
        self._samples = []


def opened(library: Any, handle: Any) -> Gpm | None:
    """The counters of a GPU; None where there are none.

    Args:
        library: an open NVML.
        handle: the device's.
    """
    if not supported(library, handle):
        return None
    samples = []
    for _ in range(2):
        one = ctypes.c_void_p()
        if library.nvmlGpmSampleAlloc(ctypes.byref(one)):
            return None
        samples.append(one)
    return Gpm(library, handle, samples)
