"""Data-parallel ranks by hand: each step computes, sums gradients, updates; exact times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.build import Build

from stepscope.api import Job

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"
KERNELS = 10
MOVES, UPDATE, CALL = 100.0, 300.0, 5.0
STATE = 8 << 20


@dataclass(frozen=True)
class Rank:
    """What one rank does, us; functions of the step's number and the kernel's.

    Attributes:
        kernel: how long a kernel of the forward and backward pass takes.
        blocks: blocks of a kernel, by which work is told from pace.
        work: what the host does before it launches a step.
        slowed: what a transfer takes longer on its account.
        saves: whether it saves its state behind a step.
    """

    kernel: Callable[[int, int], float] = lambda step, k: 400.0
    blocks: Callable[[int], int] = lambda step: 64
    work: Callable[[int], float] = lambda step: 0.0
    slowed: Callable[[int], float] = lambda step: 0.0
    saves: Callable[[int], bool] = lambda step: False


COPIES, COPY, WRITE = 12, 500.0, 20_000.0


def played(folder: Path, ranks: list[Rank], steps: int, *, ahead: bool = True) -> Job:
    """The captures of all ranks.

    Args:
        folder: where to write them.
        ranks: what each does.
        steps: number of steps.
        ahead: hosts enqueue as far ahead as they can; else each waits for the last step but one.
    """
    builds = [Build() for _ in ranks]
    device, host = [100.0] * len(ranks), [0.0] * len(ranks)
    begun = [0.0] * len(ranks)
    for step in range(steps):
        arrived = []
        for number, (rank, build) in enumerate(zip(ranks, builds, strict=True)):
            if not ahead and begun[number] > host[number] + 2:
                build.api(host[number] + 1, begun[number], "cudaEventSynchronize")
                host[number] = begun[number]
            called = host[number]
            build.range(called, called + 1, f"step {step}")
            called += rank.work(step)
            now = begun[number] = max(device[number], called + 20)
            for k in range(KERNELS):
                length = rank.kernel(step, k)
                called += CALL
                now = max(now, called + 6)
                build.kernel(now, now + length, call=(called, called + 4), name=f"k{k}",
                             grid_x=rank.blocks(step))  # fmt: skip
                now += length
            arrived.append(now)
            host[number] = called
        end = max(arrived) + MOVES + max(rank.slowed(step) for rank in ranks)
        for number, (rank, build) in enumerate(zip(ranks, builds, strict=True)):
            called = host[number]
            for start, stop, name, stream in (
                (arrived[number], end, ALL_REDUCE, 20),
                (end, end + UPDATE, "adam", 7),
            ):
                called += 2 * CALL
                build.api(called - CALL, called - 1, "cudaStreamWaitEvent")
                build.kernel(start, stop, call=(called, called + 4), name=name, stream=stream,
                             grid_x=24)  # fmt: skip
            device[number] = now = end + UPDATE
            host[number] = called + CALL
            if rank.saves(step):
                for _ in range(COPIES):
                    call = max(host[number], now - COPY), now + COPY
                    build.copy(now + 10, now + COPY - 10, call=call, kind="DtoH", size=STATE,
                               src="device", dst="pageable")  # fmt: skip
                    host[number] = now = now + COPY
                device[number] = now
                host[number] = now + WRITE
    for number, build in enumerate(builds):
        build.api(host[number] + 5, max(device[number], host[number]) + 10, "cudaDeviceSynchronize")
        place = folder / f"rank{number}"
        place.mkdir(parents=True)
        build.trace(place, rank=number, rank_source="test", origin_epoch_ns=10**18,
                    world_size=len(ranks))  # fmt: skip
    return Job([folder / f"rank{n}" / "built.stepscope" for n in range(len(ranks))])
