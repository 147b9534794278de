"""No garbage collection while a step runs.

Looking at an object costs the collector as much as making it does, so a program that keeps many
(a history of its metrics, say) would pay for each of them once more after the steps. Where steps
are found to leave next to no garbage, what they make is therefore taken for alive and not looked
at, until memory has grown so much that something may have been missed.
"""

from __future__ import annotations

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import Change

TRY = Try(
    "no-gc-in-steps",
    summary="after the first step Python collects no garbage by itself and what lives is frozen; "
    "young garbage is collected after every 50th step, of which only that one is looked at where "
    "steps make many objects and leave no garbage",
    eases=("step_jitter",),
    lines="gc.collect(); gc.freeze(); gc.disable() before the loop, and, where steps leave garbage "
    "in reference cycles, gc.collect(1) after every 50th step",
    refused="Changes nothing where the program has turned collection off. Memory in reference "
    "cycles is freed later: when the memory of the process, or what PyTorch has on the GPU, has "
    "grown by half, all objects are looked at.",
)
_BETWEEN = 50
_EARLY = (2, 4, 8)
"""Steps after which young garbage is counted; the first ones may compile, which leaves some."""
_LONG_NS = 200_000
"""Time that looking at what one step has left alive takes, from which on it is worth saving."""
_NEXT_TO_NONE = 100
"""Objects of garbage a step up to which steps leave next to none."""
_GROWN = 1.5


class _Garbage:
    """What is known of this process.

    Attributes:
        counted: the step after which young objects were looked at last.
        a_step: how many of them were garbage, for each step since the time before.
        looking_ns: how long that took, likewise.
        passed_over: whether what the steps before this one made is not looked at.
        memory: bytes when all objects were looked at last: of the process, and on the GPU.
    """

    def __init__(self) -> None:
        self.counted = 1
        self.a_step = 0.0
        self.looking_ns = 0.0
        self.passed_over = False
        self.memory = (0, 0)

    def collect(self, number: int, generation: int) -> None:
        """Collect young garbage after a step, and note how much there was."""
        import gc
        import time

        steps = 1 if self.passed_over else number - self.counted
        began = time.perf_counter_ns()
        self.a_step = gc.collect(generation) / steps
        self.looking_ns = (time.perf_counter_ns() - began) / steps
        self.counted = number


_garbage = _Garbage()


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
    elif gc.isenabled():
        return  # the program decides
    elif number in _EARLY:
        _garbage.collect(number, 0)
        _garbage.memory = _memory(change)
    elif (number + 1) % _BETWEEN == 0:
        _garbage.passed_over = _garbage.looking_ns > _LONG_NS and _garbage.a_step <= _NEXT_TO_NONE
        if _garbage.passed_over:
            gc.freeze()
    elif number % _BETWEEN == 0:
        _garbage.collect(number, 1)
        _collect_missed(change)


def _collect_missed(change: Change) -> None:
    """Look at all objects where some that were passed over seem to be garbage."""
    import gc

    memory = _memory(change)
    grown = any(now > _GROWN * then for now, then in zip(memory, _garbage.memory))  # noqa: B905 - Python 3.8
    if grown or (_garbage.passed_over and _garbage.a_step > _NEXT_TO_NONE):
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _garbage.memory = memory
    if _garbage.passed_over:
        change.note(
            "steps leave next to no garbage in reference cycles, so what they make is not looked at"
        )


def _memory(change: Change) -> tuple[int, int]:
    """The most memory that this process had so far, and what PyTorch has on the GPU, bytes."""
    try:
        import resource
    except ImportError:  # Windows
        peak = 0
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cuda = change.torch.cuda
    used = cuda.is_initialized() and hasattr(cuda, "memory_allocated")
    return peak, cuda.memory_allocated() if used else 0
