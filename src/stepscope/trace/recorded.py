"""What recorders of collectives keep: PyTorch's flight recorder, NCCL Inspector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.trace.frame import BoolArray, IntArray


@dataclass(frozen=True)
class Entry:
    """One operation in the record of a rank.

    Attributes:
        group: process group.
        sequence: its number inside the group; of messages between two ranks their own count.
        point_to_point: whether it is such a message.
        name: the operation.
        state: ``scheduled``, ``started`` or ``completed``.
        created_ns: wall-clock time of the call, ns since 1970; 0 where unknown.
        duration_ns: how long it took; -1 where unknown.
        bytes: message size; -1 where unknown.
        where: innermost line of the program.
    """

    group: str
    sequence: int
    point_to_point: bool
    name: str
    state: str
    created_ns: int
    duration_ns: int
    bytes: int
    where: str


@dataclass(frozen=True)
class Recorded:
    """What the flight recorder of one rank kept of its collectives.

    Attributes:
        path: the file.
        rank: the rank.
        groups: process groups with their ranks; empty where the file does not tell.
        entries: the operations, in order.
        enqueued: number of the last collective that the rank enqueued, by group; where told.
    """

    path: str
    rank: int
    groups: dict[str, tuple[int, ...]]
    entries: list[Entry]
    enqueued: dict[str, int]


@dataclass(frozen=True)
class LoggedRank:
    """One rank of one communicator, in the process that wrote a log.

    Attributes:
        communicator: its id, the same on all ranks.
        name: what the program calls it; empty where it has no name.
        rank: number inside the communicator.
        size: ranks of the communicator.
        nodes: machines that it spans, as NCCL counts them.
        hostname: machine of the process.
        process: operating-system process id.
    """

    communicator: str
    name: str
    rank: int
    size: int
    nodes: int
    hostname: str
    process: int


@dataclass(frozen=True)
class LoggedOperations:
    """One log of NCCL Inspector: operations that were completed, one a row.

    Attributes:
        path: the file.
        ranks: whose operations they are.
        names: operations by name.
        rank: position in ``ranks``.
        name: position in ``names``.
        number: of collectives their count by communicator and name; of messages between two ranks
            a count of the process.
        peer: the other rank of a message, inside the communicator; -1 for collectives.
        bytes: message size, B.
        time_ns: how long the kernel ran, which includes waiting for ranks that come later, ns.
        timed: whether that was measured on the kernel, not on the call.
        dumped_ns: wall-clock time at which the line was written, ns since 1970; 0 where unknown.
        end_ns: wall-clock time at which the host saw the kernel end, ns since 1970; -1 where not
            logged.
        dropped: kind of record (``coll``, ``p2p``) -> how many of it, at least, were dropped before
            they could be written.
    """

    path: str
    ranks: list[LoggedRank]
    names: list[str]
    rank: IntArray
    name: IntArray
    number: IntArray
    peer: IntArray
    bytes: IntArray
    time_ns: IntArray
    timed: BoolArray
    dumped_ns: IntArray
    end_ns: IntArray
    dropped: dict[str, int] = field(default_factory=dict)
