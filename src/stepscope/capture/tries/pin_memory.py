"""Batches in page-locked memory."""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "pin-memory",
    summary="every DataLoader copies its batches into page-locked memory, in a thread of its own",
    repairs=("blocking_copy",),
    lines="DataLoader(..., pin_memory=True)",
    refused="Refused where there is no CUDA device. Batches that are no tensors, or containers of "
    "them without a method pin_memory, stay as they are.",
    order=4,
)


def on_loader(change: Change, loader: Any, given: dict[str, Any]) -> None:
    """A loader is made."""
    if given.get("pin_memory"):
        change.left("the DataLoader pins its batches already")
    elif not change.torch.cuda.is_available():
        change.refuse("there is no CUDA device to copy to")
    else:
        given["pin_memory"] = True
        change.applied()
