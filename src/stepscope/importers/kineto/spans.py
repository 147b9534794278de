"""What the tables of events with a begin and an end have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.importers.kineto.columns import (
    MAX_NS,
    Codes,
    Columns,
    Events,
    Ints,
    Texts,
    beyond_int64,
    dictionary,
    integers,
    nanoseconds,
    write_sorted,
)
from stepscope.importers.kineto.events import MISSING, NO_ARGS, Args
from stepscope.importers.kineto.flows import Flows
from stepscope.trace.store import TraceWriter


@dataclass
class Context:
    """What is known when the whole file has been read.

    Attributes:
        writer: where rows go; ``writer.problems`` counts what is wrong with them.
        origin_ns: subtracted from every time.
        process_id: the process that was captured.
        forward: finds the start of an operator's forward call.
    """

    writer: TraceWriter
    origin_ns: int
    process_id: int
    forward: Flows


class Spans:
    """Events with a begin and a duration, of one table."""

    table = ""

    def __init__(self) -> None:
        self.columns = Columns()
        self.names = Texts()
        self.dropped = 0
        self.too_large = 0
        self.counted: Counter[str] = Counter()

    def whole(self, values: list[Any]) -> Ints:
        """Values as int64; those that it does not hold are counted, and count as absent."""
        found = integers(values)
        if (found == MISSING).any():
            self.too_large += beyond_int64(values)
        return found

    def add(self, events: Events) -> None:
        """Take over a list of events of this kind."""
        if [event.ph for event in events].count("X") < len(events):
            events = [event for event in events if event.ph == "X"]
        start, timed = nanoseconds([event.ts for event in events])
        duration, ended = nanoseconds([event.dur for event in events])
        timed &= ended & (start + duration <= MAX_NS)
        if not timed.all():
            self.dropped += len(events) - int(timed.sum())
            events = [event for event, good in zip(events, timed.tolist(), strict=True) if good]
            start, duration = start[timed], duration[timed]
        if events:
            args = [event.args or NO_ARGS for event in events]
            fields = self.fields(events, args)
            self.columns.add(start=start, end=start + duration, **fields)

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """The kind's own columns."""
        raise NotImplementedError

    def extent(self) -> tuple[int, int] | None:
        """Earliest start and latest end, as recorded; None without rows."""
        if not self.columns.rows:
            return None
        return int(self.columns.peek("start").min()), int(self.columns.peek("end").max())

    def write(self, context: Context) -> None:
        """Write all rows and let go of them."""
        scope = self.table
        context.writer.problems.count("not_a_number", self.dropped, scope=scope)
        self.counted["number_too_large"] += self.too_large
        for problem, number in self.counted.items():
            context.writer.problems.count(problem, number, scope=scope)
        if self.columns.rows:
            recorded = self.columns.pop("start")
            early = int((recorded < 0).sum())
            detail = f"{scope}: {int(recorded.min())} ns"
            context.writer.problems.count("negative_time", early, scope=scope, detail=detail)
            start = recorded - context.origin_ns
            end = self.columns.pop("end") - context.origin_ns
            columns = {"start_ns": start, "end_ns": end, **self.output(context, start)}
            write_sorted(context.writer, self.table, start, columns, self.columns.rows)

    def output(self, context: Context, start: Ints) -> dict[str, Any]:
        """The kind's columns as :func:`write_sorted` takes them."""
        raise NotImplementedError

    def named(self) -> tuple[Codes, Any]:
        """The name column."""
        names = self.names.values()
        return self.columns.pop("name"), lambda part: dictionary(part, names)

    def processes(self, context: Context) -> Ints:
        """The process column; the captured process where an event states none."""
        found: Ints = self.columns.pop("pid")
        return np.where(found == MISSING, context.process_id, found)


def place(events: Events) -> dict[str, Ints]:
    """Process and thread columns."""
    return {
        "pid": integers([event.pid for event in events]),
        "tid": integers([event.tid for event in events]),
    }
