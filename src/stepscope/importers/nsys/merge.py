"""Merge several tables of one kind of event into time order, batch by batch.

Nsight Systems stores kernels, copies and fills in a table each, and each is (up to 2025.5) sorted
by start. Merging them while they stream by spares the store from sorting the whole canonical
table. Where a table is not sorted, its rows are passed on as they come and the store sorts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, "pa.Array"]
"""Decoded columns of equal length, by canonical name; ``start_ns`` has no nulls."""


def merged(streams: Sequence[Iterator[Columns]]) -> Iterator[Columns]:
    """Rows of all streams, in the order of ``start_ns`` as far as the streams are sorted."""
    heads = [head for stream in streams if (head := _Head.of(stream)) is not None]
    while len(heads) > 1:
        # up to the earliest last start of the loaded batches, every row is known
        bound = min(head.last for head in heads)
        pieces = [head.take(bound) for head in heads]
        yield _in_order([piece for piece in pieces if _length(piece)])
        heads = [head for head in heads if not head.exhausted]
    for head in heads:
        yield head.rest()
        yield from head.stream


@dataclass
class _Head:
    """The loaded batch of one stream."""

    stream: Iterator[Columns]
    batch: Columns
    starts: IntArray
    exhausted: bool = False

    @classmethod
    def of(cls, stream: Iterator[Columns]) -> _Head | None:
        head = cls(stream, {}, np.empty(0, np.int64))
        head._load()
        return None if head.exhausted else head

    @property
    def last(self) -> int:
        return int(self.starts[-1])

    def take(self, bound: int) -> Columns:
        """Remove and return the leading rows up to ``bound``."""
        count = int(np.searchsorted(self.starts, bound, side="right"))
        taken = {name: array.slice(0, count) for name, array in self.batch.items()}
        if count == len(self.starts):
            self._load()
        else:
            self.batch = {name: array.slice(count) for name, array in self.batch.items()}
            self.starts = self.starts[count:]
        return taken

    def rest(self) -> Columns:
        """What is left of the loaded batch."""
        return self.batch

    def _load(self) -> None:
        for batch in self.stream:
            if _length(batch):
                self.batch = batch
                self.starts = batch["start_ns"].to_numpy(zero_copy_only=False)
                if (self.starts[1:] < self.starts[:-1]).any():
                    self.batch, self.starts = _sorted(batch, self.starts)
                return
        self.exhausted = True


def _length(columns: Columns) -> int:
    return len(columns.get("start_ns", ()))  # a batch without usable rows may lack it


def _sorted(columns: Columns, starts: IntArray) -> tuple[Columns, IntArray]:
    import pyarrow as pa

    order = np.argsort(starts, kind="stable")
    rows = pa.array(order)
    return {name: array.take(rows) for name, array in columns.items()}, starts[order]


def _in_order(pieces: list[Columns]) -> Columns:
    import pyarrow as pa

    if len(pieces) == 1:
        return pieces[0]
    types = {name: array.type for piece in pieces for name, array in piece.items()}
    joined = {
        name: pa.concat_arrays(
            [piece[name] if name in piece else pa.nulls(_length(piece), kind) for piece in pieces]
        )
        for name, kind in types.items()
    }
    return _sorted(joined, joined["start_ns"].to_numpy(zero_copy_only=False))[0]
