"""What the readers of one capture share: the writer, time zero, what was seen so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.trace.frame import AnyArray, IntArray
from stepscope.trace.store import TraceWriter


@dataclass
class Sink:
    """Takes decoded rows and hands them to the writer.

    Attributes:
        writer: receives canonical rows.
        origin_ns: time of the source's clock that becomes zero.
        rows: rows handed over, by canonical table.
        streams: (process, context, device, stream) of the GPU work seen.
        threads: (process, thread) seen.
        latest_ns: the latest time seen, after the origin.
    """

    writer: TraceWriter
    origin_ns: int = 0
    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
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
