"""Copies to the GPU that the host does not wait for."""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "non-blocking",
    summary="Tensor.to and Tensor.cuda do not wait for copies from page-locked memory to the GPU",
    repairs=("blocking_copy",),
    lines="x = x.to(device, non_blocking=True)",
    refused="Refused where all tensors that are copied lie in pageable memory: try pin-memory, "
    "too. Copies to the host stay as they are. A program that writes into the page-locked tensor "
    "while it is copied would train on other data, which the losses show.",
)
_PAGEABLE = "what is copied lies in pageable memory; try pin-memory,non-blocking"


def on_torch(change: Change, torch: Any) -> None:
    """Torch is there."""
    _wrap_to(change, torch)
    _wrap_cuda(change, torch)


def _wrap_to(change: Change, torch: Any) -> None:
    call = torch.Tensor.to

    def to(self: Any, *arguments: Any, **named: Any) -> Any:
        if change.refused or not _is_batch(torch, self):
            return call(self, *arguments, **named)
        target = arguments[0] if arguments else named.get("device", named.get("other"))
        if not _is_gpu(torch, target):
            return call(self, *arguments, **named)
        # to(device, dtype, non_blocking) but to(other, non_blocking)
        place = 1 if isinstance(target, torch.Tensor) else 2
        if arguments[place : place + 1] == (True,) or named.get("non_blocking"):
            change.left("the copy does not block already")
        elif not self.is_pinned():
            change.decline(_PAGEABLE)
        else:
            arguments = (*arguments[:place], *arguments[place + 1 :])
            if len(arguments) > place:  # what stood behind it is named now
                named["copy"] = arguments[place]
                arguments = arguments[:place]
            named["non_blocking"] = True
            change.applied()
        return call(self, *arguments, **named)

    to.__doc__ = call.__doc__
    torch.Tensor.to = to


def _wrap_cuda(change: Change, torch: Any) -> None:
    call = torch.Tensor.cuda

    def cuda(self: Any, *arguments: Any, **named: Any) -> Any:
        if change.refused or not _is_batch(torch, self):
            return call(self, *arguments, **named)
        if arguments[1:2] == (True,) or named.get("non_blocking"):
            change.left("the copy does not block already")
        elif not self.is_pinned():
            change.decline(_PAGEABLE)
        else:
            arguments = (*arguments[:1], *arguments[2:])
            named["non_blocking"] = True
            change.applied()
        return call(self, *arguments, **named)

    cuda.__doc__ = call.__doc__
    torch.Tensor.cuda = cuda


def _is_batch(torch: Any, tensor: Any) -> bool:
    """Whether a tensor lies on the host and is none of a module's parameters."""
    return (
        not tensor.is_cuda
        and tensor.device.type == "cpu"
        and not isinstance(tensor, getattr(torch.nn, "Parameter", ()))
    )


def _is_gpu(torch: Any, target: Any) -> bool:
    """Whether a target of a copy is a GPU: a name, a number, a device, or a tensor on one."""
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, torch.Tensor):
        return bool(target.is_cuda)
    if isinstance(target, torch.device):
        return bool(target.type == "cuda")
    return isinstance(target, int) and not isinstance(target, bool)
