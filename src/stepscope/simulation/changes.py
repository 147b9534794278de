"""The changes to a program that the simulator can replay; other modules make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepscope.simulation.setting import SettingChange

Bound = Literal["low", "expected", "high"]
"""Which of the stated uncertainties to assume: those that make the step short, none, or long."""


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
class InGraphs:
    """Launches become CUDA graphs, without what the host did from one of them to the next.

    Attributes:
        scope: ``step`` for one graph that holds the update, too; ``model`` for graphs of the
            forward and the backward pass alone.
    """

    scope: Literal["step", "model"] = "step"

    @property
    def text(self) -> str:
        """The change in words."""
        whole = self.scope == "step"
        return "each step is one CUDA graph" if whole else "forward and backward are CUDA graphs"


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
        factors: new duration over measured duration, of each.
        rank: the rank whose operations they are; None where there is only one.
    """

    ops: tuple[int, ...]
    factors: tuple[float, ...]
    rank: int | None = None


@dataclass(frozen=True)
class RemoveOps:
    """Certain GPU operations are gone, with the host work that enqueues them.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        rank: the rank whose operations they are; None where there is only one.
        inside: whether the operators that launch them stay (a convolution without its transposes):
            the calls that enqueue them go, what the host does before these stays.
    """

    ops: tuple[int, ...]
    rank: int | None = None
    inside: bool = False


@dataclass(frozen=True)
class FuseOps:
    """Certain GPU operations become one: the first of them a step takes their place.

    Name the operations of all steps; each step then has one of the given duration.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        duration_ns: how long the one that replaces those of a step takes.
        rank: the rank whose operations they are; None where there is only one.
        host_ns: what the host works before it enqueues that one, beside enqueueing it.
    """

    ops: tuple[int, ...]
    duration_ns: int
    rank: int | None = None
    host_ns: int = 0


@dataclass(frozen=True)
class CallCompiled:
    """Certain GPU operations are the first of those that a call of compiled code launches.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        rank: the rank whose operations they are; None where there is only one.
    """

    ops: tuple[int, ...]
    rank: int | None = None

    @property
    def text(self) -> str:
        """The change in words."""
        return f"compiled code is called before {len(self.ops):,} GPU operations"


@dataclass(frozen=True)
class LoadedBeside:
    """More processes than now make batches while the host works: they share its processor.

    Attributes:
        more: batches made in a time over those of today, less one; twice as many and more count 1.
    """

    more: float = 1.0

    @property
    def text(self) -> str:
        """The change in words."""
        return "more workers make batches on the host's processor"


@dataclass(frozen=True)
class OverlapCommunication:
    """Communication is hidden behind compute as far as dependencies allow.

    Attributes:
        of: what is communicated, which says what it can hide behind. ``gradients``: sums of
            gradients, ready one after the other in the backward pass, and parameters that are
            gathered. ``path``: what the next kernel works on, so that the batch has to be cut for
            it. ``any`` where that is not known.
    """

    of: Literal["any", "gradients", "path"] = "any"


@dataclass(frozen=True)
class WithoutTransfers:
    """Certain transfers are gone, and the compute beside them is as quick as alone.

    Attributes:
        ops: ``gpu_op.id`` of the transfers.
        rank: the rank whose operations they are; None where there is only one.
        what: what they are, in words.
    """

    ops: tuple[int, ...]
    rank: int | None = None
    what: str = "sums of gradients"

    @property
    def text(self) -> str:
        """The change in words."""
        return f"{len(self.ops):,} {self.what} are left out"


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


Scope = Literal["parts", "stages"]
"""Where work is uneven: between two collectives of all ranks, or from stage to stage."""


@dataclass(frozen=True)
class EvenWork:
    """The device work of the ranks is spread evenly over them; none of it is gone.

    Attributes:
        scope: ``parts`` spreads what lies between two collectives that all ranks share: tokens of
            experts, lengths of sequences, sizes of shards. ``stages`` spreads what the stages of a
            pipeline compute in the whole step: layers.
    """

    scope: Scope = "parts"


Change = (
    Free
    | LaunchesFree
    | InGraphs
    | ScaleKernels
    | ScaleOps
    | RemoveOps
    | FuseOps
    | CallCompiled
    | LoadedBeside
    | OverlapCommunication
    | WithoutTransfers
    | RankLike
    | DeviceLike
    | EvenWork
    | SettingChange
)
