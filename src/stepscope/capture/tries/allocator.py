"""PyTorch's allocator with segments that grow."""

from __future__ import annotations

import os

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import Change

TRY = Try(
    "allocator",
    argument="expandable",
    summary="PyTorch's allocator grows its segments instead of asking for new ones "
    "(expandable_segments), by the environment",
    repairs=("allocator_churn",),
    lines="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the program's environment",
    refused="Refused where the environment chooses segments or another allocator. A program that "
    "sets the variable itself has it as it says.",
    automatic="expandable",
)
_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def at_start(change: Change) -> None:
    """Nothing of the program has run."""
    name = next((name for name in _NAMES if os.environ.get(name)), _NAMES[1])
    before = os.environ.get(name, "")
    if "expandable_segments:True" in before and change.trial.inherited:
        return  # by the process that started this one
    if "expandable_segments" in before or "cudaMallocAsync" in before:
        change.refuse(f"{name} is {before} already")
        return
    setting = "expandable_segments:True"
    os.environ[name] = f"{before},{setting}" if before else setting


def after_step(change: Change, number: int) -> None:
    """By the first step the allocator has read its settings."""
    if number != 1:
        return
    if not change.torch.cuda.is_initialized():
        change.left("the program does not use CUDA")
    elif "expandable_segments:True" not in "".join(os.environ.get(name, "") for name in _NAMES):
        change.left("the program has set the variable itself")
    else:
        change.applied()
