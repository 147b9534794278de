"""One kernel for the whole optimizer step."""

from __future__ import annotations

from .base import Try
from .optimizers import choose, parameters, why_not

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "fused-optimizer",
    summary="optimizers of torch.optim that have a fused implementation use it",
    repairs=("unfused_optimizer", "fused_optimizer"),
    lines="torch.optim.AdamW(..., fused=True)",
    refused="Refused where parameters are not on a CUDA device when the optimizer is made, where "
    "the optimizer has no fused=, a step of its own, or is differentiable.",
    rounding=True,
)


def on_optimizer(change: Change, optimizer: Any, given: dict[str, Any]) -> None:
    """An optimizer is made."""
    name = type(optimizer).__name__
    held = parameters(given)
    if given.get("fused"):
        change.left(f"{name} is fused already")
    elif reason := why_not(change, optimizer, given, "fused"):
        change.decline(reason)
    elif not held or not all(one.is_cuda and one.is_floating_point() for one in held):
        change.decline(
            f"parameters of {name} are not on a CUDA device when it is made; move the model there "
            "before"
        )
    else:
        choose(change, optimizer, given, "fused")
