"""Images with their channels last in memory."""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "channels-last",
    summary="weights of two-dimensional convolutions, and the images that outermost modules are "
    "given, get the memory format channels_last",
    repairs=("layout_changes",),
    lines="model = model.to(memory_format=torch.channels_last); "
    "images = images.to(memory_format=torch.channels_last)",
    refused="Refused where a module has no convolution with four-dimensional weights, and under "
    "DistributedDataParallel and FullyShardedDataParallel, whose buckets are laid out before.",
    rounding=True,
)
_SHARDED = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def on_module(change: Change, module: Any) -> None:
    """An outermost module is called for the first time."""
    torch = change.torch
    kinds = {kind.__name__ for kind in type(module).__mro__}
    if found := kinds.intersection(_SHARDED):
        change.refuse(f"the module is a {min(found)}, which has laid out its gradients")
        return
    weights = [
        inner.weight
        for inner in module.modules()
        if isinstance(inner, (torch.nn.Conv2d, torch.nn.ConvTranspose2d))
    ]
    if not weights:
        change.left(f"{type(module).__name__} has no convolution with four-dimensional weights")
        return
    last = torch.channels_last
    if all(weight.is_contiguous(memory_format=last) for weight in weights):
        change.left(f"{type(module).__name__} has its weights with channels last already")
        return
    module.to(memory_format=last)

    def convert(_: Any, inputs: Any) -> Any:
        return tuple(
            one.contiguous(memory_format=last) if _is_image(torch, one) else one for one in inputs
        )

    module.register_forward_pre_hook(change.trial.hook(convert))
    change.applied()


def _is_image(torch: Any, one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.dim() == 4 and one.is_floating_point()
