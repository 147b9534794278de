"""Framework operators from NVTX ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.importers.common.operators import TABLE, operators_in
from stepscope.importers.nsys.sink import Sink, process_of, thread_of
from stepscope.trace.frame import BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa


def put_operators(
    sink: Sink, texts: pa.Array, tids: IntArray, start: IntArray, end: IntArray, nests: BoolArray
) -> None:
    """Fill ``operator`` from ranges that PyTorch's profiler named.

    Args:
        sink: takes the rows.
        texts: names of the ranges.
        tids: their global thread ids.
        start: their begins, ns.
        end: their ends, ns.
        nests: which of them are closed ranges of a thread's stack.
    """
    import pyarrow as pa

    found = operators_in(texts, nests)
    if found is None:
        return
    sink.put(
        TABLE,
        {
            "process_id": pa.array(process_of(tids[found.rows])),
            "thread_id": pa.array(thread_of(tids[found.rows])),
            "start_ns": pa.array(start[found.rows]),
            "end_ns": pa.array(end[found.rows]),
            "name": sink.lexicon(TABLE, "name").codes(found.name),
            "sequence_number": found.sequence,
            "input_shapes": sink.lexicon(TABLE, "input_shapes").codes(found.shapes),
        },
    )
