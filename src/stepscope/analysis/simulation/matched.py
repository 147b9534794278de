"""What the simulator needs to know about collectives that were matched across ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stepscope.trace.frame import IntArray


class Matched(Protocol):
    """Collectives matched across ranks, by rank.

    ``rows[rank]`` are rows of that rank's ``lane.ops``, ``instances[rank]`` (of equal length) the
    ids of the collectives they belong to: the same id on several ranks is the same collective.
    ``offsets_ns[rank]`` is added to that rank's times to put them on the common clock.
    """

    @property
    def rows(self) -> Mapping[int, IntArray]:
        """Rows of ``lane.ops`` of each rank."""

    @property
    def instances(self) -> Mapping[int, IntArray]:
        """Collective that each of these rows belongs to."""

    @property
    def offsets_ns(self) -> Mapping[int, int]:
        """Clock offset of each rank, ns."""


@dataclass(frozen=True)
class MatchedRows:
    """The plainest :class:`Matched`."""

    rows: Mapping[int, IntArray]
    instances: Mapping[int, IntArray]
    offsets_ns: Mapping[int, int] = field(default_factory=dict)
