"""Results about an Nsight Compute report: the contracts ``stepscope.ncu_kernels/2`` and others.

The same objects come out of ``--format json`` and the Python API. Times are ns, shares 0 to 1.
"""

from __future__ import annotations

import msgspec

from stepscope.ncu.roofline import Roofline

KERNELS_SCHEMA = "stepscope.ncu_kernels/2"
EXPLANATION_SCHEMA = "stepscope.ncu_explanation/2"
REPORT_DIFF_SCHEMA = "stepscope.ncu_report_diff/2"


class KernelRow(msgspec.Struct, frozen=True):
    """One launch in the table of a report; null where the report does not hold a figure.

    Attributes:
        id: number of the launch in the report, from 0, as ncu shows it.
        name: kernel name with parameters.
        function: kernel name without them.
        grid: blocks along x, y, z.
        block: threads of a block along x, y, z.
        duration_ns: time on the device, at the clocks that ncu sets (its base clocks by default).
        limiter: what holds it back, a key of the reference page.
        bound: class of that: ``compute``, ``memory``, ``latency``, ``launch`` or ``unknown``.
        sm_throughput: compute throughput, share of peak.
        memory_throughput: memory throughput, share of peak.
        achieved_occupancy: filled share of the warp slots.
        theoretical_occupancy: share of them that resources allow.
        flop_per_s: operations a second, all precisions.
        dram_bytes_per_s: traffic of device memory.
        roof_gap: how many times faster the nearest roof is.
    """

    id: int
    name: str
    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    duration_ns: float | None
    limiter: str
    bound: str
    sm_throughput: float | None
    memory_throughput: float | None
    achieved_occupancy: float | None
    theoretical_occupancy: float | None
    flop_per_s: float | None
    dram_bytes_per_s: float | None
    roof_gap: float | None


class KernelTable(msgspec.Struct, frozen=True):
    """All launches of a report.

    Attributes:
        schema: name and version of this contract.
        path: the report as the user named it.
        device: product name; empty where not recorded.
        kernels: one entry a launch, in the order of the report.
        missing: what the report lacks, with the option that collects it.
        warnings: what the reader noticed.
    """

    schema: str
    path: str
    device: str
    kernels: list[KernelRow]
    missing: list[str]
    warnings: list[str]


class Shown(msgspec.Struct, frozen=True):
    """One figure, as Nsight Compute shows it.

    Attributes:
        label: Nsight Compute's label, or Stepscope's where it has none.
        metric: NVIDIA's metric name; empty for what Stepscope works out.
        value: in base units.
        unit: base unit: ``ns``, ``byte``, ``byte/s``, ``hz``, ``%``, ...
        text: as ``ncu --page details`` prints it.
    """

    label: str
    metric: str
    value: float
    unit: str
    text: str


class Section(msgspec.Struct, frozen=True):
    """Figures that belong together.

    Attributes:
        id: Nsight Compute's section, or Stepscope's own in small letters.
        title: for people.
        figures: the figures.
    """

    id: str
    title: str
    figures: list[Shown]


class StallShare(msgspec.Struct, frozen=True):
    """One reason why warps do not issue.

    Attributes:
        reason: key of the stall.
        title: as Nsight Compute shows it.
        cycles: cycles of a warp for each issued instruction.
        share: part of all cycles of the warp.
        waits_for: what the warp waits for.
        remedy: what helps.
    """

    reason: str
    title: str
    cycles: float
    share: float
    waits_for: str
    remedy: str


class HotLine(msgspec.Struct, frozen=True):
    """One source line or instruction.

    Attributes:
        where: ``file:line``, or offset of the instruction.
        text: source or SASS.
        samples: warp samples.
        share: part of the kernel's samples; 0 where it was not sampled.
        executed: warp instructions executed.
        stall: stall reason sampled most.
        excess_sectors: sectors beyond what coalesced accesses would move.
    """

    where: str
    text: str
    samples: int
    share: float
    executed: int
    stall: str
    excess_sectors: int


class RuleMessage(msgspec.Struct, frozen=True):
    """One message of NVIDIA's rules.

    Attributes:
        rule: NVIDIA's identifier.
        kind: ``note``, ``good``, ``optimization``, ``warning`` or ``error``.
        message: the message.
        speedup: NVIDIA's estimate, share of the time; null without.
        local: whether it is about the examined unit only.
    """

    rule: str
    kind: str
    message: str
    speedup: float | None
    local: bool


class Explanation(msgspec.Struct, frozen=True):
    """One launch, explained.

    Attributes:
        schema: name and version of this contract.
        path: the report.
        device: product name.
        kernel: the launch as in the table.
        title: the limiter for people.
        meaning: its definition.
        reasons: the figures that say so.
        recommendations: what helps, the most effective first.
        also: further remarks: uneven waves, spills, unused threads.
        sections: figures by section.
        stalls: stall reasons, the most cycles first.
        occupancy_limits: resource -> blocks that it allows on a SM.
        opcodes: instruction -> warp instructions executed, the most first.
        roofline: the launch on its device's roofline; null where not collected.
        source: hottest source lines.
        sass: hottest instructions.
        rules: what NVIDIA's rules say.
        missing: what the report lacks, with the option that collects it.
    """

    schema: str
    path: str
    device: str
    kernel: KernelRow
    title: str
    meaning: str
    reasons: list[str]
    recommendations: list[str]
    also: list[str]
    sections: list[Section]
    stalls: list[StallShare]
    occupancy_limits: dict[str, int]
    opcodes: dict[str, int]
    roofline: Roofline | None
    source: list[HotLine]
    sass: list[HotLine]
    rules: list[RuleMessage]
    missing: list[str]


class Change(msgspec.Struct, frozen=True):
    """One metric before and after.

    Attributes:
        label: what it is.
        metric: NVIDIA's name.
        unit: base unit.
        before: value in the report.
        after: value in the other report.
        ratio: after over before; null where before is 0.
    """

    label: str
    metric: str
    unit: str
    before: float
    after: float
    ratio: float | None


class Pair(msgspec.Struct, frozen=True):
    """One kernel in both reports; figures are means over its launches.

    Attributes:
        name: kernel name.
        before: launches in the report.
        after: launches in the other report.
        limiter_before: what held it back.
        limiter_after: what holds it back.
        roofline_before: roofline of its longest launch.
        roofline_after: the same in the other report.
        changes: metric by metric.
        name_after: its name in the other report.
        confidence: how sure it is that both are one kernel, from 0 to 1; 1 for the same name.
        evidence: where the names differ, what agrees.
    """

    name: str
    before: int
    after: int
    limiter_before: str
    limiter_after: str
    roofline_before: Roofline | None
    roofline_after: Roofline | None
    changes: list[Change]
    name_after: str = ""
    confidence: float = 1.0
    evidence: list[str] = []


class ReportDiff(msgspec.Struct, frozen=True):
    """One report against another.

    Attributes:
        schema: name and version of this contract.
        path: the report before.
        other: the report after.
        pairs: kernels that are in both, the longest first.
        only_before: kernels that only the first report has.
        only_after: kernels that only the other report has.
        warnings: what makes the comparison doubtful: other devices, other clocks.
    """

    schema: str
    path: str
    other: str
    pairs: list[Pair]
    only_before: list[str]
    only_after: list[str]
    warnings: list[str]
