"""Result types of ``stepscope memory``: the contract ``stepscope.memory/1``."""

from __future__ import annotations

import msgspec

SCHEMA = "stepscope.memory/1"


class Holder(msgspec.Struct, frozen=True):
    """What one place of the program had allocated at a moment.

    Attributes:
        category: parameter, optimizer_state, input, temporary, activation, gradient,
            autograd_detail or unknown.
        operator: operator that allocated it; empty where unknown.
        module: module that it ran in.
        line: function and line of Python.
        bytes: allocated in all.
        blocks: number of blocks.
        largest_bytes: the largest of them.
    """

    category: str
    operator: str
    module: str
    line: str
    bytes: int
    blocks: int
    largest_bytes: int


class Moment(msgspec.Struct, frozen=True):
    """What was allocated at a time.

    Attributes:
        what: peak, oom or end.
        time_ns: when, since the capture's start; None before the first event.
        allocated_bytes: allocated then.
        reserved_bytes: reserved then; None where unknown.
        by_category_bytes: allocated by category; they add up.
        step: number of the step that it lies in, from 0; None outside of all.
    """

    what: str
    time_ns: int | None
    allocated_bytes: int
    reserved_bytes: int | None
    by_category_bytes: dict[str, int]
    step: int | None


class StepMemory(msgspec.Struct, frozen=True):
    """One step.

    Attributes:
        step: from 0.
        begin_ns: begin on the host.
        begin_bytes: allocated then.
        peak_bytes: most that was allocated in it.
        end_bytes: allocated at its end.
        kept_bytes: allocated in it and not released until the capture's end.
    """

    step: int
    begin_ns: int
    begin_bytes: int
    peak_bytes: int
    end_bytes: int
    kept_bytes: int


class Growth(msgspec.Struct, frozen=True):
    """Whether more is allocated from step to step.

    Attributes:
        bytes_per_step: median of the slopes between all pairs of steps (Theil and Sen).
        p_value: probability of such a trend without one (Mann and Kendall, two-sided, exact up to
            ten steps).
        grows: whether it is a leak by these figures.
        message: one sentence.
        holders: who allocated what was kept.
    """

    bytes_per_step: int
    p_value: float
    grows: bool
    message: str
    holders: list[Holder]


class Fragmentation(msgspec.Struct, frozen=True):
    """What is reserved and not used.

    Attributes:
        reserved_bytes: reserved at the end.
        allocated_bytes: allocated then.
        largest_free_bytes: largest free block then; None without the allocator's blocks.
        inactive_split_bytes: free blocks of segments that are in use: they cannot be given back.
        free_segment_bytes: segments without any block in use: they can.
        rounding_bytes: what blocks are larger than what the program asked for.
        most_unused_bytes: most that was reserved and not allocated at any time; None where unknown.
    """

    reserved_bytes: int | None
    allocated_bytes: int
    largest_free_bytes: int | None
    inactive_split_bytes: int | None
    free_segment_bytes: int | None
    rounding_bytes: int | None
    most_unused_bytes: int | None


class OutOfMemory(msgspec.Struct, frozen=True):
    """A request that was refused.

    Attributes:
        time_ns: when.
        requested_bytes: what was asked for.
        device_free_bytes: what the device had free; None where unknown.
        allocated_bytes: allocated by the process.
        reserved_bytes: reserved by the process.
        missing_bytes: what was missing, had all that is reserved been usable; 0 for none.
        message: why, in one sentence.
        line: function and line that asked for it.
    """

    time_ns: int
    requested_bytes: int
    device_free_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    missing_bytes: int
    message: str
    line: str


class Timeline(msgspec.Struct, frozen=True):
    """Bytes over time: at most some hundred points, each the highest of its stretch.

    Attributes:
        time_ns: when.
        allocated_bytes: allocated.
        reserved_bytes: reserved; empty where unknown.
        by_category_bytes: category to bytes at these times.
    """

    time_ns: list[int]
    allocated_bytes: list[int]
    reserved_bytes: list[int]
    by_category_bytes: dict[str, list[int]]


class Prediction(msgspec.Struct, frozen=True):
    """The peak after a change.

    Attributes:
        change: in words.
        peak_bytes: allocated at the predicted peak.
        low_bytes: at least.
        high_bytes: at most.
        limit_bytes: what it is compared with; None where nothing was given.
        fits: whether it fits; None where that is open or nothing was given.
        assumptions: what was assumed, in sentences.
    """

    change: str
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    limit_bytes: int | None
    fits: bool | None
    assumptions: list[str]


class DeviceMemory(msgspec.Struct, frozen=True):
    """The memory of one device.

    Attributes:
        rank: rank of the process.
        device: ordinal; -1 for host memory.
        of_driver: whether these are allocations of the driver, not of a framework's tensors.
        events: allocations and releases.
        peak: the moment of the peak.
        moment: the moment that ``holders`` is about.
        holders: who held memory then, most first.
        timeline: over time.
        steps: step by step.
        growth: None with fewer than three steps.
        fragmentation: None where nothing is reserved beyond what is allocated.
        out_of_memory: refused requests.
        warnings: what was assumed, or is not known, in sentences.
    """

    rank: int
    device: int
    of_driver: bool
    events: int
    peak: Moment
    moment: Moment
    holders: list[Holder]
    timeline: Timeline
    steps: list[StepMemory]
    growth: Growth | None
    fragmentation: Fragmentation | None
    out_of_memory: list[OutOfMemory]
    warnings: list[str]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of all devices of a job.

    Attributes:
        schema: the contract.
        paths: the captures.
        devices: by rank and device.
        prediction: what a change needs, where that was asked, one a device.
    """

    schema: str = SCHEMA
    paths: list[str]
    devices: list[DeviceMemory]
    prediction: list[Prediction] = []
