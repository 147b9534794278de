"""NVML through ctypes: which GPUs there are, and their counters."""

from __future__ import annotations

import csv
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.capture import gpm
from stepscope.capture.libraries import load
from stepscope.capture.lines import KeptLines

_TEXT_BYTES = 96
_FLUSH_S = 0.5
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_GPU_TEMPERATURE = 0


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine."""

    index: int
    name: str
    uuid: str
    handle: Any


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """An open NVML.

    Raises:
        OSError: there is no NVML here, or it does not work; the message says why.
    """

    def __init__(self) -> None:
        library = load("libnvidia-ml.so.1", "libnvidia-ml.so")
        if library is None:
            raise OSError("libnvidia-ml is not installed, so there is no NVIDIA driver here")
        self._library = library
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise OSError(f"{name} is missing in this driver")
        code = function(*arguments)
        if code:
            text = self._library.nvmlErrorString
            text.restype = ctypes.c_char_p
            raise OSError(f"{name}: {(text(code) or b'').decode('utf-8', 'replace')}")

    def _text(self, name: str, *before: Any) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(name, *before, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace")

    def driver(self) -> str:
        """Version of the driver."""
        return self._text("nvmlSystemGetDriverVersion")

    def cuda(self) -> str:
        """Newest CUDA version that the driver supports."""
        number = ctypes.c_int()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def gpus(self) -> list[Gpu]:
        """The GPUs that this user may see."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            name = self._text("nvmlDeviceGetName", handle)
            found.append(Gpu(index, name, self._text("nvmlDeviceGetUUID", handle), handle))
        return found

    def sample(self, gpu: Gpu) -> Iterator[tuple[str, float]]:
        """(counter, value) of what this GPU and driver can tell now."""
        for name, read in _COUNTERS.items():
            try:
                value = read(self, gpu.handle)
            except OSError:
                continue
            yield name, value

    def has_gpm(self, gpu: Gpu) -> bool:
        """Whether the GPU and its driver have GPM counters (Hopper and newer)."""
        return gpm.supported(self._library, gpu.handle)

    def open_gpm(self, gpu: Gpu) -> gpm.Gpm | None:
        """The GPM counters of a GPU; None where there are none."""
        return gpm.opened(self._library, gpu.handle)

    def number(self, name: str, handle: Any, *before: Any) -> float:
        """A counter that is one unsigned number."""
        value = ctypes.c_uint()
        self._call(name, handle, *before, ctypes.byref(value))
        return float(value.value)

    def reasons(self, handle: Any) -> float:
        """Bits of what holds the clocks down."""
        value = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(value))
        return float(value.value)

    def memory_used(self, handle: Any) -> float:
        """Bytes of device memory in use."""
        value = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(value))
        return float(value.used)

    def energy(self, handle: Any) -> float:
        """Energy used since the driver was loaded, joules."""
        value = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(value))
        return value.value / 1000

    def utilization(self, handle: Any) -> float:
        """Percent of the last sample period with a kernel running."""
        value = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(value))
        return float(value.gpu)


_COUNTERS: dict[str, Callable[[Nvml, Any], float]] = {
    "sm_clock_mhz": lambda n, h: n.number("nvmlDeviceGetClockInfo", h, ctypes.c_uint(_SM_CLOCK)),
    "memory_clock_mhz": lambda n, h: n.number(
        "nvmlDeviceGetClockInfo", h, ctypes.c_uint(_MEMORY_CLOCK)
    ),
    "energy_joule": Nvml.energy,
    "power_watt": lambda n, h: n.number("nvmlDeviceGetPowerUsage", h) / 1000,
    "temperature_celsius": lambda n, h: n.number(
        "nvmlDeviceGetTemperature", h, ctypes.c_uint(_GPU_TEMPERATURE)
    ),
    "clocks_throttle_reasons": Nvml.reasons,
    "memory_used_bytes": Nvml.memory_used,
    "gpu_busy_percent": Nvml.utilization,
}
"""Counter, with its unit in its name -> how it is read."""


# Bits of clocks_throttle_reasons (nvml.h) that slow a GPU at work; idle and what the user has set
# do not.
_THROTTLING = {
    "throttled_by_power": 0x4 | 0x80,
    "throttled_by_heat": 0x20 | 0x40,
    "throttled_by_hardware": 0x8,
    "throttled_by_sync_boost": 0x10,
}


def throttled(known: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """(counter, 0 or 1) of what holds the clocks down, from the bits; none without them."""
    if (bits := known.get("clocks_throttle_reasons")) is None:
        return
    for name, mask in _THROTTLING.items():
        yield name, float(bool(int(bits) & mask))


class Sampler:
    """Writes counters of all GPUs to a file until it is stopped, from a thread of its own.

    The file has a line a value: monotonic time in ns, index of the GPU, its uuid, counter, value.

    Args:
        path: the file.
        period_s: time between samples.
        keep_s: seconds that are kept; 0: all.
    """

    def __init__(self, path: Path, period_s: float = 0.1, keep_s: float = 0.0) -> None:
        self._path = path
        self._period_s = period_s
        self._keep_s = keep_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-nvml", daemon=True)
        self.failure = ""

    def start(self) -> None:
        """Begin; a machine without NVML is noted in ``failure``."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the last line."""
        self._end.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            nvml = Nvml()
            gpus = nvml.gpus()
            with KeptLines(self._path, self._keep_s) as stream:
                lines = csv.writer(stream)
                activity = {gpu.index: nvml.open_gpm(gpu) for gpu in gpus}
                flushed = due = time.monotonic()
                while not self._end.wait(max(0.0, due - time.monotonic())):
                    for gpu in gpus:
                        now = time.monotonic_ns()
                        known = [*nvml.sample(gpu)]
                        counters = activity[gpu.index]
                        if counters is not None:
                            known += counters.sample()
                        known += throttled(dict(known))
                        lines.writerows((now, gpu.index, gpu.uuid, *pair) for pair in known)
                    due = max(due + self._period_s, time.monotonic())
                    if time.monotonic() - flushed > _FLUSH_S:
                        flushed = time.monotonic()
                        stream.writelines(())  # where old lines are dropped
                        stream.flush()
                for counters in activity.values():
                    if counters is not None:
                        counters.close()
        except OSError as error:
            self.failure = str(error)
