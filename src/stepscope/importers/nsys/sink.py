"""What all readers share: the reader of tables, the writer, the dictionaries, the window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.importers.nsys.merge import Columns
from stepscope.importers.nsys.rows import TableReader
from stepscope.importers.nsys.text import Lexicon, NameColumn, Replaced, Strings
from stepscope.intervals.distinct import distinct_values, with_inverse
from stepscope.trace.frame import IntArray
from stepscope.trace.schema import TABLES
from stepscope.trace.store import TraceWriter

if TYPE_CHECKING:
    import pyarrow as pa

PROCESS_SHIFT = 24
ID_MASK = (1 << PROCESS_SHIFT) - 1
_CHECKED_FOR_NEGATIVE_TIME = frozenset({"gpu_op", "api_call", "range", "sync"})


def process_of(global_id: IntArray) -> IntArray:
    """The process id inside global process or thread ids."""
    return (global_id >> PROCESS_SHIFT) & ID_MASK


def thread_of(global_id: IntArray) -> IntArray:
    """The thread id inside global thread ids."""
    return global_id & ID_MASK


@dataclass
class Sink:
    """Takes decoded columns and hands them to the writer.

    Attributes:
        tables: reads the source.
        writer: receives canonical rows.
        strings: the source's ``StringIds``.
        window_end_ns: end of the captured window; None while unknown.
        latest_ns: the latest time seen in any event.
        threads: global thread ids seen.
        processes: process ids seen.
        streams: (process, context, device, stream) seen on the GPU.
        rows: rows handed over, by canonical table.
    """

    tables: TableReader
    writer: TraceWriter
    strings: Strings
    window_end_ns: int | None = None
    latest_ns: int = 0
    threads: set[int] = field(default_factory=set)
    processes: set[int] = field(default_factory=set)
    streams: set[tuple[int, int, int, int]] = field(default_factory=set)
    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _lexicons: dict[tuple[str, str], Lexicon] = field(default_factory=lambda: defaultdict(Lexicon))

    def lexicon(self, table: str, column: str) -> Lexicon:
        """The dictionary of a canonical text column."""
        return self._lexicons[table, column]

    def names(self, table: str, column: str, change: Callable[[str], str] = str) -> NameColumn:
        """A converter of string ids to codes of a canonical text column."""

        def unknown(count: int, detail: str) -> None:
            self.tables.problems.count("missing_text", count, scope=table, detail=detail)

        lexicon = self.lexicon(table, column)
        return NameColumn(self.strings, lexicon, unknown, self.replaced(table), change)

    def replaced(self, table: str) -> Replaced:
        """Counts texts of a canonical table that had to be cleaned."""

        def count(texts: int, first: str) -> None:
            self.tables.problems.count("invalid_text", texts, scope=table, detail=first)

        return count

    def constant(self, table: str, column: str, text: str, rows: int) -> pa.Array:
        """Codes of one text, repeated."""
        import pyarrow as pa

        return pa.array(np.full(rows, self.lexicon(table, column).code(text), np.int32))

    def labels(
        self, table: str, column: str, codes: pa.Array, known: dict[int, str], other: str
    ) -> pa.Array:
        """Codes of the labels of an enumeration; null stays null.

        Args:
            table: canonical table.
            column: canonical text column.
            codes: the source's codes.
            known: label of each known code.
            other: label of an unknown code, with a place for the number.
        """
        import pyarrow as pa

        lexicon = self.lexicon(table, column)
        valid = np.asarray(codes.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
        numbers = codes.fill_null(0).to_numpy(zero_copy_only=False)
        distinct, inverse = with_inverse(numbers)
        if not valid.all():
            distinct, inverse = with_inverse(numbers[valid])
        texts = [known.get(number, other.format(number)) for number in distinct.tolist()]
        found = np.array([lexicon.code(text) for text in texts], np.int32)
        result = np.zeros(len(numbers), np.int32)
        result[valid] = found[inverse]
        return pa.array(result, mask=~valid)

    def put(self, table: str, columns: dict[str, Any]) -> None:
        """Hand rows to the writer; int32 columns of text become dictionary arrays."""
        spec = TABLES[table]
        length = max((len(data) for data in columns.values()), default=0)
        if not length:
            return
        texts = {column.name for column in spec.columns if column.type == "text"}
        self.rows[table] += length
        self._note_times(table, columns)
        self.writer.append(
            table,
            {
                name: self.lexicon(table, name).encode(data) if name in texts else data
                for name, data in columns.items()
            },
        )

    def put_all(self, table: str, batches: Any) -> None:
        """Hand all batches of an iterator to the writer."""
        for batch in batches:
            self.put(table, batch)

    def saw_threads(self, global_tid: IntArray) -> None:
        """Remember which threads (and so processes) appear."""
        if len(global_tid):
            # neighbouring rows mostly share a thread: compare before sorting
            changes = np.flatnonzero(global_tid[1:] != global_tid[:-1]) + 1
            found = distinct_values(global_tid[np.concatenate(([0], changes))])
            self.threads.update(found.tolist())
            self.processes.update(process_of(found).tolist())

    def _note_times(self, table: str, columns: Columns) -> None:
        import pyarrow.compute as pc

        last = columns.get("end_ns", columns.get("time_ns"))
        if last is not None and table != "diagnostic":
            latest = pc.max(last).as_py()
            self.latest_ns = max(self.latest_ns, 0 if latest is None else int(latest))
        if table in _CHECKED_FOR_NEGATIVE_TIME:
            starts = columns["start_ns"]
            first = pc.min(starts).as_py()
            if first is not None and first < 0:
                early = int(pc.sum(pc.less(starts, 0)).as_py())
                detail = f"{table}: {first} ns"
                self.tables.problems.count("negative_time", early, scope=table, detail=detail)
