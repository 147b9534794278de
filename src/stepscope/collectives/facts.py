"""Every matched operation of every device as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.collectives.exposure import transfer_limits
from stepscope.collectives.result import Matched
from stepscope.intervals import overlap_per_window
from stepscope.trace.frame import IntArray

_SHOWN_RANKS = 16


@dataclass(frozen=True)
class Facts:
    """One value for each matched operation of each device, device by device.

    Attributes:
        device: position of the device.
        op: row of its ``lane.ops``.
        instance: the operation of the job.
        start: begin on the trace's own clock, ns.
        end: end on the trace's own clock, ns.
        waiting: until the last rank has joined, ns.
        transfer: afterwards, ns.
        absent: between the two, what is likely to be waiting for ranks that are not there, ns.
        exposed_waiting: of the waiting, what no compute kernel covers, ns.
        exposed_transfer: of the transfer, what no compute kernel covers, ns.
        lateness: from the first rank's start to its own, ns.
    """

    device: IntArray
    op: IntArray
    instance: IntArray
    start: IntArray
    end: IntArray
    waiting: IntArray
    transfer: IntArray
    absent: IntArray
    exposed_waiting: IntArray
    exposed_transfer: IntArray
    lateness: IntArray


def facts(explained: Sequence[Explanation], matched: Matched) -> Facts:
    """Look at every matched operation of the explained devices."""
    found: list[list[IntArray]] = []
    limits = transfer_limits(matched)
    for number, (e, rank) in enumerate(zip(explained, matched.ranks, strict=True)):
        start, stop = e.lane.ops["start_ns"][rank.op], e.lane.ops["end_ns"][rank.op]
        joined, moving = start + rank.waiting_ns, limits[number]
        compute = e.lane.union_of(e.lane.is_compute)
        found.append(
            [
                np.full(len(rank.op), number, np.int64),
                rank.op,
                rank.instance,
                start,
                stop,
                rank.waiting_ns,
                moving,
                rank.transfer_ns - moving,
                rank.waiting_ns - overlap_per_window(compute, start, joined),
                moving - overlap_per_window(compute, stop - moving, stop),
                rank.start_ns - matched.instances.first_start_ns[rank.instance],
            ]
        )
    names = [field.name for field in fields(Facts)]
    columns = (np.concatenate(column) for column in zip(*found, strict=True))
    return Facts(**dict(zip(names, columns, strict=True)))


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Ranks as text; runs are shortened."""
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    shown = ",".join(map(str, ranks[:_SHOWN_RANKS]))
    return shown + (",..." if len(ranks) > _SHOWN_RANKS else "")
