"""Changes to a program that the simulator can replay. Several are replayed together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Free:
    """One cause of idle time is gone.

    Attributes:
        cause: id from ``gaps.idle.CAUSES``.
        ranks: the ranks it is gone on; None for all.
    """

    cause: str
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LaunchesFree:
    """Launches cost the host nothing, and kernels follow one another as inside a CUDA graph."""


@dataclass(frozen=True)
class ScaleKernels:
    """Kernels whose name matches take another time.

    Attributes:
        regex: searched for in the kernel's name.
        factor: new duration over measured duration.
    """

    regex: str
    factor: float


@dataclass(frozen=True)
class ScaleOps:
    """Certain GPU operations take another time.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        factor: new duration over measured duration.
        rank: the rank whose operations they are; None where there is only one.
    """

    ops: tuple[int, ...]
    factor: float
    rank: int | None = None


@dataclass(frozen=True)
class RemoveOps:
    """Certain GPU operations are gone, with the host work that enqueues them.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        rank: the rank whose operations they are; None where there is only one.
    """

    ops: tuple[int, ...]
    rank: int | None = None


@dataclass(frozen=True)
class FuseOps:
    """Certain GPU operations become one: the first of them a step takes their place.

    Name the operations of all steps; each step then has one of the given duration.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        duration_ns: how long the one that replaces those of a step takes.
        rank: the rank whose operations they are; None where there is only one.
    """

    ops: tuple[int, ...]
    duration_ns: int
    rank: int | None = None


@dataclass(frozen=True)
class OverlapCommunication:
    """Communication is hidden behind compute as far as dependencies allow."""


@dataclass(frozen=True)
class RankLike:
    """One rank takes the time that the median of the others takes for the same part of a step.

    Attributes:
        rank: the rank.
        other: ``median``, or the number of another rank.
    """

    rank: int
    other: str | int = "median"


@dataclass(frozen=True)
class DeviceLike:
    """The kernels of one rank's device take what the same kernels take on the others.

    Hosts are replayed at the pace of the capture for the long end only: while the other ranks
    waited, theirs had time to spare, and the capturing tool slowed them.

    Attributes:
        rank: the rank.
    """

    rank: int


Change = (
    Free
    | LaunchesFree
    | ScaleKernels
    | ScaleOps
    | RemoveOps
    | FuseOps
    | OverlapCommunication
    | RankLike
    | DeviceLike
)
