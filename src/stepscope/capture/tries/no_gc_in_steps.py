"""No garbage collection while a step runs."""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import Change

TRY = Try(
    "no-gc-in-steps",
    summary="after the first step Python collects no garbage by itself, what lives is frozen, and "
    "young garbage is collected after every 50th step",
    eases=("step_jitter",),
    lines="gc.collect(); gc.freeze(); gc.disable() before the loop, and gc.collect(1) after every "
    "50th step",
    refused="Changes nothing where the program has turned collection off. Memory in reference "
    "cycles is freed later.",
)
_BETWEEN = 50


def after_step(change: Change, number: int) -> None:
    """A step has ended."""
    import gc

    if number == 1:
        if not gc.isenabled():
            change.left("the program has turned garbage collection off")
            return
        gc.collect()
        gc.freeze()
        gc.disable()
        change.applied()
    elif number % _BETWEEN == 0 and not gc.isenabled():
        gc.collect(1)
