"""Columns that grow piece by piece, and what tables of events with begin and end have in common.

Columns are numpy arrays and codes of interned texts: no Python object stays of an event.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from stepscope.importers.common.texts import Codes, StringTable, dictionary
from stepscope.importers.kineto.events import MISSING, NO_ARGS, Args, Event
from stepscope.importers.kineto.processes import Launchers
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.problems import ProblemLog
from stepscope.trace.store import TraceWriter
from stepscope.trace.text import JsonError, from_json

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]
Events = list[Event[Any, Any]]

ROWS_PER_BATCH = 1 << 17
_LAST_NUMBER = re.compile(r"-?\d+(?!.*\d)", re.S)
_MAX_US = 4.5e15  # in the year 2112; differences of such times in nanoseconds fit an int64
MAX_NS = round(_MAX_US * 1000)
"""No time lies further from zero, ns."""
_LONGEST_NUMBER = 64
_INT32 = np.iinfo(np.int32)


class Columns:
    """Arrays that arrive in parts, by name."""

    def __init__(self) -> None:
        self._parts: dict[str, list[npt.NDArray[Any]]] = {}
        self.rows = 0

    def add(self, **arrays: npt.NDArray[Any]) -> None:
        """Append one part to every column; all of one length."""
        for name, array in arrays.items():
            self._parts.setdefault(name, []).append(array)
        self.rows += len(array)

    def pop(self, name: str) -> npt.NDArray[Any]:
        """The whole column, released here."""
        parts = self._parts.pop(name, [])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def peek(self, name: str) -> npt.NDArray[Any]:
        """The whole column, kept here as one part."""
        if name in self._parts:
            self._parts[name] = [np.concatenate(self._parts[name])]
            return self._parts[name][0]
        return np.empty(0, np.int64)

    def replace(self, name: str, values: npt.NDArray[Any]) -> None:
        """Put other values into a column."""
        self._parts[name] = [values]

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Keep some rows of every column, and release the others."""
        for name in self._parts:
            self._parts[name] = [self.peek(name)[rows]]
        self.rows = int(rows.sum())


def integers(values: Sequence[Any]) -> Ints:
    """Values as int64; texts by the last number in them, what is no number as ``MISSING``."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(_integer, values), np.int64, len(values))


def _integer(value: Any) -> int:
    if isinstance(value, str):
        if value.startswith("0x"):
            return MISSING
        number = _LAST_NUMBER.search(value[-_LONGEST_NUMBER:])
        value = int(number.group()[:20]) if number else MISSING
    if not isinstance(value, int) or not MISSING <= value < -MISSING:
        return MISSING
    return value


def beyond_int64(values: Sequence[Any]) -> int:
    """How many of the values are integers that 64 bits do not hold."""
    return sum(isinstance(v, int) and not MISSING <= v < -MISSING for v in values)


def fitting32(values: Sequence[int | None]) -> tuple[list[int | None], int]:
    """Values that 32 bits hold, the others being None; how many those are."""
    kept = [v if v is None or _INT32.min <= v <= _INT32.max else None for v in values]
    return kept, kept.count(None) - list(values).count(None)


def value_of(raw: bytes | msgspec.Raw, counted: Counter[str]) -> Any:
    """What a piece of JSON text holds; None where it is empty or cannot be decoded.

    Args:
        raw: the text.
        counted: receives the number of values that cannot be read, by kind of problem.
    """
    text = bytes(raw)
    if not text:
        return None
    try:
        return from_json(text)
    except JsonError:
        pass
    try:
        found = from_json(text.decode("utf-8", "replace").encode())
    except JsonError:
        counted["bad_value"] += 1
        return None
    counted["invalid_text"] += 1
    return found


def external_ids(args: list[Args]) -> Ints:
    """The operator that an event belongs to; 0 and absent give ``MISSING``."""
    found = integers([a.external_id for a in args])
    if (found == MISSING).any():
        found = np.where(found == MISSING, integers([a.old_external_id for a in args]), found)
    return np.where(found <= 0, MISSING, found)


def _triple(value: tuple[int, int, int] | str | None) -> tuple[int, int, int] | None:
    return None if isinstance(value, str) else value


def triples(
    values: Iterable[tuple[int, int, int] | str | None], count: int
) -> npt.NDArray[np.int64]:
    """Three columns of a list of triples; what 64 bits do not hold becomes their limit."""
    none = (MISSING, MISSING, MISSING)
    most = -MISSING - 1
    rows = [_triple(value) or none for value in values]
    try:
        return np.array(rows, np.int64).reshape(count, 3)
    except OverflowError:
        return np.array([[max(min(n, most), MISSING) for n in row] for row in rows], np.int64)


def nanoseconds(values: Sequence[float | Decimal]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Microseconds as integer nanoseconds, rounded, and which of them are times at all."""
    if values and isinstance(values[0], Decimal):
        return _decimal_nanoseconds(values)
    times = np.fromiter(values, np.float64, len(values))
    good = np.abs(times) < _MAX_US  # False for NaN
    if not good.all():
        times = np.where(good, times, 0.0)
    whole = np.floor(times)
    # the fraction is exact in binary, so this rounds once; times * 1000 would round twice
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64), good


def _decimal_nanoseconds(
    values: Sequence[float | Decimal],
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    # absent times are floats (NaN) also where the others are decimals; comparing NaNs of decimals
    # raises, as does making floats of those that signal
    good = [
        (value.is_finite() if isinstance(value, Decimal) else isfinite(value))
        and -_MAX_US < value < _MAX_US
        for value in values
    ]
    exact = (round(v * 1000) if ok else 0 for v, ok in zip(values, good, strict=True))
    return np.fromiter(exact, np.int64, len(values)), np.array(good, dtype=np.bool_)


def runs(*columns: npt.NDArray[Any]) -> list[tuple[tuple[int, ...], int]]:
    """Stretches of equal rows, in order: the row's values and the number of rows."""
    rows = len(columns[0])
    if not rows:
        return []
    changes = np.zeros(rows, dtype=bool)
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    changes[0] = True
    first = np.flatnonzero(changes)
    lengths = np.diff(np.append(first, rows)).tolist()
    values = zip(*(column[first].tolist() for column in columns), strict=True)
    return list(zip(values, lengths, strict=True))


def nullable(values: Ints) -> Any:
    """An Arrow array with nulls where values are ``MISSING``; the array itself where none is."""
    import pyarrow as pa

    missing = values == MISSING
    return pa.array(values, mask=missing) if missing.any() else values


def nullable32(values: Ints) -> pa.Array:
    """The same as int32; what does not fit becomes null."""
    import pyarrow as pa

    missing = (values < _INT32.min) | (values > _INT32.max)
    return pa.array(np.where(missing, 0, values).astype(np.int32), mask=missing)


def write_sorted(
    writer: TraceWriter, table: str, start: Ints, columns: dict[str, Any], rows: int
) -> None:
    """Write rows in the order of ``start``, in batches.

    Args:
        writer: the sink.
        table: canonical table.
        start: sort key of every row.
        columns: name to either a numpy array or a function that makes the column from one (a
            pair of array and function).
        rows: number of rows.
    """
    in_order = bool((start[1:] >= start[:-1]).all())
    order = None if in_order else np.argsort(start, kind="stable")
    for first in range(0, rows, ROWS_PER_BATCH):
        chosen = slice(first, min(first + ROWS_PER_BATCH, rows))
        picked = chosen if order is None else order[chosen]
        batch = {}
        for name, column in columns.items():
            array, make = column if isinstance(column, tuple) else (column, None)
            part = array[picked]
            batch[name] = make(part) if make else part
        writer.append(table, batch)


@dataclass
class Flows:
    """Flow events from a forward operator to the operator of its backward pass."""

    columns: dict[str, Columns] = field(default_factory=lambda: {"s": Columns(), "f": Columns()})

    def add(self, events: Events) -> None:
        """Take over flow events of forward and backward."""
        for phase, columns in self.columns.items():
            chosen = [event for event in events if event.ph == phase]
            if chosen:
                time, timed = nanoseconds([event.ts for event in chosen])
                columns.add(
                    id=integers([event.id for event in chosen])[timed],
                    tid=integers([event.tid for event in chosen])[timed],
                    time=time[timed],
                )

    def resolve(self, tid: Ints, start: Ints, origin_ns: int, problems: ProblemLog) -> Ints:
        """Start of the forward operator for each operator, ``MISSING`` where none is known.

        Args:
            tid: thread of every operator.
            start: start of every operator, ns since the origin.
            origin_ns: subtracted from the times of the flows.
            problems: counts flows that lead to no operator.
        """
        found = np.full(len(start), MISSING)
        heads, tails = self.columns["f"], self.columns["s"]
        if not heads.rows or not tails.rows:
            return found
        tail_id, tail_time = tails.pop("id"), tails.pop("time") - origin_ns
        by_id = np.argsort(tail_id, kind="stable")
        head_id, head_tid = heads.pop("id"), heads.pop("tid")
        head_time = heads.pop("time") - origin_ns
        tail = by_id[np.minimum(np.searchsorted(tail_id, head_id, sorter=by_id), len(by_id) - 1)]
        paired = tail_id[tail] == head_id
        unresolved = int((~paired).sum())
        for thread in distinct_values(head_tid[paired]):
            flows = np.flatnonzero(paired & (head_tid == thread))
            rows = np.flatnonzero(tid == thread)
            rows = rows[np.argsort(start[rows], kind="stable")]  # parents come before children
            at = np.searchsorted(start[rows], head_time[flows])
            hit = at < len(rows)
            hit[hit] = start[rows[at[hit]]] == head_time[flows[hit]]
            found[rows[at[hit]]] = tail_time[tail[flows[hit]]]
            unresolved += int((~hit).sum())
        problems.count("unresolved_forward", unresolved, scope="operator")
        return found


@dataclass
class Context:
    """What is known when the whole file has been read.

    Attributes:
        writer: where rows go; ``writer.problems`` counts what is wrong with them.
        origin_ns: subtracted from every time.
        process_id: the process that was captured.
        launchers: tells the process of GPU work.
        asked: correlations of calls that state a size, ascending, and the sizes in bytes.
        forward: finds the start of an operator's forward call.
    """

    writer: TraceWriter
    origin_ns: int
    process_id: int
    launchers: Launchers
    asked: tuple[Ints, Ints]
    forward: Flows


class Spans:
    """Events with a begin and a duration, of one table."""

    table = ""

    def __init__(self) -> None:
        self.columns = Columns()
        self.names = StringTable()
        self.dropped = 0
        self.too_large = 0
        self.counted: Counter[str] = Counter()

    def whole(self, values: list[Any]) -> Ints:
        """Values as int64; those that it does not hold are counted, and count as absent."""
        found = integers(values)
        if np.count_nonzero(found == MISSING) > values.count(MISSING):  # more than are absent
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
        names = self.names.texts
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


_COLLECTIVE_TEXTS = {
    "name": "collective",
    "dtype": "dtype",
    "group_name": "group_name",
    "group_description": "group_description",
    "group_ranks": "group_ranks",
    "in_splits": "in_splits",
    "out_splits": "out_splits",
}
_COLLECTIVE_NUMBERS = {
    "in_elements": "in_elements",
    "out_elements": "out_elements",
    "group_size": "group_size",
    "sequence": "sequence",
    "rank": "rank",
}


Metadata = tuple[int, dict[str, Any]]
"""The external id of an event that describes a collective, and what it says."""


def metadata(args: Args, counted: Counter[str]) -> Metadata:
    """What an event says of a collective, as columns of the ``collective`` table.

    Args:
        args: of the event.
        counted: receives the number of values that cannot be read, by kind of problem.
    """
    found: dict[str, Any] = {}
    for column, name in _COLLECTIVE_TEXTS.items():
        value = value_of(getattr(args, name), counted)
        if value is not None:
            found[column] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    for column, name in _COLLECTIVE_NUMBERS.items():
        value = value_of(getattr(args, name), counted)
        number = int(integers([value])[0])
        if number != MISSING:
            found[column] = number
        elif value is not None:
            counted["number_too_large" if isinstance(value, int) else "bad_value"] += 1
    return int(external_ids([args])[0]), found


def write_collectives(
    writer: TraceWriter, launchers: Launchers, kernels: list[Metadata], operators: list[Metadata]
) -> None:
    """Write what the framework said about communication.

    A kernel repeats most of what the operator that launched it (``record_param_comms``) says; both
    carry the same external id. An operator without such a kernel (other backends, older versions)
    gets a row of its own, without correlation.
    """
    by_operator = {external: row for external, row in operators if external != MISSING}
    launched = {external for external, _ in kernels}
    rows = [{**by_operator.get(external, {}), **row} for external, row in kernels]
    rows += [row for external, row in operators if external not in launched]
    if rows:
        names = ["correlation_id", "device", *_COLLECTIVE_TEXTS, *_COLLECTIVE_NUMBERS]
        columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
        columns["name"] = [name or "unknown" for name in columns["name"]]
        device, correlation = (integers(columns[name]) for name in ("device", "correlation_id"))
        columns["process_id"] = launchers.of(device, correlation).tolist()
        writer.append("collective", columns)
