"""What tries change in an optimizer that is being made."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Change


def parameters(given: dict[str, Any]) -> list[Any]:
    """The tensors that an optimizer is made for; generators among its arguments become lists."""
    given["params"] = groups = list(given["params"])
    found: list[Any] = []
    for number, group in enumerate(groups):
        if not isinstance(group, dict):
            found.append(group[1] if isinstance(group, tuple) else group)
            continue
        held = group["params"]
        held = [held] if hasattr(held, "is_cuda") else list(held)
        groups[number] = {**group, "params": held}
        found += [one[1] if isinstance(one, tuple) else one for one in held]
    return found


def why_not(change: Change, optimizer: Any, given: dict[str, Any], wanted: str) -> str:
    """Why an optimizer that is being made cannot have an implementation; empty where it can.

    Args:
        change: knows the arguments that the optimizer takes.
        optimizer: what is being made.
        given: its arguments.
        wanted: ``fused`` or ``foreach``.
    """
    name = type(optimizer).__name__
    if wanted not in change.trial.accepted:
        return f"{name} has no {wanted}="
    if not str(type(optimizer).step.__module__).startswith("torch."):
        return f"{name} has a step of its own"  # written by the program: it heeds no setting
    if given.get("differentiable"):
        return f"{name} is differentiable, which {wanted} steps are not"
    return ""


def choose(change: Change, optimizer: Any, given: dict[str, Any], wanted: str) -> None:
    """Have an optimizer made with one of its implementations, in all of its groups.

    Args:
        change: takes note.
        optimizer: what is being made.
        given: its arguments.
        wanted: ``fused`` or ``foreach``; the other one is turned off.
    """
    other = "foreach" if wanted == "fused" else "fused"
    given[wanted] = True
    if given.get(other):
        given[other] = None
    for group in given["params"]:
        if isinstance(group, dict):
            group.pop(other, None)
            if wanted in group:
                group[wanted] = True
    change.trial.after_build(optimizer, lambda: _keep(optimizer, wanted, other))
    change.applied()


def _keep(optimizer: Any, wanted: str, other: str) -> None:
    """A state that is loaded brings the settings of the run that wrote it."""
    register = getattr(optimizer, "register_load_state_dict_pre_hook", None)
    if register is None:
        return

    def before(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        groups = [{**group, wanted: True, other: None} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    register(before)
