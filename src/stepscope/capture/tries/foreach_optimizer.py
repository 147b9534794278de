"""Few kernels for many parameters in the optimizer step."""

from __future__ import annotations

from .base import Try
from .optimizers import choose, parameters, why_not

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "foreach-optimizer",
    summary="optimizers of torch.optim update all parameters together instead of one by one",
    eases=("unfused_optimizer",),
    lines="torch.optim.AdamW(..., foreach=True)",
    refused="Refused where the optimizer has no foreach=, a step of its own, or is "
    "differentiable. Changes nothing where it is the default: parameters on a CUDA device and "
    "foreach= not given.",
    rounding=True,
    automatic=None,
)


def on_optimizer(change: Change, optimizer: Any, given: dict[str, Any]) -> None:
    """An optimizer is made."""
    name = type(optimizer).__name__
    held = parameters(given)
    if given.get("fused"):
        change.left(f"{name} is fused, which needs fewer kernels still")
    elif reason := why_not(change, optimizer, given, "foreach"):
        change.decline(reason)
    elif given.get("foreach") or (
        given.get("foreach") is None and held and all(one.is_cuda for one in held)
    ):
        change.left(f"{name} updates its parameters together already")
    else:
        choose(change, optimizer, given, "foreach")
