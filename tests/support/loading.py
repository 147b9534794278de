"""A loader with workers, simulated on its own: the ground truth for predictions of its repair.

It knows nothing of the simulator under test. Workers take turns, as PyTorch's do: batch ``k`` is
worker ``k % workers``'s, which begins it once it has finished its last one and the training thread
has taken the batch ``ahead * workers`` before it. One thread pins the batches in order.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """One batch, times in us: its worker, when that made it, when the training thread asked for it,
    and when it had it."""

    worker: int
    made: tuple[float, float]
    asked: float
    given: float


def loading(
    *,
    workers: int,
    batch_us: float,
    step_us: float,
    pin_us: float = 0.0,
    ahead: int = 2,
    steps: int = 200,
    pause_us: float = 0.0,
) -> list[Batch]:
    """The batches of a loop that trains for ``step_us`` on each, and pauses after the first one."""
    free = [0.0] * workers
    pinning = now = 0.0
    found: list[Batch] = []
    for k in range(steps):
        depth = ahead * workers
        begin = max(free[k % workers], found[k - depth].given if k >= depth else 0.0)
        made = begin + batch_us
        free[k % workers] = made
        pinning = max(pinning, made) + pin_us
        asked, now = now, max(now, pinning)
        found.append(Batch(k % workers, (begin, made), asked, now))
        now += step_us + (0.0 if k else pause_us)
    return found


def mean_step(batches: list[Batch]) -> float:
    """The mean step of the second half, in us."""
    half = batches[len(batches) // 2 :]
    return (half[-1].given - half[0].given) / (len(half) - 1)
