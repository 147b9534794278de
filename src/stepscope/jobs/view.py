"""The explained devices of all ranks, as one job."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stepscope.activity.device import Reader
from stepscope.breakdown.explain import Explanation
from stepscope.collectives.calls import Participant
from stepscope.collectives.job import Collectives, collectives
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

    @cached_property
    def collectives(self) -> Collectives | None:
        """Their communication, matched; None where they do not communicate."""
        clocks = dict.fromkeys(device.trace_rank for device in self.devices)
        number = {trace: i for i, trace in enumerate(clocks)}
        participants = [
            Participant(
                rank=device.rank,
                gpu=device.explanation.gpu,
                read=device.read,
                clock=number[device.trace_rank],
                epoch_ns=device.meta.origin_epoch_ns,
                machine=device.meta.hostname,
                world_size=device.meta.world_size,
            )
            for device in self.devices
        ]
        return collectives(participants, [device.explanation for device in self.devices])


class AloneView(JobView):
    """Devices as if they did not communicate: without what only several ranks can show."""

    @cached_property
    def collectives(self) -> Collectives | None:
        """None."""
        return None
