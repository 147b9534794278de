"""Classes of what a timeline draws: one colour each, decided per distinct name."""

from __future__ import annotations

import re
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.activity import names as words
from stepscope.gaps.idle import CAUSES
from stepscope.kernels.categories import CATEGORIES, classify
from stepscope.trace.frame import Frame, IntArray

Codes = npt.NDArray[np.uint8]

HUES: Final = 8
"""Colours that ranges, operators and functions share by their name."""

_COPIES: Final = {
    "HtoD": "copy_htod",
    "DtoH": "copy_dtoh",
    "DtoD": "copy_dtod",
    "PtoP": "copy_ptop",
}

CLASSES: Final[dict[str, str]] = {
    **{f"kernel_{category}": message for category, message in CATEGORIES.items()},
    "copy_htod": "copy from host to device",
    "copy_dtoh": "copy from device to host",
    "copy_dtod": "copy inside a device",
    "copy_ptop": "copy between devices",
    "copy_other": "other copy",
    "memset": "memory set",
    "busy_compute": "compute kernels run",
    "busy_communication": "only communication runs",
    "busy_copy": "only copies run",
    "busy_memset": "only memory sets run",
    **{f"idle_{cause}": cause for cause in CAUSES},
    "api_launch": "launch",
    "api_sync": "synchronisation",
    "api_copy": "copy call",
    "api_allocation": "allocation or release",
    "api_module": "module loading",
    "api_other": "other call",
    "os_wait": "waiting in the operating system",
    "os_other": "other operating-system call",
    "step_steady": "step that counts",
    "step_aside": "step set aside",
    "lock_holding": "holds Python's lock",
    "lock_waiting": "waits for Python's lock",
    "overhead": "the capturing tool",
    "phase_forward": "forward pass",
    "phase_backward": "backward pass",
    "phase_optimizer": "optimizer",
    "phase_none": "of no known phase",
    "state_running": "runs on a CPU",
    "state_runnable": "wants a CPU and has none",
    "state_sleeping": "sleeps",
    "state_disk": "sleeps uninterruptibly, mostly for a disk",
    "state_stopped": "is stopped",
    **{f"name_{hue}": "coloured by name" for hue in range(HUES)},
}
"""Key -> meaning; the position is the code."""

CODE: Final = {key: code for code, key in enumerate(CLASSES)}

_LAUNCH = re.compile(r"Launch|GraphLaunch", re.IGNORECASE)


def gpu_codes(ops: Frame) -> Codes:
    """Class of each GPU operation: the kernel's category, or the direction of a copy."""
    category = np.array(
        [CODE[f"kernel_{classify(name).category}"] for name in ops.texts["name"]]
        + [CODE["kernel_other"]],
        np.uint8,
    )
    code = category[ops["name"]]
    code[ops.equals("kind", "graph")] = CODE["kernel_graph"]
    direction = np.array(
        [CODE[_COPIES.get(kind, "copy_other")] for kind in ops.texts["copy_kind"]]
        + [CODE["copy_other"]],
        np.uint8,
    )
    code = np.where(ops.equals("kind", "memcpy"), direction[ops["copy_kind"]], code)
    code[ops.equals("kind", "memset")] = CODE["memset"]
    return code


def call_codes(names: list[str], *, osrt: bool) -> Codes:
    """Class of each distinct name of a call."""
    return np.array([CODE[_call(name, osrt)] for name in names] + [CODE["api_other"]], np.uint8)


def _call(name: str, osrt: bool) -> str:
    if osrt:
        return "os_wait" if words.WAIT_CALL.search(name) else "os_other"
    if _LAUNCH.search(name):
        return "api_launch"
    for key, pattern in (
        ("api_sync", words.SYNC_CALL),
        ("api_copy", words.COPY_CALL),
        ("api_allocation", words.ALLOCATION_CALL),
        ("api_module", words.MODULE_CALL),
    ):
        if pattern.search(name):
            return key
    return "api_other"


def name_codes(names: list[str]) -> Codes:
    """Class of each distinct name, by the name without its digits: all steps look alike."""
    hues = [zlib.crc32(re.sub(r"\d+", "", name).encode("utf-8", "replace")) for name in names]
    return np.array([CODE[f"name_{h % HUES}"] for h in [*hues, 0]], np.uint8)


def of_names(frame: Frame, per_name: Codes) -> Codes:
    """Class of each row from that of each distinct name."""
    return per_name[frame["name"]]


def by_class(sums: IntArray) -> dict[str, int]:
    """Sums of all classes, in their order, as ``{class: ns}``; classes without any are left out."""
    return {key: int(ns) for key, ns in zip(CLASSES, sums.tolist(), strict=True) if ns}
