"""Fixes that ``stepscope run --try`` applies to a program from outside: one file each.

A file declares a ``TRY`` and handles events of the program, each a function of a fixed name whose
first argument is the :class:`~stepscope.capture.tries.base.Change` that it makes:

* ``at_start(change)``: Python starts; nothing of the program has run.
* ``on_torch(change, torch)``: the program has imported torch.
* ``on_loader(change, loader, given)``: a ``DataLoader`` is made of these arguments.
* ``on_optimizer(change, optimizer, given)``: an optimizer is made of these arguments.
* ``at_work(change)``: the first forward pass, or else the first optimizer step, begins.
* ``on_module(change, module)``: an outermost module is called for the first time.
* ``on_backward(change)``: a backward pass begins.
* ``after_step(change, number)``: an optimizer step has ended, the first being number 1.

The package is loaded in two places: by the command line, the documentation and ``--try auto``,
which read the declarations, and under a name of its own inside the program. It knows the standard
library only, and names its neighbours relatively.
"""

from __future__ import annotations

import importlib
import os

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_NO_TRIES = ("__init__", "base", "loaders", "optimizers")


class UnknownTryError(Exception):
    """A text names no try, or gives one a value that it does not take; one sentence."""


def declared() -> dict[str, Try]:
    """All tries by name."""
    found = [_module(stem).TRY for stem in _stems()]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def chosen(text: str) -> list[tuple[ModuleType, str]]:
    """The files of the tries that a list names, with their values, in the order of application.

    Args:
        text: names with values, separated by commas, as in ``pin-memory,workers=4``.

    Raises:
        UnknownTryError: there is none of a name, it comes twice, or its value is not one it takes.
    """
    found: list[tuple[ModuleType, str]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, given, value = part.partition("=")
        stem = name.replace("-", "_")
        if stem not in _stems() or "_" in name:
            known = ", ".join(one.shown for one in declared().values())
            raise UnknownTryError(f"there is no try {part!r}; there are {known}")
        module = _module(stem)
        if problem := module.TRY.refuse_value(value if given else None):
            raise UnknownTryError(problem)
        if module in [other for other, _ in found]:
            raise UnknownTryError(f"{name} is named twice; name it once")
        found.append((module, value))
    if not found:
        raise UnknownTryError("--try names no fix; give one, as in --try pin-memory")
    return sorted(found, key=lambda one: one[0].TRY.order)


def _stems() -> list[str]:
    files = os.listdir(__path__[0])  # noqa: PTH208 - pathlib costs start-up
    names = {name[: -len(".py")] for name in files if name.endswith(".py")}
    return sorted(names.difference(_NO_TRIES))


def _module(stem: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{stem}")
