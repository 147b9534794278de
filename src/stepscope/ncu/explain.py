"""From launches to results: the table of a report, and one launch explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stepscope.ncu.decide import FEW_THREADS, PIPES, WASTE, Facts, Finding, finding_of
from stepscope.ncu.metrics import METRICS, SECTIONS
from stepscope.ncu.model import Launch, Line, Report
from stepscope.ncu.occupancy import LIMITS
from stepscope.ncu.result import (
    EXPLANATION_SCHEMA,
    KERNELS_SCHEMA,
    Explanation,
    HotLine,
    KernelRow,
    KernelTable,
    RuleMessage,
    Section,
    Shown,
    StallShare,
)
from stepscope.ncu.roofline import Roofline, roofline_of
from stepscope.ncu.stalls import STALLS, stall_cycles
from stepscope.ncu.units import shown
from stepscope.trace.units import percent

TAIL_WORTH_SAYING = 0.2
"""Share of the time that an uneven last wave may cost before it is mentioned: less is within what
ten waves lose at worst, twice over."""

FILLED_FROM = 0.5
"""Share of the SMs with work below which that is the limiter, not a remark."""

_SHARED: Final = ("SpeedOfLight_Hierarchical",)  # their figures are shown as the roofline
_NEEDED: Final = {
    "SpeedOfLight": "the throughputs of compute and memory",
    "Occupancy": "occupancy",
    "LaunchStats": "launch sizes",
    "WarpStateStats": "what warps wait for",
    "SchedulerStats": "how often the schedulers issue",
    "MemoryWorkloadAnalysis": "hit rates and traffic",
    "MemoryWorkloadAnalysis_Tables": "sectors, bank conflicts and atomics",
    "ComputeWorkloadAnalysis": "which pipes are busy",
    "SourceCounters": "divergence, coalescing by line, hot lines",
    "SpeedOfLight_HierarchicalSingleRooflineChart": "FLOP/s and the roofline",
}


def kernel_table(report: Report) -> KernelTable:
    """The table of a report: one row a launch."""
    return KernelTable(
        schema=KERNELS_SCHEMA,
        path=report.path,
        device=_device(report.launches),
        kernels=[row_of(launch) for launch in report.launches],
        missing=missing_from(report.launches, report.form),
        warnings=report.warnings,
    )


def row_of(launch: Launch, finding: Finding | None = None) -> KernelRow:
    """One launch as a row."""
    found = finding or finding_of(Facts(launch))
    roofline = roofline_of(launch)
    return KernelRow(
        id=launch.number,
        name=launch.name,
        function=launch.function,
        grid=launch.grid,
        block=launch.block,
        duration_ns=launch.get("duration"),
        limiter=found.limiter.id,
        bound=found.limiter.bound,
        sm_throughput=_share(launch.get("sm_throughput")),
        memory_throughput=_share(launch.get("memory_throughput")),
        achieved_occupancy=_share(launch.get("achieved_occupancy")),
        theoretical_occupancy=_share(launch.get("theoretical_occupancy")),
        flop_per_s=_flops(roofline),
        dram_bytes_per_s=launch.get("dram_bandwidth"),
        roof_gap=roofline.gap or None if roofline else None,
    )


def explanation(report: Report, launch: Launch) -> Explanation:
    """One launch, explained."""
    facts = Facts(launch)
    found = finding_of(facts)
    total = sum(facts.stalls.values())
    return Explanation(
        schema=EXPLANATION_SCHEMA,
        path=report.path,
        device=launch.device,
        kernel=row_of(launch, found),
        title=found.limiter.title,
        meaning=found.limiter.meaning,
        reasons=list(found.reasons),
        recommendations=list(found.limiter.advice),
        also=_also(facts, found),
        sections=_sections(facts),
        stalls=[
            StallShare(key, STALLS[key].title, cycles, cycles / total, STALLS[key].waits_for,
                       STALLS[key].remedy)
            for key, cycles in facts.stalls.items()
            if cycles > 0
        ],
        occupancy_limits={
            LIMITS[key][0]: int(value) for key in LIMITS if (value := launch.get(key)) is not None
        },
        opcodes=launch.opcodes,
        roofline=roofline_of(launch),
        source=_hot(launch.source, launch),
        sass=_hot(launch.sass, launch),
        rules=[
            RuleMessage(r.identifier, r.kind, f"{r.title}: {r.message}" if r.title else r.message,
                     r.speedup, r.local)
            for r in launch.rules
        ],
        missing=missing_from([launch], report.form),
    )  # fmt: skip


def missing_from(launches: Sequence[Launch], form: str = "") -> list[str]:
    """What no launch holds, with the option of ncu that collects it.

    Args:
        launches: of one report.
        form: its form; the details page leaves out much of what was collected.
    """
    found = []
    for section, what in _NEEDED.items():
        keys = [key for key, metric in METRICS.items() if metric.section == section]
        if section == "WarpStateStats":
            there = any(stall_cycles(launch) for launch in launches)
        else:
            there = any(launch.get(key) is not None for launch in launches for key in keys)
        if there:
            continue
        if form == "csv details" and any(launch.get(key) is not None
                                         for launch in launches for key in keys):  # fmt: skip
            found.append(
                f"{what}: collected, but the details page leaves it out; "
                "ncu --import REPORT.ncu-rep --csv --page raw prints it"
            )
            continue
        page = "; once collected, ncu --page raw prints it" if form == "csv details" else ""
        found.append(f"{what}: ncu --section {section}, or --set full{page}")
    return found


def _device(launches: Sequence[Launch]) -> str:
    return ", ".join(dict.fromkeys(launch.device for launch in launches if launch.device))


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _flops(roofline: Roofline | None) -> float | None:
    return roofline.flop_per_s if roofline is not None and roofline.ceilings_flop_per_s else None


def _sections(facts: Facts) -> list[Section]:
    launch = facts.launch
    found = []
    for id_, title in SECTIONS.items():
        if id_.startswith(_SHARED):
            continue
        figures = []
        for key, metric in METRICS.items():
            value = launch.get(key)
            if metric.section == id_ and metric.label and value is not None:
                figures.append(_figure(metric.label, value, metric.unit, _name(launch, key)))
        if id_ == "ComputeWorkloadAnalysis":
            figures += [
                _figure(title, value, "%", _name(launch, key))
                for key, title in PIPES.items()
                if (value := launch.get(key))
            ]
        if figures:
            found.append(Section(id_, title, figures))
    own = _worked_out(facts)
    if own:
        found.append(Section("worked_out", "Memory accesses, worked out", own))
    return found


def _name(launch: Launch, key: str) -> str:
    return next((name for name in METRICS[key].names if name in launch.values), "")


def _figure(label: str, value: float, unit: str, metric: str = "") -> Shown:
    return Shown(label, metric, value, unit, shown(value, unit))


def _worked_out(facts: Facts) -> list[Shown]:
    memory, launch = facts.memory, facts.launch
    shares = (
        ("Unused sectors of global accesses", memory.excess_sectors),
        ("Shared-memory passes added by bank conflicts", memory.bank_excess),
        ("Requests that are atomics", memory.atomic_share),
        ("Requests to local memory", memory.spill_share),
    )
    plain = (
        ("Sectors per global load", memory.sectors_per_load, ""),
        ("Sectors per global store", memory.sectors_per_store, ""),
        ("Cycles per global load", memory.load_latency, "cycle"),
        ("DRAM bytes read", launch.get("dram_read_bytes"), "byte"),
        ("DRAM bytes written", launch.get("dram_write_bytes"), "byte"),
    )
    figures = [_figure(label, value, unit) for label, value, unit in plain if value is not None]
    return figures + [
        _figure(label, 100 * value, "%") for label, value in shares if value is not None
    ]


def _also(facts: Facts, found: Finding) -> list[str]:
    """What is true beside the limiter, and worth knowing before it is repaired."""
    occupancy, memory, launch = facts.occupancy, facts.memory, facts.launch
    stated = []
    tail = occupancy.tail
    if tail is not None and tail >= TAIL_WORTH_SAYING and (occupancy.waves or 0) > 1:
        stated.append(
            f"{occupancy.waves:.2f} waves: an uneven last wave may cost {percent(tail)} of the time"
        )
    if occupancy.filled is not None and FILLED_FROM <= occupancy.filled < 1:
        stated.append(f"only {percent(occupancy.filled)} of the SMs have a block")
    if found.limiter.id != "uncoalesced" and (memory.excess_sectors or 0) > WASTE:
        stated.append(f"{percent(memory.excess_sectors or 0)} of the sectors moved are not used")
    if found.limiter.id != "bank_conflicts" and (memory.bank_excess or 0) > WASTE:
        excess = percent(memory.bank_excess or 0)
        stated.append(f"{excess} of the passes through shared memory repeat others")
    if found.limiter.id != "spills" and (memory.spill_share or 0) > 0:
        spills = percent(memory.spill_share or 0, 1)
        stated.append(f"{spills} of the requests go to local memory (spills)")
    threads = launch.get("threads_per_instruction")
    if found.limiter.id != "divergence" and threads is not None and threads < FEW_THREADS:
        stated.append(f"{threads:.1f} of 32 threads take part in an instruction")
    tensor = launch.get("pipe_tensor")
    if tensor is not None:
        stated.append(f"tensor cores busy {tensor:.1f} % of the time" if tensor else
                    "tensor cores are not used")  # fmt: skip
    return stated


def _hot(lines: Sequence[Line], launch: Launch) -> list[HotLine]:
    total = launch.values.get("smsp__pcsamp_sample_count") or sum(
        value for name, value in launch.values.items()
        if name.startswith("smsp__pcsamp_warps_issue_stalled_")
    )  # fmt: skip
    return [
        HotLine(
            where=line.where,
            text=line.text,
            samples=line.samples,
            share=line.samples / total if total else 0.0,
            executed=line.executed,
            stall=STALLS[line.stall].title if line.stall else "",
            excess_sectors=line.excess_sectors,
        )
        for line in lines
    ]
