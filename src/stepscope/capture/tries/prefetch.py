"""More batches made ahead."""

from __future__ import annotations

from .base import Try
from .loaders import workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "prefetch",
    argument="N",
    summary="each worker of every DataLoader makes N batches ahead instead of 2",
    eases=("input_starvation",),
    lines="DataLoader(..., prefetch_factor=N)",
    refused="Changes nothing where a DataLoader has no workers.",
    automatic=None,
)


def on_loader(change: Change, loader: Any, given: dict[str, Any]) -> None:
    """A loader is made."""
    number = int(change.value)
    if not workers_of(given):
        change.left("the DataLoader has no workers; try workers=N, too")
    elif (given.get("prefetch_factor") or 2) == number:
        change.left(f"the DataLoader makes {number} batches ahead already")
    else:
        given["prefetch_factor"] = number
        change.applied()
