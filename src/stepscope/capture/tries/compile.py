"""Modules compiled by torch.compile."""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change

TRY = Try(
    "compile",
    summary="outermost modules are compiled in place (Module.compile) after the first step",
    repairs=("fusion_opportunity", "compile"),
    eases=("launch_bound",),
    lines="model.compile()",
    refused="Refused where the module or one inside it is compiled or scripted already. Modules "
    "that are first called after the first optimizer step, and code outside of modules (the loss, "
    "the optimizer), stay as they are.",
    rounding=True,
    warmup=8,
    order=9,
)
_accepted: list[Any] = []


def on_module(change: Change, module: Any) -> None:
    """An outermost module is called for the first time; it is compiled after this step."""
    for inner in module.modules():
        kind = type(inner).__name__
        if getattr(inner, "_compiled_call_impl", None) is not None or kind == "OptimizedModule":
            change.decline(f"{type(module).__name__} is compiled already, or {kind} inside it")
            return
        if isinstance(inner, change.torch.jit.ScriptModule):
            change.decline(f"{type(module).__name__} is scripted, or {kind} inside it")
            return
    _accepted.append(module)


def after_step(change: Change, number: int) -> None:
    """Nothing watches the modules any more after the first step: they can be compiled."""
    if number != 1:
        return
    for module in _accepted:
        module.compile()
        change.trial.call_before(module)
        change.applied()
