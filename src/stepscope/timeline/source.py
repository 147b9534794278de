"""One trace of a job, as its tracks see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.timeline import classes
from stepscope.timeline.track import Names, Slices, slices
from stepscope.trace.frame import Frame, IntArray

if TYPE_CHECKING:
    from stepscope.activity.device import Reader


@dataclass(frozen=True)
class Source:
    """One trace of a job, as its tracks see it.

    Attributes:
        rank_trace: number of the trace.
        rank: its rank.
        read: gives its tables.
        offset_ns: what is added to its times to be on the job's clock, ns.
        names: numbers of all texts.
    """

    rank_trace: int
    rank: int
    read: Reader
    offset_ns: int
    names: Names

    def taken(self, table: str, columns: tuple[str, ...], rows: IntArray) -> Slices:
        """Slices of some rows of a host table, coloured by name."""
        frame = self.read(table, *columns).take(rows).with_used_texts("name")
        return self.sliced(frame, classes.name_codes(frame.texts["name"]))

    def sliced(self, frame: Frame, per_name: classes.Codes) -> Slices:
        """Slices of a frame, whose class depends on the name."""
        numbers = self.names.numbers(frame.texts["name"])
        return slices(
            frame["start_ns"] + self.offset_ns,
            frame["end_ns"] + self.offset_ns,
            numbers[frame["name"]],
            classes.of_names(frame, per_name),
            frame["id"],
        )
