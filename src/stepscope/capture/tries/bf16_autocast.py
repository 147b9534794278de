"""Forward pass and loss in 16 bit, under autocast."""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "bf16-autocast",
    summary="from the outermost module's forward pass to the backward pass, thus for the loss, too,"
    " torch.autocast computes in bfloat16 where that is safe",
    repairs=("lower_precision",),
    further=("low_precision_unused",),
    eases=("low_precision_unused",),
    lines="with torch.autocast('cuda', dtype=torch.bfloat16): around forward pass and loss",
    refused="Refused where the program uses autocast or a GradScaler, where no parameter is in "
    "single precision, and on GPUs before compute capability 8.0. Evaluation (without gradients, "
    "or with modules in eval mode) stays as it is. Losses that modules do not compute are seen up "
    "to the call of backward; a program that turns an output into NumPy before that fails.",
    rounding=True,
    automatic=None,
)


class _Around:
    """Autocast that is entered by a forward pass and left by the backward pass."""

    def __init__(self) -> None:
        self.context: Any = None
        self.scaled = False

    def leave(self) -> None:
        """Leave it, if it was entered."""
        context, self.context = self.context, None
        if context is not None:
            context.__exit__(None, None, None)


_around = _Around()


def on_torch(change: Change, torch: Any) -> None:
    """Notice scalers of gradients, which are for float16."""
    import functools

    kind = torch.amp.GradScaler
    build = kind.__init__

    @functools.wraps(build)
    def noticed(self: Any, *arguments: Any, **named: Any) -> None:
        build(self, *arguments, **named)
        _around.scaled = _around.scaled or bool(self.is_enabled())

    kind.__init__ = noticed


def on_module(change: Change, module: Any) -> None:
    """An outermost module is called for the first time."""
    torch = change.torch
    first = next((p for p in module.parameters() if p.dtype == torch.float32), None)
    if first is None:
        change.left("no parameter of the module is in single precision")
        return
    device = first.device.type
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 0):
        change.refuse("the GPU has no bfloat16 (compute capability below 8.0)")
        return

    def enter(*_: Any) -> None:
        if change.refused or _around.context is not None:
            return
        if not module.training or not torch.is_grad_enabled():
            return
        if _is_on(torch, device):
            change.refuse("the program uses autocast already")
        elif _around.scaled:
            change.refuse("the program scales its gradients (GradScaler), so it chose a precision")
        else:
            _around.context = torch.autocast(device, dtype=torch.bfloat16)
            _around.context.__enter__()
            change.applied()

    change.trial.before_forward(module, enter)
    enter()


def on_backward(change: Change) -> None:
    """The backward pass begins: the loss is there."""
    _around.leave()


def after_step(change: Change, number: int) -> None:
    """A program whose backward pass was not seen has it left here."""
    _around.leave()


def _is_on(torch: Any, device: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(device))
    except TypeError:  # before PyTorch 2.4 each kind of device had a function of its own
        name = "is_autocast_cpu_enabled" if device == "cpu" else "is_autocast_enabled"
        return bool(getattr(torch, name)())
