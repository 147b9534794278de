"""The memory workload of a launch as ratios: waste by coalescing, banks, spills, atomics."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.ncu.model import Launch

SECTOR_BYTES = 32
"""What L1, L2 and DRAM move at least (CUDA programming guide, device memory accesses)."""


@dataclass(frozen=True)
class Memory:
    """Ratios of one launch; None where the report lacks what they are made of.

    Attributes:
        sectors_per_load: 32-byte sectors for each global load of a warp.
        sectors_per_store: the same for stores.
        excess_sectors: share of the sectors of global accesses that coalesced ones would not move.
        bank_excess: share of the wavefronts of shared memory that bank conflicts add.
        atomic_share: share of the global requests that are atomics or reductions.
        spill_share: share of the requests through L1 that go to local memory.
        load_latency: cycles that a warp waits for each of its global loads.
        hot_unit: throughput of the busiest single unit of the memory (one L2 slice), percent.
    """

    sectors_per_load: float | None
    sectors_per_store: float | None
    excess_sectors: float | None
    bank_excess: float | None
    atomic_share: float | None
    spill_share: float | None
    load_latency: float | None
    hot_unit: float | None


def memory_of(launch: Launch, stalls: dict[str, float]) -> Memory:
    """The ratios of a launch."""
    requests = {op: launch.get(f"global_{op}_requests") for op in ("ld", "st", "red", "atom")}
    sectors = {op: launch.get(f"global_{op}_sectors") for op in ("ld", "st")}
    every = sum(value or 0 for value in requests.values())
    atomics = (requests["red"] or 0) + (requests["atom"] or 0)
    local = launch.total(("local_ld_requests", "local_st_requests"))
    instructions, loads = launch.get("instructions"), launch.get("global_loads")
    waiting = stalls.get("long_scoreboard")
    latency = None
    if instructions and loads and waiting is not None:
        latency = waiting * instructions / loads
    return Memory(
        sectors_per_load=_ratio(sectors["ld"], requests["ld"]),
        sectors_per_store=_ratio(sectors["st"], requests["st"]),
        excess_sectors=_excess_sectors(launch),
        bank_excess=_bank_excess(launch),
        atomic_share=atomics / every if every else None,
        spill_share=None if local is None else local / max(local + every, 1),
        load_latency=latency,
        hot_unit=launch.get("memory_throughput_max"),
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _excess_sectors(launch: Launch) -> float | None:
    """Counted by instruction where the report has it, else from the bytes used of each sector."""
    moved, ideal = launch.get("l2_theoretical_sectors"), launch.get("l2_ideal_sectors")
    if moved and ideal is not None:
        return max(0.0, 1 - ideal / moved)
    used = total = 0.0
    for op, key in (("ld", "load"), ("st", "store")):
        sectors = launch.get(f"global_{op}_sectors")
        each = launch.get(f"{key}_bytes_per_sector")
        if sectors and each:
            used += sectors * min(each / SECTOR_BYTES, 1.0)
            total += sectors
    return 1 - used / total if total else None


def _bank_excess(launch: Launch) -> float | None:
    moved, ideal = launch.get("shared_wavefronts_source"), launch.get("shared_wavefronts_ideal")
    if moved and ideal is not None:
        return max(0.0, 1 - ideal / moved)
    conflicts = launch.get("shared_conflicts")
    if conflicts is None:
        conflicts = launch.total(("shared_conflicts_ld", "shared_conflicts_st"))
    wavefronts = launch.get("shared_wavefronts")
    return min(conflicts / wavefronts, 1.0) if conflicts is not None and wavefronts else None
