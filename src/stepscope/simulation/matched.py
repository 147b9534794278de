"""What the simulator needs to know about collectives that were matched across ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stepscope.trace.frame import IntArray


class RankCollectives(Protocol):
    """The matched collectives of one device: what ``collectives.RankOps`` offers."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def process_id(self) -> int:
        """The process."""

    @property
    def device(self) -> int:
        """CUDA device ordinal inside the process."""

    @property
    def op(self) -> IntArray:
        """Rows of ``lane.ops``."""

    @property
    def instance(self) -> IntArray:
        """Collective that each of them belongs to: equal on all its members."""


class Matched(Protocol):
    """Collectives matched across ranks."""

    @property
    def ranks(self) -> Sequence[RankCollectives]:
        """One for each device."""


@dataclass(frozen=True)
class MatchedOps:
    """The plainest :class:`RankCollectives`."""

    rank: int
    process_id: int
    device: int
    op: IntArray
    instance: IntArray


@dataclass(frozen=True)
class MatchedJob:
    """The plainest :class:`Matched`."""

    ranks: list[MatchedOps]
