"""Measure the ceilings of one GPU: DRAM, L2, plain arithmetic, tensor cores by type."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from stepscope.capture.ceilings.driver import Device, DeviceError
from stepscope.capture.ceilings.gemms import KINDS, WORKSPACE_BYTES, Kind, Lt, numbers
from stepscope.capture.ceilings.programs import CHAINS, STEPS, UNIT, UNROLLED, chain, stream
from stepscope.capture.errors import CaptureError

SCHEMA: Final = "stepscope.ceilings/2"
"""Contract of what is written."""

_THREADS = 256
_BLOCKS_EACH = 8  # 2,048 threads: as many as a SM holds
_DRAM_BYTES = 1 << 30
_LEAST_DRAM_BYTES = 64 << 20
_TIMES_L2 = 8  # a buffer so many times the L2 leaves at most an eighth of hits
_PART_OF_L2 = 4
_L2_ROUNDS = 64
_BATCH_S = 0.03
_WARM_UP_S = 0.15
_BATCHES = 5
_SIZES = (2048, 4096, 8192, 16384)
_LONG_S = 0.03  # a product that takes longer fills any device: no larger one is tried

Say = Callable[[str], None]


def measure(index: int, say: Say) -> dict[str, Any]:
    """The ceilings of one GPU as a document of ``SCHEMA``.

    Each is the best of five batches after a warm-up: what the device achieves, at the clocks and
    the power that it has here. Takes some ten seconds and up to 3 GiB of device memory.

    Args:
        index: number of the device.
        say: told what is measured.

    Raises:
        CaptureError: there is no GPU, or it cannot be used.
    """
    device = Device(index)
    try:
        return _measured(device, say)
    finally:
        with contextlib.suppress(CaptureError):  # the first error is the one to tell
            device.close()


def _measured(device: Device, say: Say) -> dict[str, Any]:
    warnings: list[str] = []
    say(f"measuring {device.name}")
    ceilings = {**_bandwidths(device), **_plain(device)}
    say("measuring the tensor cores")
    library = ""
    try:
        lt = Lt()
    except OSError as error:
        warnings.append(f"the tensor cores were not measured: {error}")
    else:
        library = f"cuBLASLt {lt.version}"
        ceilings |= _tensor(device, lt, warnings)
    return {
        "schema": SCHEMA,
        "device": device.name,
        "capability": ".".join(map(str, device.capability)),
        "sms": device.sms,
        "l2_bytes": device.l2_bytes,
        "driver_cuda": device.cuda(),
        "library": library,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **ceilings,
        "warnings": warnings,
    }


def _fastest(device: Device, work: Callable[[], object]) -> float:
    """Shortest time of one run of some work, s."""
    once = device.seconds(work, 1)
    times = max(1, int(_BATCH_S / max(once, 1e-6)))
    started = time.monotonic()
    while time.monotonic() - started < _WARM_UP_S:
        device.seconds(work, times)
    return min(device.seconds(work, times) for _ in range(_BATCHES))


def _bandwidths(device: Device) -> dict[str, float]:
    """Bytes a second of DRAM (the better of reading and copying) and of L2 (reading)."""
    blocks = device.sms * _BLOCKS_EACH
    granule = blocks * _THREADS * UNROLLED * UNIT
    wanted = max(_DRAM_BYTES, _TIMES_L2 * device.l2_bytes)
    large = min(wanted, device.free_bytes() // 4) // granule * granule
    if large < _LEAST_DRAM_BYTES:
        raise CaptureError(
            f"{device.name} has too little free memory to be measured; end what else uses it"
        )
    source, target = device.allocate(large), device.allocate(large)
    device.fill(source, large, bytes(granule))
    reading = device.kernel(stream("read_all", store=False), "read_all")
    copying = device.kernel(stream("copy_all", store=True), "copy_all")

    def run(kernel: ctypes.c_void_p, size: int, rounds: int) -> Callable[[], None]:
        given = (ctypes.c_uint64(source), ctypes.c_uint64(target), ctypes.c_uint64(size // UNIT),
                 ctypes.c_uint32(rounds))  # fmt: skip
        return partial(device.launch, kernel, blocks, _THREADS, given)

    read = large / _fastest(device, run(reading, large, 1))
    copied = 2 * large / _fastest(device, run(copying, large, 1))
    found = {"dram_read_bytes_per_s": read, "dram_copy_bytes_per_s": copied,
             "dram_bytes_per_s": max(read, copied)}  # fmt: skip
    small = max(device.l2_bytes // _PART_OF_L2 // granule, 1) * granule
    if device.l2_bytes and small <= device.l2_bytes // 2:
        took = _fastest(device, run(reading, small, _L2_ROUNDS))
        found["l2_bytes_per_s"] = small * _L2_ROUNDS / took
    device.free()
    return found


def _plain(device: Device) -> dict[str, float]:
    """Operations a second of multiply-adds on the CUDA cores."""
    blocks = device.sms * _BLOCKS_EACH
    target = device.allocate(blocks * _THREADS * 8)
    found = {}
    for width in (32, 64):
        kernel = device.kernel(chain("chain", width), "chain")
        rounds = 16
        given = (ctypes.c_uint64(target), ctypes.c_uint32(rounds))
        took = _fastest(device, partial(device.launch, kernel, blocks, _THREADS, given))
        each = 2 * CHAINS * STEPS * rounds
        found[f"fp{width}_flop_per_s"] = each * blocks * _THREADS / took
    device.free()
    return found


def _tensor(device: Device, lt: Lt, warnings: list[str]) -> dict[str, float]:
    found = {}
    for name, kind in KINDS.items():
        if device.capability < kind.least:
            continue
        try:
            best = _best_gemm(device, lt, kind)
        except (OSError, DeviceError) as error:
            best = 0.0
            warnings.append(f"{name} was not measured: {error}")
        device.free()
        if best:
            found[f"{name}_flop_per_s"] = best
    return found


def _best_gemm(device: Device, lt: Lt, kind: Kind) -> float:
    """Operations a second of the fastest of several sizes and algorithms."""
    best, took = 0.0, 0.0
    pattern = numbers(kind)
    for size in _SIZES:
        each = size * size * max(kind.item, 2)
        # eight times the work follows a doubled size
        if (8 * took > _LONG_S and best) or 3 * each + WORKSPACE_BYTES > device.free_bytes():
            break
        places = (device.allocate(each), device.allocate(each), device.allocate(each),
                  device.allocate(WORKSPACE_BYTES))  # fmt: skip
        for place in places[:2]:
            device.fill(place, size * size * kind.item, pattern)
        ways = list(lt.gemms(kind, size, places))
        if not ways:
            raise OSError("cuBLASLt knows no algorithm for it on this device")
        quickest = min(ways, key=lambda way: _tried(device, way))
        took = _fastest(device, quickest)
        best = max(best, 2 * size**3 / took)
        device.free()
    return best


def _tried(device: Device, way: Callable[[], None]) -> float:
    try:
        way()
        return device.seconds(way, 3)
    except OSError:
        return float("inf")
