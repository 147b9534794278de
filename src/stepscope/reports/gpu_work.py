"""What the reports about whole devices share: operations by class, and statistics with quartiles.

They follow the definitions of Holistic Trace Analysis, so that its users find its figures here. Two
things differ: communication is that of every known library, not of NCCL alone, and a stream's wait
for an event is no GPU work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepscope.activity.communication import is_communication
from stepscope.reports.arrays import FloatArray, group, nullable, round_half_away
from stepscope.reports.launches import launches
from stepscope.reports.report import Argument, Arguments, Column
from stepscope.reports.source import Rows, Source
from stepscope.trace.frame import AnyArray, IntArray

COMPUTATION, COMMUNICATION, MEMORY = range(3)
CLASSES = ("computation", "communication", "memory")

WITHOUT_LAST_STEP = Argument(
    "without-last-step",
    "leave out work that was launched after the last ProfilerStep began, and work without a "
    "recorded launch, as Holistic Trace Analysis does by default",
)
DEVICE = (
    Column("PID", doc="process"),
    Column("DevId", doc="device ordinal inside the process"),
)
STREAM = (*DEVICE, Column("Strm", doc="stream"))


@dataclass(frozen=True)
class Launched:
    """GPU operations with the call that enqueued each.

    Attributes:
        op: rows of the operations.
        call: rows of the calls, one an operation.
    """

    op: IntArray
    call: IntArray


class Work:
    """Kernels, copies and memsets of a trace.

    Args:
        source: the trace.
        arguments: of the report; those of :data:`WITHOUT_LAST_STEP` count.
    """

    def __init__(self, source: Source, arguments: Arguments) -> None:
        self._source = source
        self.ops: Rows = source.gpu_work()
        if arguments.get(WITHOUT_LAST_STEP.name):
            limit = last_step_begins_ns(source)
            if limit is not None:
                pairs = Launched(*launches(self.ops, source.cuda_calls()))
                before = source.cuda_calls()["start_ns"][pairs.call] < limit
                keep = np.zeros(len(self.ops), bool)
                keep[pairs.op[before]] = True
                self.ops = self.ops.where(keep)

    @cached_property
    def launched(self) -> Launched:
        """The operations whose launch was recorded."""
        return Launched(*launches(self.ops, self._source.cuda_calls()))

    @property
    def calls(self) -> Rows:
        """The calls that :attr:`launched` names."""
        return self._source.cuda_calls()

    @cached_property
    def kind(self) -> IntArray:
        """Class of each operation, a number into :data:`CLASSES`."""
        kernel = self.ops.equals("kind", ("kernel",))
        communicates = self.ops.that("name", is_communication)
        return np.where(kernel, np.where(communicates, COMMUNICATION, COMPUTATION), MEMORY)

    @cached_property
    def devices(self) -> tuple[IntArray, IntArray]:
        """Number of each operation's device, and an operation of each, in order of (PID, DevId)."""
        return ordered(self.ops["process_id"], self.ops["device"])

    @cached_property
    def streams(self) -> tuple[IntArray, IntArray]:
        """The same for streams."""
        return ordered(self.ops["process_id"], self.ops["device"], self.ops["stream"])

    def place(self, rows: AnyArray, *, stream: bool = False) -> list[Any]:
        """The values of :data:`DEVICE`, or of :data:`STREAM`, for some operations."""
        names = ("process_id", "device", "stream") if stream else ("process_id", "device")
        return [self.ops[name][rows] for name in names]


def ordered(*keys: AnyArray) -> tuple[IntArray, IntArray]:
    """Number the distinct combinations of keys in ascending order, with a row that has each."""
    codes, firsts = group(*keys)
    order = np.lexsort([key[firsts] for key in reversed(keys)])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[codes], firsts[order]


def last_step_begins_ns(source: Source) -> int | None:
    """Begin of the last ``ProfilerStep``; None where the trace has fewer than two of them."""
    ranges = source.of_kind("range", "kind", "annotation", "pushpop")
    if not len(ranges):
        return None
    steps = ranges.where(ranges.that("name", lambda text: "ProfilerStep" in text))
    if len(set(steps["name"].tolist())) < 2:
        return None
    return int(steps["start_ns"].max())


@dataclass(frozen=True)
class Described:
    """Statistics of each group of values; NaN where a group lacks the values for it.

    Attributes:
        count: number of values.
        mean: their mean.
        std: sample standard deviation; NaN below two values.
        quartiles: least value, quartiles and greatest value, interpolated linearly.
    """

    count: IntArray
    mean: FloatArray
    std: FloatArray
    quartiles: list[FloatArray]

    def columns(self, rows: AnyArray | slice = slice(None)) -> list[Any]:
        """The values of :func:`described_columns` for some groups, in order."""
        return [
            self.count[rows],
            *(
                nullable(round_half_away(part[rows], 3), np.isnan(part[rows]))
                for part in (self.mean, self.std, *self.quartiles)
            ),
        ]


def described_columns(unit: Any = "") -> tuple[Column, ...]:
    """The columns that pandas' ``describe`` has."""
    return (
        Column("Count", doc="number of values"),
        Column("Mean", unit, "their mean"),
        Column("StdDev", unit, "sample standard deviation; empty below two values"),
        Column("Min", unit, "least value"),
        Column("Q1", unit, "a quarter of the values is at most this"),
        Column("Med", unit, "median"),
        Column("Q3", unit, "three quarters of the values are at most this"),
        Column("Max", unit, "greatest value"),
    )


def describe(values: AnyArray, groups: IntArray, number: int) -> Described:
    """Describe the values of groups 0 to ``number - 1``."""
    order = np.lexsort((values, groups))
    ordered_ = values[order].astype(np.float64)
    count = np.bincount(groups, minlength=number)
    first = np.cumsum(count) - count
    filled = np.flatnonzero(count)
    mean, std = np.full(number, np.nan), np.full(number, np.nan)
    quartiles = [np.full(number, np.nan) for _ in range(5)]
    if len(filled):
        mean[filled] = np.add.reduceat(ordered_, first[filled]) / count[filled]
        away = np.square(ordered_ - np.repeat(mean[filled], count[filled]))
        several = count > 1
        squares = np.zeros(number)
        squares[filled] = np.add.reduceat(away, first[filled])
        std[several] = np.sqrt(squares[several] / (count[several] - 1))
        for part, quartile in enumerate(quartiles):
            at = first[filled] + (count[filled] - 1) * (part / 4)
            low = np.floor(at).astype(np.int64)
            high = np.minimum(low + 1, first[filled] + count[filled] - 1)
            quartile[filled] = ordered_[low] + (ordered_[high] - ordered_[low]) * (at - low)
    return Described(count, mean, std, quartiles)


def share(part: AnyArray, whole: AnyArray) -> Any:
    """Percent with two decimals; null where the whole is nothing."""
    whole = np.asarray(whole, np.float64)
    known = whole != 0
    ratio = np.divide(100.0 * np.asarray(part), whole, out=np.zeros(len(whole)), where=known)
    return nullable(round_half_away(ratio, 2), ~known)
