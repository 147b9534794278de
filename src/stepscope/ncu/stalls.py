"""Why warps wait: every stall reason with its meaning and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stepscope.ncu.metrics import SAMPLES_METRIC, STALLS_METRIC
from stepscope.ncu.model import Launch


@dataclass(frozen=True)
class Stall:
    """One reason.

    Attributes:
        title: as Nsight Compute shows it.
        waits_for: what the warp waits for.
        remedy: what helps.
        names: spellings in metric names, the newest first.
        idle: whether the warp truly waits; not when it issues or is merely not chosen.
    """

    title: str
    waits_for: str
    remedy: str
    names: tuple[str, ...]
    idle: bool = True


STALLS: Final = {
    "long_scoreboard": Stall(
        "Long Scoreboard",
        "data from global or local memory (L1, L2, DRAM)",
        "more loads in flight (unrolling, wider loads, more warps), coalescing, shared memory or "
        "asynchronous copies ahead of use",
        ("long_scoreboard",),
    ),
    "short_scoreboard": Stall(
        "Short Scoreboard",
        "shared memory, special functions, or atomics of shared memory",
        "fewer bank conflicts, wider accesses of shared memory, fewer special functions",
        ("short_scoreboard",),
    ),
    "barrier": Stall(
        "Barrier",
        "the other warps of the block at __syncthreads",
        "fewer barriers, smaller blocks, warp shuffles or warp-level synchronisation, even work "
        "between barriers",
        ("barrier",),
    ),
    "mio_throttle": Stall(
        "MIO Throttle",
        "room in the queue of shared memory, special functions and dynamic branches",
        "fewer bank conflicts, fewer and wider accesses of shared memory",
        ("mio_throttle",),
    ),
    "lg_throttle": Stall(
        "LG Throttle",
        "room in the queue of global and local memory",
        "fewer and wider loads and stores, no spills",
        ("lg_throttle",),
    ),
    "tex_throttle": Stall(
        "Tex Throttle", "room in the queue of the texture unit",
        "fewer texture and surface accesses",
        ("tex_throttle",),
    ),
    "drain": Stall(
        "Drain",
        "its stores or reductions to leave for memory before it may exit",
        "coalesced stores, fewer atomics on one address (reduce within the block first)",
        ("drain",),
    ),
    "membar": Stall(
        "Membar", "a memory barrier", "fewer or narrower fences (__threadfence_block)", ("membar",)
    ),
    "math_pipe_throttle": Stall(
        "Math Pipe Throttle",
        "a free arithmetic unit",
        "another mix of instructions, tensor cores, fewer operations: the unit is busy",
        ("math_pipe_throttle",),
    ),
    "dispatch_stall": Stall(
        "Dispatch Stall",
        "the dispatcher, which resources such as register ports hold back",
        "another order of instructions or operands; often beyond the programmer's reach",
        ("dispatch_stall",),
    ),
    "wait": Stall(
        "Wait",
        "the fixed latency of the instruction before",
        "independent instructions between dependent ones (unrolling), more warps",
        ("wait",),
    ),
    "branch_resolving": Stall(
        "Branch Resolving", "the target of a branch", "fewer branches, unrolled loops",
        ("branch_resolving",),
    ),
    "no_instruction": Stall(
        "No Instruction",
        "the next instruction to be fetched",
        "smaller code (less unrolling and inlining), fewer jumps",
        ("no_instruction", "no_instructions"),
    ),
    "imc_miss": Stall(
        "IMC Miss", "constants that the immediate cache lacks",
        "fewer or uniform constant accesses",
        ("imc_miss",),
    ),
    "sleeping": Stall("Sleeping", "the end of __nanosleep", "shorter sleeps", ("sleeping",)),
    "gmma": Stall(
        "GMMA",
        "GEMMs of the warp group",
        "deeper pipelining of tensor-core work; this is what a full tensor pipe looks like",
        ("gmma", "warpgroup_arrive"),
    ),
    "misc": Stall("Misc", "something not listed", "none known", ("misc",)),
    "not_selected": Stall(
        "Not Selected",
        "nothing: another warp was chosen",
        "none needed: there are more ready warps than issue slots",
        ("not_selected",),
        idle=False,
    ),
    "selected": Stall("Selected", "nothing: it issues", "none needed", ("selected",), idle=False),
}  # fmt: skip
"""Every stall reason by key."""


def stall_cycles(launch: Launch) -> dict[str, float]:
    """Cycles of a warp for each issued instruction by reason, the most first.

    Empty where the report has no warp states; samples stand in for the measured cycles where the
    report has only those, scaled so that issuing takes one cycle.
    """
    found = _read(launch, STALLS_METRIC)
    if not found:
        samples = _read(launch, SAMPLES_METRIC)
        issued = samples.get("selected", 0.0)
        found = {key: n / issued for key, n in samples.items()} if issued else {}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _read(launch: Launch, metric: str) -> dict[str, float]:
    found = {}
    for key, stall in STALLS.items():
        for name in stall.names:
            value = launch.values.get(metric.format(name))
            if value is not None and value >= 0:
                found[key] = value
                break
    return found
