"""The roofline of a launch: arithmetic against bytes at each level, with measured ceilings.

Williams et al., Roofline (CACM 2009); Yang et al., Hierarchical Roofline Analysis for GPUs (2020).
Ceilings are those of the report: peak operations and bytes of a cycle, times the clocks that the
launch ran at.
"""

from __future__ import annotations

from typing import Final

import msgspec

from stepscope.ncu.metrics import METRICS
from stepscope.ncu.model import Launch

LEVELS: Final = {"l1": "L1", "l2": "L2", "dram": "DRAM"}
"""Memory levels, from the SM outwards."""

PRECISIONS: Final = {
    "fp64": "FP64",
    "fp32": "FP32",
    "fp16": "FP16",
    "tensor_fp64": "FP64 tensor",
    "tensor_tf32": "TF32 tensor",
    "tensor_fp16": "FP16 tensor",
    "tensor_bf16": "BF16 tensor",
    "tensor_fp8": "FP8 tensor",
    "tensor_int8": "INT8 tensor",
    "tensor_any": "tensor, operands not told",
}
"""Kinds of arithmetic with a ceiling of their own."""

_LANES: Final = {"64": (1, 2), "32": (1, 2), "16": (2, 4)}
"""Width -> operations of an addition or product, and of a multiply-add; halves come in pairs."""


class Roof(msgspec.Struct, frozen=True):
    """One launch under the roof of one memory level.

    Attributes:
        level: ``l1``, ``l2`` or ``dram``.
        bytes_per_s: achieved traffic of the level.
        peak_bytes_per_s: its ceiling.
        intensity: operations for each byte of the level; 0 without arithmetic.
        roof_flop_per_s: what the ceilings allow at this intensity; 0 without arithmetic.
        achieved: share of that roof; without arithmetic, share of the bandwidth.
    """

    level: str
    bytes_per_s: float
    peak_bytes_per_s: float
    intensity: float
    roof_flop_per_s: float
    achieved: float


class Roofline(msgspec.Struct, frozen=True):
    """One launch on the roofline of its device.

    Attributes:
        precision: kind of arithmetic that most operations are of; empty without any.
        flop_per_s: operations a second of all kinds.
        peak_flop_per_s: ceiling of the main kind; 0 without arithmetic.
        ceilings_flop_per_s: ceiling of every kind that the report holds, by its name.
        roofs: one entry a memory level that the report holds.
        gap: how many times faster the nearest roof is: 1 is on it; 0 where unknown.
        nearest: what that roof is: a level, or ``compute``; empty where unknown.
    """

    precision: str
    flop_per_s: float
    peak_flop_per_s: float
    ceilings_flop_per_s: dict[str, float]
    roofs: list[Roof]
    gap: float
    nearest: str


def roofline_of(launch: Launch) -> Roofline | None:
    """The roofline of a launch; None where the report holds neither arithmetic nor bytes."""
    rates = _rates(launch)
    ceilings = _ceilings(launch)
    total = sum(rates.values())
    main = max(rates, key=lambda kind: rates[kind], default="")
    if not rates.get(main):
        main = ""
    peak = ceilings.get(main, 0.0)
    # mixed kinds: the time that each needs at its own ceiling adds up
    busy = sum(rate / ceilings[kind] for kind, rate in rates.items() if ceilings.get(kind))
    roofs = []
    for level in LEVELS:
        achieved, limit = _traffic(launch, level)
        if achieved is None or not limit:
            continue
        intensity = total / achieved if achieved and total else 0.0
        roof = min(peak, intensity * limit) if peak and intensity else 0.0
        roofs.append(
            Roof(
                level=level,
                bytes_per_s=achieved,
                peak_bytes_per_s=limit,
                intensity=intensity,
                roof_flop_per_s=roof,
                achieved=total / roof if roof else achieved / limit,
            )
        )
    if not roofs and not peak:
        return None
    shares = {roof.level: roof.bytes_per_s / roof.peak_bytes_per_s for roof in roofs}
    if peak:
        shares["compute"] = busy
    nearest = max(shares, key=lambda name: shares[name])
    return Roofline(
        precision=main,
        flop_per_s=total,
        peak_flop_per_s=peak,
        ceilings_flop_per_s=ceilings,
        roofs=roofs,
        gap=1 / shares[nearest] if shares[nearest] else 0.0,
        nearest=nearest if shares[nearest] else "",
    )


def _rates(launch: Launch) -> dict[str, float]:
    """Operations a second by kind."""
    clock = launch.get("smsp_rate") or launch.get("sm_rate") or launch.get("sm_frequency")
    found: dict[str, float] = {}
    for width, (single, fused) in _LANES.items():
        counts = [launch.get(f"flops_{op}{width}") for op in ("add", "mul", "fma")]
        if clock and any(count is not None for count in counts):
            add, mul, fma = (count or 0.0 for count in counts)
            found[f"fp{width}"] = ((add + mul) * single + fma * fused) * clock
    for kind in PRECISIONS:
        if kind.startswith("tensor_"):
            rate = launch.get(kind) if kind in METRICS else None
            cycle = launch.get(f"{kind}_cycle")
            if rate is None and cycle is not None and clock:
                rate = cycle * clock
            if rate is not None:
                found[kind] = rate
    return found


def _ceilings(launch: Launch) -> dict[str, float]:
    """Peak operations a second by kind, at the clock of the launch."""
    clock = launch.get("sm_rate") or launch.get("smsp_rate") or launch.get("sm_frequency")
    if not clock:
        return {}
    found = {}
    for width, (_, fused) in _LANES.items():
        peak = launch.get(f"peak_flops{width}")
        if peak is None:
            peak = fused * (launch.get(f"peak_fma{width}") or 0.0)
        if peak:
            found[f"fp{width}"] = peak * clock
    for kind in PRECISIONS:
        if kind.startswith("tensor_"):
            peak = launch.get(f"{kind}_peak")
            if peak:
                found[kind] = peak * clock
    return found


def _traffic(launch: Launch, level: str) -> tuple[float | None, float]:
    """(bytes a second, ceiling) of a level; (None, 0) where the report lacks it."""
    if level == "dram":
        achieved = launch.get("dram_bandwidth")
        clock = launch.get("dram_frequency")
    else:
        achieved = launch.get(f"{level}_bandwidth")
        clock = launch.get(f"{level}_rate")
    peak = launch.get(f"{level}_peak")
    if achieved is not None and not (peak and clock) and level == "dram":
        # without the roofline's section the throughput tells the peak
        percent = launch.get("dram_throughput")
        return (achieved, achieved / percent * 100) if percent else (None, 0.0)
    return (achieved, peak * clock) if achieved is not None and peak and clock else (None, 0.0)
