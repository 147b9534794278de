"""Framework operators among NVTX ranges, and whether the ranges of each thread nest.

PyTorch's ``emit_nvtx`` and nsys's ``--pytorch=autograd-*`` name a range ``NAME, seq = 7,
op_id = 12, sizes = [[2, 3], [3, 4]], input_op_ids = ...``; every part but the name may be left
out, but a range of an operator has at least one of them (torch/csrc/profiler/util.cpp,
``getNvtxStr``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.importers.common.sink import Sink
from stepscope.trace.frame import BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

_MARKED: Final = r", (seq|op_id|sizes) = [\[\d]"
_PARTS: Final = (
    r"^(?P<name>.*?)(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = \d+)?"
    r"(?:, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?(?:, input_op_ids = .*)?$"
)


def put_operators(
    sink: Sink,
    texts: pa.Array,
    nests: BoolArray,
    place: tuple[IntArray, IntArray],
    times: tuple[IntArray, IntArray],
) -> None:
    """Fill ``operator`` from the ranges that PyTorch's profiler named.

    Args:
        sink: takes the rows.
        texts: names of the ranges.
        nests: which of them are closed ranges of a thread's stack.
        place: their processes and threads.
        times: their begins and ends, ns by the sink's clock.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    mine = pc.and_(pc.match_substring_regex(texts, _MARKED), pa.array(nests))
    rows = pc.indices_nonzero(pc.fill_null(mine, False)).to_numpy()
    if not len(rows):
        return
    parts = pc.extract_regex(texts.take(pa.array(rows)), _PARTS)
    sizes = _or_null(pc.struct_field(parts, "sizes"))
    sink.put(
        "operator",
        {
            "process_id": place[0][rows],
            "thread_id": place[1][rows],
            "start_ns": sink.times(times[0][rows]),
            "end_ns": sink.times(times[1][rows]),
            "name": pc.struct_field(parts, "name").dictionary_encode(),
            "sequence_number": _or_null(pc.struct_field(parts, "seq")).cast(pa.int64()),
            # blanks go, so that the same shapes read as in PyTorch's own traces
            "input_shapes": pc.replace_substring(sizes, " ", "").dictionary_encode(),
        },
    )


def _or_null(texts: pa.Array) -> pa.Array:
    """Parts of a pattern that did not take part are empty."""
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, ""), None, texts)


def count_overlapping(parts: Sequence[tuple[IntArray, IntArray, IntArray]]) -> int:
    """Number of ranges that do not close in the reverse order of opening.

    Properly nested ranges find as many open ranges of their thread when they close as they found
    when they opened; where ranges overlap otherwise, at least one of them does not.

    Args:
        parts: (thread, start, end) of ranges, in any order.
    """
    if not parts:
        return 0
    thread = np.concatenate([part[0] for part in parts])
    start = np.concatenate([part[1] for part in parts])
    end = np.concatenate([part[2] for part in parts])
    real = end > start  # an empty range nests anywhere
    thread, start, end = thread[real], start[real], end[real]
    count = len(thread)
    if count == 0:
        return 0
    number = np.arange(count)
    # at one instant closes come before opens; the longest opens first, the shortest closes first
    opens = np.lexsort((number, -end, start, thread))
    rank = np.empty(count, np.int64)
    rank[opens] = np.arange(count)
    order = np.lexsort(
        (
            np.concatenate([rank, -rank]),
            np.concatenate([np.ones(count), np.zeros(count)]),
            np.concatenate([start, end]),
            np.concatenate([thread, thread]),
        )
    )
    is_open = order < count
    depth = np.cumsum(np.where(is_open, 1, -1))  # every thread ends at depth 0
    at_open = np.empty(count, np.int64)
    at_close = np.empty(count, np.int64)
    at_open[order[is_open]] = depth[is_open] - 1
    at_close[order[~is_open] - count] = depth[~is_open]
    return int((at_open != at_close).sum())
