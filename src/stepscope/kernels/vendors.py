"""Who made a device, and what can be measured there."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from stepscope.activity.device import GpuTimeline


class Vendor(Enum):
    """Who made a device."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    UNKNOWN = "unknown"


_DEVICE: Final = (
    (re.compile(r"\bAMD\b|Instinct|Radeon|\bgfx[0-9a-f]{3,4}\b|\bMI\d{2,3}", re.I), Vendor.AMD),
    (re.compile(r"\bIntel\b|Data Center GPU Max|\bArc\b|\bXe\b", re.I), Vendor.INTEL),
    (re.compile(r"NVIDIA|Tesla|GeForce|Quadro|\b[ABHLV]\d{2,3}\b", re.I), Vendor.NVIDIA),
)
_CALL: Final = (
    (re.compile(r"^(?:hip[A-Z]|hsa_)"), Vendor.AMD),
    (re.compile(r"^(?:ur[A-Z]|ze[A-Z]|pi[A-Z]|zeCommand)"), Vendor.INTEL),
    (re.compile(r"^cu(?:da)?[A-Z]"), Vendor.NVIDIA),
)
_AMD_KERNEL: Final = re.compile(
    r"^Cijk_|__amd_rocclr|\bgfx9[0-9a-f]{1,2}\b|^_?ZN2ck|\bck::|ck_tile"
)


def vendor_of(gpu: GpuTimeline, product: str) -> Vendor:
    """Who made a device: by its name, else by calls of its host, else by kernels.

    Args:
        gpu: the device.
        product: its name; empty where the capture names none.
    """
    for pattern, vendor in _DEVICE:
        if pattern.search(product):
            return vendor
    called = gpu.host.api.texts.get("name", [])
    for pattern, vendor in _CALL:
        if any(pattern.search(name) for name in called):
            return vendor
    if any(_AMD_KERNEL.search(name) for name in gpu.ops.texts["name"]):
        return Vendor.AMD
    return Vendor.UNKNOWN


def measures_ceilings(vendor: Vendor) -> bool:
    """Whether ``stepscope ceilings``, which speaks to NVIDIA's driver, may work on the device."""
    return vendor in (Vendor.NVIDIA, Vendor.UNKNOWN)


def no_ceilings(product: str, vendor: Vendor) -> str:
    """That nothing is known of a device's peaks, and how to measure them where that is possible.

    Args:
        product: its name; empty where the capture names none.
        vendor: who made it.
    """
    unknown = f"no datasheet of {product or 'this device'!r} is known, so there are no ceilings"
    if not measures_ceilings(vendor):
        return unknown
    return (
        f"{unknown}; stepscope ceilings -o FILE measures them on the GPU, and --ceilings FILE "
        "takes them"
    )
