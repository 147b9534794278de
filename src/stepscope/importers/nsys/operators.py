"""Framework operators from NVTX ranges: PyTorch's ``emit_nvtx``, nsys's ``--pytorch=autograd-*``.

PyTorch names such a range ``NAME, seq = 7, op_id = 12, sizes = [[2, 3], [3, 4]], input_op_ids =
...``; every part but the name may be left out, but a range of an operator has at least one of them
(torch/csrc/profiler/util.cpp, ``getNvtxStr``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepscope.importers.nsys.sink import Sink, process_of, thread_of
from stepscope.trace.frame import BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

TABLE: Final = "operator"
_MARKED: Final = r", (seq|op_id|sizes) = [\[\d]"
_PARTS: Final = (
    r"^(?P<name>.*?)(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = \d+)?"
    r"(?:, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?(?:, input_op_ids = .*)?$"
)


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
    import pyarrow.compute as pc

    mine = pc.and_(pc.match_substring_regex(texts, _MARKED), pa.array(nests))
    rows = pc.indices_nonzero(pc.fill_null(mine, False)).to_numpy()
    if not len(rows):
        return
    parts = pc.extract_regex(texts.take(pa.array(rows)), _PARTS)
    sequence, sizes = pc.struct_field(parts, "seq"), pc.struct_field(parts, "sizes")
    sink.put(
        TABLE,
        {
            "process_id": pa.array(process_of(tids[rows])),
            "thread_id": pa.array(thread_of(tids[rows])),
            "start_ns": pa.array(start[rows]),
            "end_ns": pa.array(end[rows]),
            "name": sink.lexicon(TABLE, "name").codes(pc.struct_field(parts, "name")),
            "sequence_number": _or_null(sequence).cast(pa.int64()),
            # blanks go, so that the same shapes read as in PyTorch's own traces
            "input_shapes": sink.lexicon(TABLE, "input_shapes").codes(
                pc.replace_substring(_or_null(sizes), " ", "")
            ),
        },
    )


def _or_null(texts: pa.Array) -> pa.Array:
    """Parts of a pattern that did not take part are empty."""
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, ""), None, texts)
