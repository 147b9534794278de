"""Convolutions by the fastest of cuDNN's algorithms."""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "cudnn-benchmark",
    summary="cuDNN measures its algorithms for each new shape of a convolution, and uses the "
    "fastest",
    eases=("inefficient_kernel",),
    lines="torch.backends.cudnn.benchmark = True",
    refused="Refused where the program asks for deterministic algorithms, and without a CUDA "
    "device. Changes nothing without convolutions. Where shapes change all the time, measuring "
    "costs more than it brings.",
    rounding=True,
    warmup=5,
)


def on_module(change: Change, module: Any) -> None:
    """An outermost module is called for the first time."""
    torch = change.torch
    if not any("Conv" in type(inner).__name__ for inner in module.modules()):
        change.left(f"{type(module).__name__} has no convolution")
    elif not torch.cuda.is_available():
        change.refuse("there is no CUDA device")
    elif torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        change.refuse("the program asks for deterministic algorithms")
    elif torch.backends.cudnn.benchmark:
        change.left("the program lets cuDNN measure already")
    else:
        torch.backends.cudnn.benchmark = True
        change.applied()
