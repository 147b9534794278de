"""What holds a launch back: one limiter, decided by measured figures alone.

The order of the questions is the order in which a repair pays: a device that stands idle before
units that are busy, busy units before waits, and within each the waste before the pure limit.
Thresholds are properties of the hardware or of the argument, and are given with their reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from stepscope.ncu.limiters import LIMITERS, Limiter
from stepscope.ncu.memory import Memory, memory_of
from stepscope.ncu.model import Launch
from stepscope.ncu.occupancy import LIMITS, Occupancy, occupancy_of
from stepscope.ncu.stalls import STALLS, stall_cycles
from stepscope.trace.units import percent

BUSY = 50.0
"""Percent of its peak from which a unit limits the kernel: even if every wait were hidden, the
kernel could not become twice as fast without less work for this unit."""

SATURATED = 80.0
"""Percent from which a unit is practically full: sustained traffic of DRAM ends at 80 to 90 %."""

WASTE = 0.5
"""Share of a unit's work that is waste from which the waste is the finding: without it, more than
half of the work would be gone."""

FEW_THREADS = 16.0
"""Active threads of a warp's 32 below which divergence costs more than half of the issue."""

FILLED = 0.5
"""Share of the SMs with work below which the grid alone bars half of the device."""

LOW_OCCUPANCY = 0.5
"""Theoretical occupancy from which on resources take at least half of the warps that could hide
latency."""

ACHIEVED = 0.7
"""Share of the theoretical occupancy that must be achieved before it is what limits: else blocks
run out or are uneven, and a higher limit would stay unused."""

TOP_WAIT = 0.25
"""Share of the true waits from which the first stall reason is worth naming: with about a dozen
reasons that occur, an even spread is under a tenth each."""

UNLOADED_LATENCY = 1029
"""Cycles of a load that misses the caches and the TLB on an idle device, the longest that is
published: Jia et al., Dissecting the NVIDIA Volta GPU Architecture (2018). Later devices are at
500 to 1000. Twice this, a load stands in a queue: the memory system is congested."""

ENOUGH_WARPS = 4.0
"""Warps a scheduler that hide the latency of arithmetic, four cycles. With fewer, waits are not
proof of a congested memory."""

TAIL = 1 / 3
"""Share of the time that an uneven last wave must cost to be the limiter: a grid that fits would
be half again as fast. Two waves lose half at most, three a third."""

SHORT_NS = 5_000
"""Time within which starting and ending a grid, 2 to 3 us, is a main part."""

PIPES: Final = {
    "pipe_tensor": "tensor cores",
    "pipe_fma": "FMA (single precision and integer multiplications)",
    "pipe_alu": "ALU (integer, logic, comparisons)",
    "pipe_fp64": "FP64",
    "pipe_xu": "XU (special functions, conversions)",
    "pipe_lsu": "LSU (loads and stores)",
    "pipe_adu": "ADU (branches and barriers)",
    "pipe_tma": "TMA (bulk copies)",
}
"""Metric of a pipe -> what it does."""

_MATH_PIPES: Final = ("pipe_tensor", "pipe_fma", "pipe_alu", "pipe_fp64", "pipe_xu")
_MEMORY_WAITS: Final = ("long_scoreboard", "lg_throttle", "drain", "membar", "tex_throttle")
# by definition: the queue of memory instructions has no room
_FULL_QUEUES: Final = ("lg_throttle", "tex_throttle")
_SHARED_WAITS: Final = ("short_scoreboard", "mio_throttle")
# more warps do not shorten these: they wait for one another, or for the code
_NOT_HIDDEN: Final = ("barrier", "membar", "no_instruction", "branch_resolving", "imc_miss",
                      "sleeping")  # fmt: skip
_LEVELS: Final = (("dram__", "dram"), ("fbpa__", "dram"), ("lts__", "l2"), ("l1tex__", "l1"))


@dataclass(frozen=True)
class Finding:
    """What holds a launch back.

    Attributes:
        limiter: the answer.
        reasons: the figures that say so, as sentences.
        level: memory level for limits of bandwidth: ``dram``, ``l2``, ``l1``; else empty.
    """

    limiter: Limiter
    reasons: tuple[str, ...]
    level: str = ""


class Facts:
    """The figures of one launch that limiters are decided by."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.stalls = stall_cycles(launch)
        self.memory: Memory = memory_of(launch, self.stalls)
        self.occupancy: Occupancy = occupancy_of(launch)
        self.sm = launch.get("sm_throughput")
        self.mem = launch.get("memory_throughput")

    @cached_property
    def waits(self) -> dict[str, float]:
        """Share of the true waits by reason, the most first."""
        idle = {key: cycles for key, cycles in self.stalls.items() if STALLS[key].idle}
        total = sum(idle.values())
        return {key: cycles / total for key, cycles in idle.items()} if total else {}

    @property
    def top_wait(self) -> str:
        """First stall reason; empty where unknown, or where none stands out."""
        first = next(iter(self.waits.items()), ("", 0.0))
        return first[0] if first[1] >= TOP_WAIT else ""

    def waiting(self, reasons: tuple[str, ...]) -> float:
        """Share of the true waits that some reasons have together."""
        return sum(self.waits.get(key, 0.0) for key in reasons)

    @cached_property
    def level(self) -> tuple[str, float]:
        """(memory level, percent) of the unit that the memory throughput is set by."""
        known = self.launch.breakdown.get("memory", {})
        best = max(known.items(), key=lambda item: item[1], default=None)
        if best is not None:
            level = next((level for stem, level in _LEVELS if best[0].startswith(stem)), "")
            if level:
                return level, best[1]
        # the memory throughput is the highest of its parts; a level's own throughput may count
        # more than these parts, so the level that fits it is meant, not the highest
        mem = self.mem or 0.0
        levels = {
            level: self.launch.get(f"{level}_throughput") or 0.0 for level in ("dram", "l2", "l1")
        }
        level = min(levels, key=lambda key: abs(levels[key] - mem))
        return level, levels[level]

    @cached_property
    def pipe(self) -> tuple[str, float]:
        """(key, percent) of the busiest arithmetic pipe; empty where unknown."""
        known = {key: self.launch.get(key) for key in _MATH_PIPES}
        found = {key: value for key, value in known.items() if value is not None}
        best = max(found, key=lambda key: found[key], default="")
        return best, found.get(best, 0.0)

    @property
    def queued(self) -> bool | None:
        """Whether loads stand in queues; None where the report does not tell."""
        if self.top_wait in _FULL_QUEUES:
            return True
        if self.memory.load_latency is not None:
            return self.memory.load_latency > 2 * UNLOADED_LATENCY
        warps = self.launch.get("active_warps")
        return None if warps is None else warps >= ENOUGH_WARPS


def limiter_of(launch: Launch) -> Finding:
    """What holds a launch back."""
    return finding_of(Facts(launch))


def finding_of(facts: Facts) -> Finding:
    """What holds a launch back, from its figures."""
    for question in (_grid, _busy_memory, _busy_compute, _waiting):
        found = question(facts)
        if found is not None:
            return found
    return _found("latency", _idle(facts))


def _found(id_: str, *caused_by: str, level: str = "") -> Finding:
    return Finding(LIMITERS[id_], tuple(text for text in caused_by if text), level)


def _grid(facts: Facts) -> Finding | None:
    if facts.sm is None and facts.mem is None:
        return _found("unknown", "the report holds no speed of light")
    filled = facts.occupancy.filled
    if filled is not None and filled < FILLED:
        launch = facts.launch
        return _found(
            "small_grid",
            f"{launch.blocks:,} of {launch.sms:,} SMs have a block",
            _idle(facts),
        )
    return None


def _wasteful(facts: Facts) -> Finding | None:
    """Waste in the memory, where memory is already known to be what counts."""
    memory = facts.memory
    if (memory.spill_share or 0) > WASTE:
        return _found(
            "spills", f"{percent(memory.spill_share or 0)} of the requests go to local memory"
        )
    if (memory.excess_sectors or 0) > WASTE:
        each = memory.sectors_per_load or memory.sectors_per_store
        unused = percent(memory.excess_sectors or 0)
        return _found(
            "uncoalesced",
            f"{unused} of the sectors moved for global accesses are not used",
            f"{each:.1f} sectors a request" if each else "",
        )
    return None


def _banked(facts: Facts) -> Finding | None:
    excess = facts.memory.bank_excess
    if excess is None or excess <= WASTE:
        return None
    return _found(
        "bank_conflicts", f"{percent(excess)} of the passes through shared memory repeat others"
    )


def _busy_memory(facts: Facts) -> Finding | None:
    mem = facts.mem or 0.0
    if mem < BUSY or mem < (facts.sm or 0.0):
        return None
    level, percent = facts.level
    stated = f"memory throughput {mem:.1f} % of peak, compute {facts.sm or 0:.1f} %"
    waste = (_banked(facts) if level == "l1" else None) or _wasteful(facts)
    if waste is not None:
        return Finding(waste.limiter, (stated, *waste.reasons), level)
    name = {"dram": "device memory", "l2": "L2", "l1": "L1 and shared memory"}[level]
    open_ = "" if mem >= SATURATED else "not saturated: more bytes in flight would still help"
    dram = facts.launch.get("dram_throughput") or 0.0
    also = f"device memory at {dram:.1f} %" if level != "dram" and dram >= BUSY else ""
    return _found(f"{level}_bound", stated, f"{name} at {percent:.1f} %", also, open_, level=level)


def _busy_compute(facts: Facts) -> Finding | None:
    sm = facts.sm or 0.0
    if sm < BUSY:
        return None
    pipe, percent = facts.pipe
    stated = f"compute throughput {sm:.1f} % of peak, memory {facts.mem or 0:.1f} %"
    busiest = f"{PIPES[pipe]} at {percent:.1f} %" if pipe else ""
    if pipe == "pipe_tensor" and percent >= BUSY:
        return _found("tensor_bound", stated, busiest)
    if facts.top_wait == "barrier" and percent < BUSY:
        return _found("barriers", stated, _wait_text(facts), f"busiest arithmetic pipe: {busiest}")
    threads = facts.launch.get("threads_per_instruction")
    if threads is not None and threads < FEW_THREADS:
        return _found(
            "divergence", stated, f"{threads:.1f} of 32 threads take part in an instruction"
        )
    slots = facts.launch.get("issue_slots_busy") or 0.0
    issue = f"issue slots at {slots:.1f} %" if slots > percent else ""
    return _found("compute_bound", stated, issue, busiest)


def _waiting(facts: Facts) -> Finding | None:
    """No unit is busy: what do warps wait for?"""
    idle, wait = _idle(facts), _wait_text(facts)
    memory = facts.memory
    on_memory = facts.waiting(_MEMORY_WAITS)
    on_shared = facts.waiting(_SHARED_WAITS)
    if (memory.atomic_share or 0) >= WASTE and on_memory + on_shared > WASTE:
        hot = memory.hot_unit
        return _found(
            "atomics",
            f"{percent(memory.atomic_share or 0)} of the global requests are atomics",
            wait,
            f"the busiest unit of the memory is at {hot:.1f} %, all together at {facts.mem:.1f} %"
            if hot is not None and facts.mem is not None and hot > 2 * facts.mem
            else "",
        )
    if on_shared > WASTE and (found := _banked(facts)):
        return Finding(found.limiter, (*found.reasons, wait), "l1")
    if on_memory > WASTE and facts.queued:
        found = _wasteful(facts)
        latency = memory.load_latency
        queue = f"a load takes {latency:,.0f} cycles" if latency else ""
        if found is not None:
            return Finding(found.limiter, (*found.reasons, wait, queue), "")
        if latency is not None or facts.top_wait in _FULL_QUEUES:
            return _found("congested_memory", wait, queue, idle)
    occupancy = facts.occupancy
    theoretical, achieved = occupancy.theoretical, occupancy.achieved
    if (
        theoretical is not None
        and theoretical <= LOW_OCCUPANCY
        and facts.top_wait not in _NOT_HIDDEN
        and not _few_warps_by_design(facts)
        and (achieved is None or achieved >= ACHIEVED * theoretical)
    ):
        limits = ", ".join(LIMITS[key][0] for key in occupancy.limited_by)
        return _found(
            "low_occupancy",
            f"theoretical occupancy {percent(theoretical, 1)}"
            + (f", limited by {limits}" if limits else ""),
            idle,
            wait,
        )
    return _by_launch(facts, idle) or _by_wait(facts, wait, idle)


def _few_warps_by_design(facts: Facts) -> bool:
    """Whether few warps are how the kernel works, not what holds it back.

    Kernels of the tensor cores keep large tiles in registers and shared memory, and a few warps
    feed the cores by asynchronous copies; more warps would mean smaller tiles. Only a wait for
    memory tells that there are too few.
    """
    return facts.pipe[0] == "pipe_tensor" and facts.top_wait not in _MEMORY_WAITS


def _by_launch(facts: Facts, idle: str) -> Finding | None:
    duration, tail = facts.launch.get("duration"), facts.occupancy.tail
    if duration is not None and duration < SHORT_NS:
        return _found("short_kernel", f"it takes {duration / 1e3:.1f} us", idle)
    waves = facts.occupancy.waves
    if tail is not None and tail >= TAIL and waves is not None and waves > 1:
        stated = f"{waves:.2f} waves: {percent(tail)} of the time is lost"
        return _found("tail_effect", stated, idle)
    return None


_BY_WAIT: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("memory_latency", _MEMORY_WAITS),
    ("barriers", ("barrier",)),
    ("shared_latency", _SHARED_WAITS),
    ("instruction_fetch", ("no_instruction", "imc_miss", "branch_resolving")),
    ("dependencies", ("wait", "dispatch_stall", "math_pipe_throttle", "gmma")),
)


def _by_wait(facts: Facts, wait: str, idle: str) -> Finding | None:
    if not facts.top_wait:
        return None
    id_ = next((id_ for id_, reasons in _BY_WAIT if facts.top_wait in reasons), "latency")
    latency = facts.memory.load_latency
    stated = f"a load takes {latency:,.0f} cycles" if latency and id_ == "memory_latency" else ""
    return _found(id_, wait, stated, idle)


def _wait_text(facts: Facts) -> str:
    first = next(iter(facts.waits.items()), None)
    if first is None:
        return ""
    return f"{percent(first[1])} of the waiting is for {STALLS[first[0]].waits_for}"


def _idle(facts: Facts) -> str:
    return f"compute throughput {facts.sm or 0:.1f} % of peak, memory {facts.mem or 0:.1f} %"
