"""What the matching gives: operations of the job, and each rank's part in them."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.collectives.clocks import Line
from stepscope.collectives.streams import Channel
from stepscope.trace.frame import IntArray


@dataclass(frozen=True)
class RankOps:
    """The matched communication of one device; all arrays have one value an operation.

    Attributes:
        rank: the rank.
        process_id: the process.
        device: CUDA device ordinal inside the process.
        op: rows of ``lane.ops``, ascending.
        instance: which operation of the job each takes part in.
        start_ns: begin on the job's clock.
        end_ns: end on the job's clock.
        waiting_ns: from its own start until the last member has begun (its own end at most), ns.
        transfer_ns: the rest of its time, ns.
        offset_ns: what to add to this trace's times at its first operation, ns.
        clock: the conversion from the trace's clock to the job's.
        unmatched: number of communication kernels without a counterpart.
    """

    rank: int
    process_id: int
    device: int
    op: IntArray
    instance: IntArray
    start_ns: IntArray
    end_ns: IntArray
    waiting_ns: IntArray
    transfer_ns: IntArray
    offset_ns: int
    clock: Line
    unmatched: int


@dataclass(frozen=True)
class Instances:
    """Operations of the job; all arrays have one value an instance, in order of their last start.

    Attributes:
        kind: code of the kind (``kinds.KINDS``).
        channel: number of the communicator (``Matched.channels``).
        looks: code of what it looks like (kind, type, size); operations alike have the same.
        bytes: message size; -1 where unknown.
        members: devices found.
        size: devices it should have; equal to ``members`` where nothing tells.
        first_start_ns: begin of the earliest member, ns on the job's clock.
        last_start_ns: begin of the latest member.
        second_start_ns: begin of the latest member but one.
        first_end_ns: end of the earliest member.
        last: position in ``Matched.ranks`` of the latest member.
    """

    kind: IntArray
    channel: IntArray
    looks: IntArray
    bytes: IntArray
    members: IntArray
    size: IntArray
    first_start_ns: IntArray
    last_start_ns: IntArray
    second_start_ns: IntArray
    first_end_ns: IntArray
    last: IntArray

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Matched:
    """Several ranks as one job.

    Attributes:
        ranks: one for each device, in the order given.
        instances: the operations.
        channels: the communicators.
        missing_ranks: ranks that communicators or the world size name and that are not there.
        impossible: instances in which one member ends before another begins although all must
            wait for all: a measure of wrong matches and clocks.
        says: what could not be matched or had to be assumed, in sentences.
    """

    ranks: list[RankOps]
    instances: Instances
    channels: list[Channel]
    missing_ranks: list[int]
    impossible: int
    says: list[str]

    @property
    def offsets_ns(self) -> list[int]:
        """What to add to each device's times, ns."""
        return [rank.offset_ns for rank in self.ranks]

    @property
    def complete(self) -> bool:
        """Whether every rank of the job is there."""
        return not self.missing_ranks
