"""Which lines wait for the GPU."""

from __future__ import annotations

from .base import Try, place_in_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "no-sync-debug",
    summary="shows the lines whose waits for the GPU would go, by PyTorch's sync debug mode; "
    "changes nothing",
    repairs=("host_sync",),
    lines="keep values on the GPU, and read them once in many steps",
    refused="Refused without a CUDA device. Waits by torch.cuda.synchronize, by events, and of "
    "libraries other than PyTorch are not seen.",
    looks=True,
)
_MESSAGE = "called a synchronizing CUDA operation"


def after_step(change: Change, number: int) -> None:
    """Warm-up has ended, or the steps have."""
    torch = change.torch
    if number == change.trial.warmup:
        if not torch.cuda.is_available():
            change.refuse("there is no CUDA device")
            return
        _listen(change)
        torch.cuda.set_sync_debug_mode("warn")
        change.applied()
    elif number == change.trial.last:
        torch.cuda.set_sync_debug_mode("default")


def _listen(change: Change) -> None:
    """Take PyTorch's warnings of waits, and leave the program its own."""
    import warnings

    show = warnings.showwarning

    def showwarning(message: Any, *arguments: Any, **named: Any) -> None:
        if _MESSAGE in str(message):
            change.trial.wait(place_in_program())
        else:
            show(message, *arguments, **named)

    warnings.filterwarnings("always", message=_MESSAGE)
    warnings.showwarning = showwarning
