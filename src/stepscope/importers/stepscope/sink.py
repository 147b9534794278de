"""What the readers of one capture share: the writer, time zero, texts, and small conversions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.raw import Raw
from stepscope.intervals.distinct import with_inverse
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.store import TraceWriter

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Sink:
    """Takes the rows of one process after the other.

    Attributes:
        writer: receives canonical rows.
        origin_ns: monotonic time that becomes zero.
        rows: rows handed over, by canonical table.
        devices: (process, context) -> device ordinal, from the GPU work seen.
        streams: (process, context, device, stream) of the GPU work seen.
        threads: (process, thread) seen.
        latest_ns: the latest time seen, after the origin.
    """

    writer: TraceWriter
    origin_ns: int
    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    devices: dict[tuple[int, int], int] = field(default_factory=dict)
    streams: set[tuple[int, int, int, int]] = field(default_factory=set)
    threads: set[tuple[int, int]] = field(default_factory=set)
    latest_ns: int = 0

    def put(self, table: str, columns: Mapping[str, Any]) -> None:
        """Hand rows of one length to the writer."""
        length = max((len(data) for data in columns.values()), default=0)
        if length:
            self.rows[table] += length
            self.writer.append(table, columns)

    def put_records(self, table: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Hand a few rows to the writer."""
        names = {name for record in records for name in record}
        self.put(table, {name: [record.get(name) for record in records] for name in names})

    def times(self, absolute: AnyArray) -> IntArray:
        """Times since the origin."""
        found = absolute.astype(np.int64) - self.origin_ns
        if len(found):
            self.latest_ns = max(self.latest_ns, int(found.max()))
        return found

    def device_of(self, process: int, contexts: AnyArray) -> pa.Array:
        """The device of each context; null where no GPU work told it."""
        import pyarrow as pa

        distinct, inverse = with_inverse(contexts)
        known = np.array([self.devices.get((process, int(c)), -1) for c in distinct], np.int32)
        found = known[inverse] if len(known) else np.empty(0, np.int32)
        return pa.array(found, mask=found < 0)


def texts(raw: Raw, numbers: AnyArray, change: Mapping[int, str] | None = None) -> pa.Array:
    """Dictionary array of text numbers; null for 0, ``[text N]`` for one that was lost.

    Args:
        raw: holds the texts.
        numbers: text numbers.
        change: other texts for some numbers.
    """
    distinct, inverse = with_inverse(numbers)
    words = []
    for number in distinct.tolist():
        text = raw.texts.get(number, f"[text {number}]")
        words.append(change.get(number, text) if change else text)
    return dictionary(inverse, words, mask=numbers == 0)


def dictionary(codes: AnyArray, words: Sequence[str], mask: BoolArray | None = None) -> pa.Array:
    """A dictionary array of codes into words, which need not be distinct; masked rows are null."""
    import pyarrow as pa

    places: dict[str, int] = {}
    new = np.array([places.setdefault(word, len(places)) for word in words], np.int32)
    found = new[codes].astype(np.int32) if len(words) else np.zeros(len(codes), np.int32)
    indices = pa.array(found, mask=mask)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(places), pa.string()))


def labels(numbers: AnyArray, known: Mapping[int, str], other: str = "{}") -> pa.Array:
    """Dictionary array of the labels of an enumeration."""
    distinct, inverse = with_inverse(numbers)
    return dictionary(inverse, [known.get(n, other.format(n)) for n in distinct.tolist()])


def constant(text: str, rows: int) -> pa.Array:
    """Dictionary array of one text."""
    return dictionary(np.zeros(rows, np.int32), [text])


def ids(numbers: AnyArray, none: int = layout.NO_ID) -> pa.Array:
    """Numbers as int64, null where they stand for none."""
    import pyarrow as pa

    return pa.array(numbers.astype(np.int64), mask=np.asarray(numbers == none))
