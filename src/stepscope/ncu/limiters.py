"""What can hold a launch back: every limiter with its definition and what helps.

:mod:`stepscope.ncu.decide` tells which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Bound = Literal["compute", "memory", "latency", "launch", "unknown"]


@dataclass(frozen=True)
class Limiter:
    """One answer.

    Attributes:
        id: public name.
        title: for people.
        bound: the class it belongs to.
        meaning: definition.
        advice: what helps, the most effective first.
    """

    id: str
    title: str
    bound: Bound
    meaning: str
    advice: tuple[str, ...]


def _l(id_: str, title: str, bound: Bound, meaning: str, *advice: str) -> tuple[str, Limiter]:
    return id_, Limiter(id_, title, bound, meaning, advice)


LIMITERS: Final = dict(
    (
        _l("small_grid", "grid too small", "launch",
           "The grid gives work to less than half of the SMs.",
           "more, smaller blocks, or more work a launch (larger batches)",
           "split the reduction or loop over further blocks (split-K, grid-stride loop)",
           "run it beside other kernels on another stream"),
        _l("short_kernel", "too short", "launch",
           "The kernel is so short that starting and ending it is a main part of its time, and no "
           "unit is busy.",
           "fuse it with its neighbours (torch.compile)", "capture the step as a CUDA graph"),
        _l("tail_effect", "uneven last wave", "launch",
           "The last wave of blocks wastes a third of the device's time, and no unit is busy.",
           "a number of blocks that is a multiple of what fits at once", "smaller blocks"),
        _l("tensor_bound", "tensor cores", "compute",
           "The tensor cores are busy more than half of the time.",
           "little is left here but fewer or narrower operations (FP8), or sparsity"),
        _l("compute_bound", "arithmetic", "compute",
           "An arithmetic pipe or the issue of instructions is busy more than half of the time.",
           "fewer operations: fused multiply-add, cheaper functions, less index arithmetic",
           "tensor cores for GEMMs; narrower types"),
        _l("divergence", "divergent threads", "compute",
           "The SMs are busy, but fewer than half of a warp's threads take part.",
           "let the threads of a warp take the same branch: sort or group the work",
           "replace branches by selection or tables"),
        _l("barriers", "barriers", "latency",
           "Warps wait at barriers more than for anything else, and no arithmetic pipe is busy.",
           "fewer __syncthreads: warp shuffles, __syncwarp, double buffering",
           "smaller blocks, so that other blocks fill the wait", "even work between barriers"),
        _l("bank_conflicts", "bank conflicts", "memory",
           "More than half of the passes through shared memory are repeats because threads of a "
           "warp meet in one bank, and shared memory is what the kernel is busy with or waits for.",
           "pad rows by one element, or swizzle the index",
           "consecutive threads on consecutive words"),
        _l("uncoalesced", "uncoalesced accesses", "memory",
           "More than half of the sectors moved for global accesses are not used, and the memory "
           "system is busy or congested.",
           "consecutive threads on consecutive addresses; transpose through shared memory",
           "structures of arrays; channels_last or contiguous tensors"),
        _l("spills", "register spills", "memory",
           "More than half of the requests go to local memory, and memory is what the kernel is "
           "busy with or waits for.",
           "fewer live values: smaller tiles, less unrolling; a higher register limit",
           "no arrays indexed at run time"),
        _l("atomics", "contended atomics", "memory",
           "At least half of the global requests are atomics or reductions, and warps wait for "
           "them while the memory system as a whole is idle: they meet on few addresses.",
           "reduce within the warp and block first, then one atomic a block",
           "spread the counters over several addresses"),
        _l("dram_bound", "DRAM bandwidth", "memory",
           "Device memory is the busiest level, more than half of its peak.",
           "fewer bytes: narrower types, fusion of neighbours, reuse in caches"),
        _l("l2_bound", "L2 bandwidth", "memory",
           "The L2 cache is the busiest level, more than half of its peak.",
           "reuse in L1 or shared memory: tiling", "coalesced and wider accesses"),
        _l("l1_bound", "L1 and shared memory", "memory",
           "L1 or shared memory is the busiest level, more than half of its peak.",
           "reuse in registers: larger tiles a thread", "wider accesses (float4)"),
        _l("congested_memory", "congested memory", "memory",
           "Loads take more than twice the longest latency of an idle device, or the queue of "
           "memory instructions is full: they queue, though no unit is half busy on average.",
           "spread the accesses over more addresses; fewer, larger requests"),
        _l("low_occupancy", "low occupancy", "latency",
           "Registers, shared memory or the block size allow at most half of the warps, those are "
           "there, and they wait.",
           "use less of what limits it", "more independent work a thread"),
        _l("memory_latency", "latency of memory", "latency",
           "Warps wait for loads more than for anything else, with neither bandwidth nor queues at "
           "their limit.",
           "loads that do not depend on one another: prefetch, unroll, wider loads",
           "more warps: a larger grid", "keep what is reused in shared memory"),
        _l("shared_latency", "latency of shared memory", "latency",
           "Warps wait for shared memory or special functions more than for anything else.",
           "wider accesses, values in registers, warp shuffles"),
        _l("instruction_fetch", "instruction fetch", "latency",
           "Warps wait for instructions more than for anything else.",
           "smaller code: less unrolling and inlining"),
        _l("dependencies", "dependent instructions", "latency",
           "Warps wait for the instruction before more than for anything else.",
           "more independent instructions a thread, more warps"),
        _l("latency", "latency", "latency",
           "No unit is busy; what warps wait for is spread, or the report does not tell.",
           "collect --set full, which tells what warps wait for"),
        _l("unknown", "not known", "unknown",
           "The report lacks the throughputs of compute and memory.",
           "collect at least --set basic"),
    )
)  # fmt: skip
"""Every limiter by id."""
