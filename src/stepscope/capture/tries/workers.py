"""Batches made in worker processes."""

from __future__ import annotations

from .base import Try
from .loaders import processors, why_no_workers, workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "workers",
    argument="N",
    summary="every DataLoader makes its batches in N worker processes",
    repairs=("input_starvation",),
    lines="DataLoader(..., num_workers=N)",
    refused="Refused where a dataset is an IterableDataset whose __iter__, what that calls, and "
    "worker_init_fn do not ask get_worker_info (each worker would give all of the data), where it "
    "holds CUDA tensors, or cannot be pickled and workers are not forked. Random numbers that the "
    "dataset draws become others.",
    order=1,
    automatic="auto",
)


def on_loader(change: Change, loader: Any, given: dict[str, Any]) -> None:
    """A loader is made."""
    number = int(change.value)
    if workers_of(given) == number:
        change.left(f"the DataLoader has {number} workers already")
        return
    if problem := why_no_workers(change.torch, given):
        change.decline(problem)
        return
    if number > processors():
        change.note(f"{number} workers share {processors()} processors here")
    given["num_workers"] = number
    change.applied()
