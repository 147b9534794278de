"""The explained devices of all ranks, as one job."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analysis.explain import Explanation
from stepscope.analysis.lanes import Reader
from stepscope.trace.meta import Meta


@dataclass(frozen=True)
class Device:
    """One explained device of one rank.

    Attributes:
        rank: the rank.
        explanation: its steps, accounting and gaps.
        read: gives the tables of its trace.
        meta: the trace's metadata.
        trace_rank: the column ``rank`` of its trace in SQL; differs from ``rank`` where one trace
            holds several processes.
    """

    rank: int
    explanation: Explanation
    read: Reader
    meta: Meta
    trace_rank: int


@dataclass(frozen=True)
class JobView:
    """All explained devices of a job, ordered by rank and device.

    Attributes:
        devices: the devices.
    """

    devices: list[Device]
