"""Workers that outlive an epoch."""

from __future__ import annotations

from .base import Try
from .loaders import workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "persistent-workers",
    summary="the workers of every DataLoader live on after an epoch instead of being started again",
    eases=("input_starvation",),
    lines="DataLoader(..., persistent_workers=True)",
    refused="Changes nothing where a DataLoader has no workers, nor within one epoch. The order of "
    "the data from the second epoch on may be another, since a seed less is drawn.",
    automatic=None,
)


def on_loader(change: Change, loader: Any, given: dict[str, Any]) -> None:
    """A loader is made."""
    if given.get("persistent_workers"):
        change.left("the DataLoader keeps its workers already")
    elif not workers_of(given):
        change.left("the DataLoader has no workers; try workers=N, too")
    else:
        given["persistent_workers"] = True
        change.applied()
