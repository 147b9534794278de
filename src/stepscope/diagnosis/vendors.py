"""Commands that work on the device that a capture is of.

Causes name the capture that would tell more as it is made on NVIDIA devices. On others, Nsight and
what Stepscope's own collector records do not exist; torch.profiler does.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.frameworks import is_jax, is_own_program
from stepscope.kernels.vendors import Vendor

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
    vendor = case.explanation.kernels.vendor
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


_CAPTURE: Final = (
    re.compile(r"capture with stepscope run, or with nsys profile -t cuda,nvtx"),
    "capture with stepscope run --backend torch and without --stacks",
)
_STATE: Final = re.compile(r"\bnvidia-smi -q -d [A-Z]+(?:,[A-Z]+)*")
_PROCESSES: Final = re.compile(r"\bnvidia-smi pmon\b")
_ADVICE: Final = {
    Vendor.AMD: (
        _CAPTURE,
        (_STATE, "rocm-smi --showclocks --showpower --showtemp"),
        (_PROCESSES, "rocm-smi --showpids"),
    ),
    Vendor.INTEL: (_CAPTURE, (_STATE, "xpu-smi stats -d 0"), (_PROCESSES, "xpu-smi ps")),
}
_CALL_OF_CUDA: Final = re.compile(
    r"\bcuda(?=(Device|Event|Stream|Host|Memcpy|Graph|Malloc|Free)\w*)"
)
"""Calls that HIP has under the same names."""


def advice(texts: list[str], case: Case) -> list[str]:
    """What a cause advises, without tools that do not know the device."""
    vendor = case.explanation.kernels.vendor
    if vendor not in _ADVICE:
        return texts
    amd, found = vendor is Vendor.AMD, []
    for text in texts:
        for pattern, instead in _ADVICE[vendor]:
            text = pattern.sub(instead, text)  # noqa: PLW2901
        found.append(_CALL_OF_CUDA.sub("hip", text) if amd else text)
    return found
