"""What is kept of a run: enough to compare it, judge it against a budget and draw it again.

A profile is small (tens of kilobytes) and self-contained: baselines and the history store it.
"""

from __future__ import annotations

from typing import Final

import msgspec

SCHEMA: Final = "stepscope.profile/3"

BUSY_PARTS: Final = ("compute", "exposed_communication", "exposed_copy", "memset")
"""Parts of the step in which the device is busy; the others are ``idle:CAUSE``."""


class KernelUse(msgspec.Struct, frozen=True):
    """One kernel with one launch shape, in the steady steps.

    Attributes:
        name: demangled name.
        label: short name, with the operation of generic kernels.
        category: what kind of work it is.
        grid: blocks in x, y, z; -1 where not recorded.
        block: threads a block in x, y, z.
        calls_per_step: mean number of calls per step and device.
        ns_per_step: mean time per step and device, ns.
        error: standard error of that mean, as a share of it.
        range: annotation that most of its time was launched in; empty for none.
        operator: outermost framework operator that most of its time was launched in.
    """

    name: str
    label: str
    category: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    calls_per_step: float
    ns_per_step: float
    error: float
    range: str
    operator: str


class PlaceUse(msgspec.Struct, frozen=True):
    """Time of a range or an operator, in the steady steps.

    Attributes:
        name: its name.
        host_ns: mean time a step that a thread spends inside, ns; of operators the outermost ones
            count, and profiles of version 0.1 tell 0.
        device_ns: mean time per step and device of the operations that it, or what is nested in it,
            launched, ns; null for ranges of profiles before version 3, which did not count what
            nested ranges launched.
    """

    name: str
    host_ns: float
    device_ns: float | None


class CollectiveUse(msgspec.Struct, frozen=True):
    """Communication of one kind in groups of one size, a step and rank.

    Attributes:
        kind: all_reduce, all_gather, ...
        group_size: ranks that take part.
        count: operations per step.
        bytes: message bytes per step; null where not recorded.
        waiting_ns: time until the last rank has joined, ns per step.
        transfer_ns: time afterwards, ns per step.
        exposed_ns: of both, what no compute covers, ns per step.
    """

    kind: str
    group_size: int
    count: float
    bytes: float | None
    waiting_ns: float
    transfer_ns: float
    exposed_ns: float


class FindingUse(msgspec.Struct, frozen=True):
    """A finding of the run's diagnosis, as far as a comparison needs it.

    Attributes:
        cause: public id.
        time_ns_per_step: time it takes, ns.
        share_of_step: the same as a share.
        predicted_step_ns: mean step once it is gone.
        prediction_low_ns: lower bound of that.
        prediction_high_ns: upper bound of that.
        ranks: ranks that show it.
        message: its sentence.
    """

    cause: str
    time_ns_per_step: int
    share_of_step: float
    predicted_step_ns: int
    prediction_low_ns: int
    prediction_high_ns: int
    ranks: list[int]
    message: str


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        schema: name and version of this layout.
        paths: the inputs as the user named them.
        ranks: number of ranks.
        devices: number of devices over all ranks.
        steps: steps found.
        wall_ns: length of each steady step, summed over the devices, ns.
        parts_ns: part of the step -> its time in each steady step, summed over the devices, ns;
            the parts of a step sum to its length exactly.
        kernels: kernels by name and shape.
        sequence: indices into ``kernels``, in the order in which a typical step of the first
            device enqueues them.
        ranges: annotations.
        operators: outermost framework operators.
        collectives: communication.
        findings: of the diagnosis.
        verdict: of the diagnosis.
        setup: what the run was made with (driver, device, capture, ...), as text.
        figures: further figures by name: ``kernels_per_step``, ``launches_per_step``,
            ``launch_ns`` (lower decile of the length of a launching call),
            ``recording_ns_per_step`` (estimated cost of the profiler), ``copied_bytes_per_step``,
            ``host_paced_idle_ns`` (idle time in which the host works or pauses, but waits for
            nothing) and, where the capture tells, ``peak_memory_bytes``.
        timeline: a typical step of the first device: ``(start, end, kind)`` in ns from its begin,
            kind 0 compute, 1 communication, 2 copy, 3 memset; close neighbours of a kind merged.
        marks: annotations of that step on the main thread: ``(start, end, name)``, ns as above.
        idle: idle time of that step: ``(start, end, cause)``, ns as above; what is too short to be
            seen in a picture of the step is left out.
    """

    schema: str = SCHEMA
    paths: list[str]
    ranks: int
    devices: int
    steps: int
    wall_ns: list[int]
    parts_ns: dict[str, list[int]]
    kernels: list[KernelUse]
    sequence: list[int]
    ranges: list[PlaceUse]
    operators: list[PlaceUse]
    collectives: list[CollectiveUse]
    findings: list[FindingUse]
    verdict: str
    setup: dict[str, str]
    figures: dict[str, float]
    timeline: list[tuple[int, int, int]]
    marks: list[tuple[int, int, str]]
    idle: list[tuple[int, int, str]] = msgspec.field(default_factory=list)

    @property
    def step_ns(self) -> float:
        """Mean steady step, mean over the devices, ns."""
        return sum(self.wall_ns) / (len(self.wall_ns) * self.devices)

    def lengths_ns(self) -> list[float]:
        """Length of each steady step, mean over the devices, ns."""
        return [wall / self.devices for wall in self.wall_ns]

    def budget_ns(self) -> dict[str, int]:
        """Mean time per step and device of every part, in whole ns that sum to the mean step.

        What rounding leaves goes to the parts that it took most from.
        """
        count = len(self.wall_ns) * self.devices
        total = round(sum(self.wall_ns) / count)
        sums = {name: sum(values) for name, values in self.parts_ns.items()}
        whole = {name: value // count for name, value in sums.items()}
        rest = total - sum(whole.values())
        for name in sorted(sums, key=lambda name: -(sums[name] % count))[:rest]:
            whole[name] += 1
        return whole
