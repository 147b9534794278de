"""All back-ends, and the choice between them."""

from __future__ import annotations

from stepscope.capture.backends import collector, ncu, nsys, torch
from stepscope.capture.backends.base import Backend, Readiness
from stepscope.capture.errors import CaptureError
from stepscope.capture.options import Options

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (collector.BACKEND, nsys.BACKEND, torch.BACKEND, ncu.BACKEND)
}
"""Back-end by name, in the order in which ``auto`` prefers them; ``ncu`` is never chosen."""


def choose(options: Options) -> tuple[Backend, str]:
    """The back-end of a capture, and why it is that one, in one sentence.

    Raises:
        CaptureError: none works here.
    """
    if options.backend != "auto":
        return BACKENDS[options.backend], f"{options.backend}: as asked for"
    if options.stacks:
        return BACKENDS["torch"], "torch: only torch.profiler records Python stacks"
    if options.memory or options.memory_snapshot:
        return BACKENDS["torch"], "torch: only PyTorch tells what its tensors allocate"
    looked: list[str] = []
    for name in ("collector", "nsys", "torch"):
        ready: Readiness = BACKENDS[name].check(options.command)
        if ready.ready and not ready.remedy:
            others = f" ({'; '.join(looked)})" if looked else ""
            return BACKENDS[name], f"{name}: {_WHY[name]}{others}"
        looked.append(f"not {name}: {ready.message}")
    ready = BACKENDS["collector"].check(options.command)
    if ready.ready:
        return BACKENDS["collector"], f"collector: {ready.message}"
    raise CaptureError(f"nothing here can make a capture: {'; '.join(looked)}; {ready.remedy}")


_WHY = {
    "collector": "it disturbs the program least and needs nothing installed",
    "nsys": "it is installed",
    "torch": "PyTorch is installed; it slows the program more than the others",
}
