"""What an Nsight Compute report holds, as far as Stepscope asks: launches with metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stepscope.ncu.metrics import METRICS

RuleKind = Literal["note", "good", "optimization", "warning", "error"]

Wanted = Callable[[int, str], bool]
"""(number, name) of a launch -> whether rules, source lines and instructions are read, too."""


@dataclass(frozen=True)
class Rule:
    """One message of NVIDIA's own rules.

    Attributes:
        identifier: NVIDIA's name of the rule.
        section: identifier of the section that it belongs to.
        title: heading; may be empty.
        message: text, without NVIDIA's link marks.
        kind: how it is meant.
        speedup: NVIDIA's estimate of the gain, share of the time; None where it gives none.
        local: whether that estimate is about the examined unit only, not about the whole kernel.
    """

    identifier: str
    section: str
    title: str
    message: str
    kind: RuleKind
    speedup: float | None = None
    local: bool = False


@dataclass(frozen=True)
class Line:
    """One line of source or one instruction, with what was sampled there.

    Attributes:
        where: ``file:line``, or the address of an instruction within the kernel.
        text: the source or SASS text; empty where the report does not hold it.
        samples: warp samples taken there.
        executed: warp instructions executed there.
        stall: key of the stall reason that was sampled most; empty without samples.
        excess_sectors: L2 sectors moved beyond what the accesses would need if coalesced.
    """

    where: str
    text: str
    samples: int
    executed: int
    stall: str
    excess_sectors: int


@dataclass
class Launch:
    """One profiled kernel launch.

    Attributes:
        number: position in the report, from 0: the ID that ncu shows.
        name: demangled name, with parameters.
        function: name without parameters.
        grid: blocks along x, y, z; zeros where not recorded.
        block: threads of a block along x, y, z; zeros where not recorded.
        device: product name; empty where not recorded.
        capability: compute capability, as ``9.0``; empty where not recorded.
        values: NVIDIA's metric name -> value in base units (ns, bytes, Hz; shares in percent).
        breakdown: metrics that make up the throughputs of compute and memory, with percent.
        opcodes: instruction -> warp instructions executed.
        rules: NVIDIA's messages.
        source: hottest source lines; empty unless asked for.
        sass: hottest instructions; empty unless asked for.
    """

    number: int
    name: str
    function: str
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    device: str = ""
    capability: str = ""
    values: dict[str, float] = field(default_factory=dict)
    breakdown: dict[str, dict[str, float]] = field(default_factory=dict)
    opcodes: dict[str, int] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    source: list[Line] = field(default_factory=list)
    sass: list[Line] = field(default_factory=list)

    def get(self, key: str) -> float | None:
        """A metric by Stepscope's key (``METRICS``), whatever name this version gave it.

        Returns:
            The value in base units; None where the report does not hold it.
        """
        for name in METRICS[key].names:
            value = self.values.get(name)
            # no metric is less than nothing; what is not a number was not measured
            if value is not None and 0 <= value < math.inf:
                return value
        return None

    def total(self, keys: Sequence[str]) -> float | None:
        """Sum of metrics; None where the report holds none of them."""
        found = [value for key in keys if (value := self.get(key)) is not None]
        return sum(found) if found else None

    @property
    def blocks(self) -> int:
        """Blocks of the grid; 0 where not recorded."""
        size = self.get("grid_size")
        if size:
            return int(size)
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads of a block; 0 where not recorded."""
        size = self.get("block_size")
        if size:
            return int(size)
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def sms(self) -> int:
        """SMs of the device; 0 where not recorded."""
        return int(self.get("sm_count") or 0)


@dataclass
class Report:
    """One report.

    Attributes:
        path: the file as the user named it.
        form: ``ncu-rep``, ``csv raw`` or ``csv details``.
        launches: in the order of the report.
        warnings: what the reader noticed, for people.
    """

    path: str
    form: str
    launches: list[Launch]
    warnings: list[str] = field(default_factory=list)
