"""NVTX ranges and marks; what is traced as such: the GIL, PyTorch's operators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from stepscope.importers.common.nvtx import count_overlapping, put_operators
from stepscope.importers.nsys.rows import Field, Rows, may, must
from stepscope.importers.nsys.sink import Sink, process_of, thread_of
from stepscope.intervals.distinct import among, distinct_values
from stepscope.trace.frame import BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE = "NVTX_EVENTS"
TABLE = "range"
NVTX_PUSHPOP = (59, 70)
NVTX_MARK = 34
NVTX_THREAD_NAME = 39
NVTX_DOMAIN = 75
NVTX_NAMING = (33, NVTX_THREAD_NAME, NVTX_DOMAIN, 76, 97, 98, 99)
"""Rows that name something (categories, threads, domains, devices): no events."""
_GIL_DOMAIN = re.compile(r"\bGIL\b", re.IGNORECASE)
_KINDS = {59: "pushpop", 70: "pushpop", 60: "startend", 71: "startend", 34: "mark"}
_PAYLOADS = ("uint64Value", "int64Value", "uint32Value", "int32Value", "doubleValue", "floatValue")
_FIELDS = (
    must("rowid"),
    must("start", "time"),
    may("end", "time"),
    must("eventType"),
    may("text", "text"),
    may("textId"),
    must("globalTid"),
    may("endGlobalTid"),
    may("domainId", none=(0,)),
    *(
        Field(name, "float64" if name in ("doubleValue", "floatValue") else "int64")
        for name in _PAYLOADS
    ),
    may("jsonTextId"),
    may("jsonText", "text"),
)
Domains = dict[tuple[int, int], str]


class RangeReader:
    """Reads ranges.

    Args:
        sink: takes the rows; its window's end closes ranges that are still open.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._domains: Domains = {}
        self._nesting: list[tuple[IntArray, IntArray, IntArray]] = []
        self.thread_names: dict[tuple[int, int], str] = {}

    def read(self) -> None:
        """Fill ``range``, ``gil`` and ``operator``."""
        self._read_naming()
        for rows in self._sink.tables.read(SOURCE, _FIELDS, TABLE):
            types = rows.ints("eventType")
            self._note_unknown(types)
            events = rows.filter(among(types, list(_KINDS)))
            if len(events):
                self._put(events)
        overlapping = count_overlapping(self._nesting)
        self._sink.tables.problems.count("overlapping_range", overlapping, scope=TABLE)

    def _read_naming(self) -> None:
        """Read the rows that name domains and threads, wherever in the table they stand."""
        fields = (
            must("eventType"),
            must("globalTid"),
            may("domainId"),
            may("text", "text"),
            may("textId"),
        )
        where = ("eventType", (NVTX_DOMAIN, NVTX_THREAD_NAME))
        for rows in self._sink.tables.read(SOURCE, fields, TABLE, where):
            for kind, tid, domain, text in zip(
                rows.ints("eventType").tolist(),
                rows.ints("globalTid").tolist(),
                rows.ints("domainId").tolist(),
                self._texts(rows).to_pylist(),
                strict=True,
            ):
                process = (tid >> 24) & 0xFFFFFF
                if kind == NVTX_THREAD_NAME:
                    self.thread_names[process, tid & 0xFFFFFF] = text or ""
                elif text:
                    self._domains[process, domain] = text

    def _texts(self, rows: Rows) -> pa.Array:
        """The text of each row: the registered string where there is one, else the inline text."""
        import pyarrow.compute as pc

        registered = self._sink.strings.take(rows["textId"], self._sink.replaced(TABLE))
        return pc.coalesce(registered, rows["text"])

    def _put(self, rows: Rows) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        sink = self._sink
        types = rows.ints("eventType")
        tids = rows.ints("globalTid")
        start, end, closed = self._ends(rows, types)
        texts = pc.fill_null(self._texts(rows), "")
        names = sink.string_table(TABLE, "name").codes(texts)
        domains = self._domain_codes(rows, process_of(tids))
        end_tids = rows["endGlobalTid"]
        sink.saw_threads(tids)
        sink.put(
            TABLE,
            {
                "kind": sink.labels(TABLE, "kind", rows["eventType"], _KINDS, "{}"),
                "process_id": pa.array(process_of(tids)),
                "thread_id": pa.array(thread_of(tids)),
                "end_thread_id": pc.bit_wise_and(end_tids, (1 << 24) - 1),
                "start_ns": pa.array(start),
                "end_ns": pa.array(end),
                "name": names,
                "domain": domains,
                "payload": sink.string_table(TABLE, "payload").codes(self._payloads(rows)),
                "closed": pa.array(closed),
                "source_row": rows["rowid"],
                "end_missing": pa.array(~rows.valid("end") & (types != NVTX_MARK)),
            },
        )
        is_gil = self._put_gil(names, domains, tids, start, end)
        nests = among(types, NVTX_PUSHPOP) & ~is_gil & closed
        self._nesting.append((tids[nests], start[nests], end[nests]))
        put_operators(sink, texts, nests, (process_of(tids), thread_of(tids)), (start, end))

    def _ends(self, rows: Rows, types: IntArray) -> tuple[IntArray, IntArray, BoolArray]:
        """Starts, ends, and whether the program closed the range."""
        start, end, closed = rows.ints("start"), rows.ints("end"), rows.valid("end")
        window_end = self._sink.window_end_ns
        if window_end is None:
            limit = max(self._sink.latest_ns, int(start.max()), int(end[closed].max(initial=0)))
        else:
            limit = window_end
            # nsys itself ends a range that is open at the capture's end, at exactly that time
            closed = closed & (end != window_end)
        mark = types == NVTX_MARK
        end = np.where(mark, start, np.where(closed, end, np.maximum(start, limit)))
        closed = closed | mark
        self._sink.tables.problems.count("unclosed_range", int((~closed).sum()), scope=TABLE)
        return start, end, closed

    def _domain_codes(self, rows: Rows, processes: IntArray) -> pa.Array:
        """Codes of the domains' names; null for the default domain and for unnamed ones."""
        import pyarrow as pa

        string_table = self._sink.string_table(TABLE, "domain")
        ids = rows.ints("domainId")
        result = np.full(len(rows), -1, np.int32)
        for (process, domain), name in self._domains.items():
            if domain != 0:
                result[(ids == domain) & (processes == process)] = string_table.code(name)
        return pa.array(result, mask=result < 0)

    def _payloads(self, rows: Rows) -> pa.Array:
        """The payload as text: JSON where there is any, else the number."""
        import pyarrow as pa
        import pyarrow.compute as pc

        replaced = self._sink.replaced(TABLE)
        parts = [self._sink.strings.take(rows["jsonTextId"], replaced), rows["jsonText"]]
        for name in _PAYLOADS:
            values = rows[name]
            if values.null_count == len(values):
                continue
            if name == "uint64Value":
                values = values.view(pa.uint64())  # SQLite knows signed integers only
            parts.append(values.cast(pa.string()))
        return pc.coalesce(*parts)

    def _put_gil(
        self,
        names: pa.Array,
        domains: pa.Array,
        tids: IntArray,
        start: IntArray,
        end: IntArray,
    ) -> BoolArray:
        """Also fill ``gil``; returns which rows tell about the lock."""
        import pyarrow as pa

        sink = self._sink
        lock_domains = [
            number
            for number, text in enumerate(sink.string_table(TABLE, "domain").texts)
            if _GIL_DOMAIN.search(text)
        ]
        is_gil = among(domains.fill_null(-1).to_numpy(zero_copy_only=False), lock_domains)
        if not is_gil.any():
            return is_gil
        texts = sink.string_table(TABLE, "name").texts
        numbers = names.to_numpy(zero_copy_only=False)
        state = np.full(len(texts), -1, np.int32)
        for number in distinct_values(numbers[is_gil]).tolist():
            text = texts[number].lower()
            if "hold" in text:
                state[number] = sink.string_table("gil", "state").code("holding")
            elif "wait" in text:
                state[number] = sink.string_table("gil", "state").code("waiting")
        states = state[numbers]
        rows = np.flatnonzero(is_gil & (states >= 0))
        sink.put(
            "gil",
            {
                "process_id": pa.array(process_of(tids[rows])),
                "thread_id": pa.array(thread_of(tids[rows])),
                "start_ns": pa.array(start[rows]),
                "end_ns": pa.array(end[rows]),
                "state": pa.array(states[rows]),
            },
        )
        return is_gil

    def _note_unknown(self, types: IntArray) -> None:
        unknown = types[~among(types, [*_KINDS, *NVTX_NAMING])]
        if len(unknown):
            detail = f"{SOURCE}: event type {int(unknown[0])}"
            self._sink.tables.problems.count(
                "unsupported_source", len(unknown), scope=TABLE, detail=detail
            )
