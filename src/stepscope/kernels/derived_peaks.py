"""Peaks of a device that is in no table: what its architecture does per SM and clock.

The rates of the CUDA cores are those of "Arithmetic Instructions" in NVIDIA's CUDA C++ Programming
Guide; those of the tensor cores, dense and with FP32 accumulation, those of the architectures'
whitepapers (Volta, Turing, A100, GA102, Hopper, Ada, RTX Blackwell). GeForce cards accumulate in
FP32 at half the rate from Turing on; RTX cards for workstations do not. Where a product line breaks
the rule (H20, A10G, L20, GTX 16 without tensor cores), nothing is derived.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stepscope.kernels.ceilings import Peaks


@dataclass(frozen=True)
class _Rates:
    """Multiply-adds per SM and clock.

    Attributes:
        fp32: on the CUDA cores.
        fp64: on the CUDA cores.
        fp64_gemm: on tensor cores; 0 where they have no FP64.
        tf32: on tensor cores.
        half: FP16 (and BF16, where there is TF32) on tensor cores.
        eight: FP8 on tensor cores.
        clock_hz: highest boost clock that NVIDIA states for a product of this architecture.
    """

    fp32: int
    fp64: int
    fp64_gemm: int
    tf32: int
    half: int
    eight: int
    clock_hz: float


_RATES: Final = {
    (7, 0): _Rates(64, 32, 0, 0, 512, 0, 1.60e9),
    (7, 5): _Rates(64, 2, 0, 0, 512, 0, 1.82e9),
    (8, 0): _Rates(64, 32, 64, 512, 1024, 0, 1.44e9),
    (8, 6): _Rates(128, 2, 0, 256, 512, 0, 1.86e9),
    (8, 9): _Rates(128, 2, 0, 256, 512, 1024, 2.61e9),
    (9, 0): _Rates(128, 64, 128, 1024, 2048, 4096, 1.98e9),
    (12, 0): _Rates(128, 2, 0, 256, 512, 1024, 2.62e9),
}
_ALL_ALIKE: Final = frozenset({(7, 0), (8, 0), (9, 0)})
"""Architectures of which all products have the full rates, whatever they are called."""

_NVIDIA: Final = re.compile(r"NVIDIA|GeForce|Tesla|Quadro|TITAN|RTX|^[AHV]\d+\b")
"""AMD's devices have numbers of the same form as a compute capability."""

_GEFORCE: Final = re.compile(r"GeForce")
_RTX: Final = re.compile(r"(?<![A-Za-z])RTX(?![A-Za-z])")
_LIMITED: Final = re.compile(r"\bH20\b|RTX (50|40)90 D\b")
"""Products with less than their SMs could do."""


def derived_peaks(
    product: str, capability: tuple[int, int], sms: int, clock_hz: int, bandwidth: int
) -> Peaks | None:
    """Peaks by the number of SMs and the clock.

    Without a clock only the ratios between types are known: the highest boost clock of the
    architecture then gives what the device reaches at most.

    Args:
        product: name of the device.
        capability: compute capability, major and minor.
        sms: how many SMs it has; 0 where unknown.
        clock_hz: highest clock of its SMs; 0 where unknown.
        bandwidth: of its memory, bytes/s; 0 where unknown.

    Returns:
        None where the architecture, or whether it has the full rates, is not known.
    """
    rates = _RATES.get(capability)
    known = _RTX.search(product) or (capability in _ALL_ALIKE and _NVIDIA.search(product))
    if rates is None or not known or sms <= 0 or _LIMITED.search(product):
        return None
    slower = 2 if _GEFORCE.search(product) and capability not in _ALL_ALIKE else 1
    clock = clock_hz or rates.clock_hz
    each = 2 * sms * clock  # a multiply-add is two
    at = f"at {clock / 1e9:.2f} GHz"
    if not clock_hz:
        at += ", the highest of this architecture, for the capture names no clock"
    return Peaks(
        name=product,
        fp64=each * rates.fp64,
        fp32=each * rates.fp32,
        tf32=each * rates.tf32 / slower,
        half=each * rates.half / slower,
        eight=each * rates.eight / slower,
        bandwidth=float(bandwidth),
        source=(
            f"derived: {sms} SMs of compute capability {capability[0]}.{capability[1]} {at}, with "
            "the rates of NVIDIA's whitepapers and CUDA C++ Programming Guide"
        ),
        fp64_gemm=each * rates.fp64_gemm,
        derived=True,
        only_ratios=not clock_hz,
    )
