"""Sums of gradients behind a backward pass or beside it, by hand: exact times of equal ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.support.build import Build
from tests.support.ddp import ALL_REDUCE, CALL

from stepscope.api import Job

Kernel = tuple[str, float, float]
"""Name, begin and end of an operation, us."""


def end_of(begin: float, work: float, free: float, slowed: float) -> float:
    """When compute ends that gets as much less done as it is slowed until the link is free."""
    done = min(max(free - begin, 0.0) * (1 - slowed), work)
    return begin + done / (1 - slowed) + work - done


def equal_ranks(folder: Path, build: Build, ranks: int) -> Job:
    """A job whose ranks have recorded the same."""
    for number in range(ranks):
        place = folder / f"rank{number}"
        place.mkdir(parents=True)
        build.trace(place, rank=number, rank_source="test", origin_epoch_ns=10**18,
                    world_size=ranks)  # fmt: skip
    return Job([folder / f"rank{n}" / "built.stepscope" for n in range(ranks)])


@dataclass(frozen=True)
class Model:
    """A step of each rank, us.

    Attributes:
        layers: layers; each has a kernel of the forward pass, and one twice as long backward.
        forward: how long the former takes.
        transfer: what summing the gradients of one layer takes.
        update: what the optimizer takes.
        slowed: share of a transfer's time that the compute beside it takes longer.
    """

    layers: int = 24
    forward: float = 200.0
    transfer: float = 80.0
    update: float = 500.0
    slowed: float = 0.0

    def step(self, begin: float, groups: int, *, beside: bool) -> list[Kernel]:
        """What a device does in a step, sums of so many groups of layers among it."""
        found = []
        now = free = begin
        for n in range(self.layers):
            found.append((f"forward_{n}", now, now + self.forward))
            now += self.forward
        edges = [round(n * self.layers / groups) for n in range(groups + 1)]
        waiting: list[float] = []
        for first, last in pairwise(edges):
            for n in range(first, last):
                begun, work = now, 2 * self.forward
                now = end_of(now, work, free if beside else now, self.slowed)
                found.append((f"backward_{n}", begun, now))
            took = (last - first) * self.transfer
            if beside:
                free = max(free, now) + took
                found.append((ALL_REDUCE, free - took, free))
            else:
                waiting.append(took)
        free = max(free, now)
        for took in waiting:
            found.append((ALL_REDUCE, free, free + took))
            free += took
        found.append(("adam", free, free + self.update))
        return found

    def step_us(self, groups: int, *, beside: bool) -> float:
        """How long a step takes, us."""
        return self.step(0.0, groups, beside=beside)[-1][2]


def played(
    folder: Path, model: Model, groups: int, *, beside: bool, ranks: int = 2, steps: int = 8
) -> Job:
    """The captures of all ranks, whose hosts enqueue as far ahead as they can."""
    build = Build()
    called, begin = 0.0, 100.0
    for step in range(steps):
        build.range(called, called + 1, f"step {step}")
        summed = False
        for name, start, end in model.step(begin, groups, beside=beside):
            called += CALL
            moves = name == ALL_REDUCE
            if moves or (summed and name == "adam"):
                build.api(called, called + 1, "cudaStreamWaitEvent")
                called += CALL
            summed |= moves
            call = called, called + CALL - 1
            build.kernel(start, end, call=call, name=name, stream=20 if moves else 7, grid_x=64)
            begin = end
        called += CALL
    build.api(called + 5, begin + 10, "cudaDeviceSynchronize")
    return equal_ranks(folder, build, ranks)
