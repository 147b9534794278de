"""Whose device a capture is of, and commands that work there.

Causes name the capture that would tell more as it is made on NVIDIA devices. On others, Nsight and
what Stepscope's own collector records do not exist; torch.profiler does.
"""

from __future__ import annotations

import re
import shlex
from enum import Enum
from typing import Final

from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.frameworks import is_jax, is_own_program


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


def vendor_of(case: Case) -> Vendor:
    """Who made the device of a case: by its name, else by calls of its host, else by kernels."""
    gpu = case.explanation.gpu
    for pattern, vendor in _DEVICE:
        if pattern.search(case.explanation.kernels.device[0] or ""):
            return vendor
    called = gpu.host.api.texts.get("name", [])
    for pattern, vendor in _CALL:
        if any(pattern.search(name) for name in called):
            return vendor
    if any(_AMD_KERNEL.search(name) for name in gpu.ops.texts["name"]):
        return Vendor.AMD
    return Vendor.UNKNOWN


TORCH: Final = "stepscope run --backend torch --steps 5 -- python train.py"
"""torch.profiler, which records every device that PyTorch knows."""
TORCH_STACKS: Final = "stepscope run --backend torch --stacks --steps 5 -- python train.py"
_OF_ALL_AMD: Final = "rocprofv3 --sys-trace -- python train.py"
_KERNELS_OF_INTEL: Final = "vtune -collect gpu-hotspots -- python train.py"

_COMMAND: Final = re.compile(r"^(?:stepscope|nsys|ncu|nvidia-smi|dcgmi)\b")
_INSIDE_KERNELS: Final = re.compile(r"^ncu\b|--backend ncu\b")
_KERNEL_NAME: Final = re.compile(r"(?:-k|--kernel)[ =](?:regex:)?(\S+)")
_SEVERAL: Final = re.compile(r"^'\^\((.*)\)\$'$")
_ANY_DEVICE: Final = re.compile(r"--backend torch\b")


def next_capture(command: str | None, case: Case) -> str | None:
    """The capture that a cause asks for, by a tool that knows the device.

    Args:
        command: as the cause names it, for NVIDIA devices.
        case: the device.
    """
    command = _for_device(command, case)
    if command is None:
        return command
    if is_own_program(case):
        return command.replace("python train.py", "./program")
    if case.explanation.workload.infers:
        return command.replace("python train.py", "python infer.py")
    return command


def _for_device(command: str | None, case: Case) -> str | None:
    if command is None or not _COMMAND.match(command) or _ANY_DEVICE.search(command):
        return command
    vendor = vendor_of(case)
    if vendor in (Vendor.NVIDIA, Vendor.UNKNOWN):
        return command
    if _INSIDE_KERNELS.search(command):
        return _inside_kernels(command, vendor)
    if vendor is Vendor.AMD and (is_jax(case.explanation.gpu) or is_own_program(case)):
        return _OF_ALL_AMD
    # what threads do is told by Python functions there; without such a wish they only cost time
    return TORCH_STACKS if re.search(r"--waits|--sample|osrt|--cpuctxsw", command) else TORCH


def _inside_kernels(command: str, vendor: Vendor) -> str:
    if vendor is Vendor.INTEL:
        return _KERNELS_OF_INTEL
    named = _KERNEL_NAME.search(command)
    names = _SEVERAL.sub(r"\1", named[1]).replace(".*", "").split("|") if named else []
    chosen = f"-k {' '.join(map(shlex.quote, names))} " if names else ""
    return f"rocprof-compute profile -n kernels {chosen}-- python train.py"


_ADVICE: Final = (
    (
        re.compile(r"capture with stepscope run, or with nsys profile -t cuda,nvtx"),
        "capture with stepscope run --backend torch and without --stacks",
    ),
)
_CALL_OF_CUDA: Final = re.compile(
    r"\bcuda(?=(Device|Event|Stream|Host|Memcpy|Graph|Malloc|Free)\w*)"
)
"""Calls that HIP has under the same names."""


def advice(texts: list[str], case: Case) -> list[str]:
    """What a cause advises, without tools that do not know the device."""
    vendor = vendor_of(case)
    if vendor in (Vendor.NVIDIA, Vendor.UNKNOWN):
        return texts
    amd, found = vendor is Vendor.AMD, []
    for text in texts:
        for pattern, instead in _ADVICE:
            text = pattern.sub(instead, text)  # noqa: PLW2901
        found.append(_CALL_OF_CUDA.sub("hip", text) if amd else text)
    return found
