"""What recorders of collectives keep: PyTorch's flight recorder, NCCL Inspector."""

from __future__ import annotations

from dataclasses import dataclass


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
    """What one rank recorded of its collectives.

    Attributes:
        path: the file.
        rank: the rank.
        source: ``flight recorder`` or ``nccl inspector``.
        groups: process groups with their ranks; empty where the file does not tell.
        entries: the operations, in order.
        enqueued: number of the last collective that the rank enqueued, by group; where told.
    """

    path: str
    rank: int
    source: str
    groups: dict[str, tuple[int, ...]]
    entries: list[Entry]
    enqueued: dict[str, int]
