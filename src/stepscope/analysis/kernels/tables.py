"""Analysis tables about kernels for SQL: ``kernel_family`` and ``kernel_repair``.

And the views on them that ``stepscope kernels`` and ``stepscope operators`` print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.analysis.explain import Explanation
from stepscope.analysis.kernels.attribution import MODULE_PREFIX, plain_range_name
from stepscope.analysis.kernels.view import FAMILY_NAMES, MATH_NAMES, PHASES
from stepscope.trace.frame import AnyArray, Frame, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

FAMILY_COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "gpu_op_id": "gpu_op.id of the operation",
    "start_ns": "begin, ns since the origin",
    "end_ns": "end, ns since the origin",
    "steady": "whether it starts in the steady steps",
    "family": "what kind of work it is, by its name; null for copies and sets",
    "math": "arithmetic of matrix products, convolutions and attention; null where not known",
    "kernel": "short name, with the operation of generic kernels",
    "phase": "forward, backward or optimizer; null for copies between host and device",
    "operator": "innermost framework operator at the launch, or innermost NVTX range of one",
    "outer_operator": "outermost framework operator at the launch",
    "forward_operator": "operator of the forward pass whose gradient it computes",
    "range": "innermost annotation at the launch that marks no step",
    "module": "innermost module of the model",
    "source": "function of the program that launched it or its forward operator, as file:line",
    "blocks": "blocks launched; null where not recorded",
    "moved_bytes": "bytes read and written, recorded or by type and launch; null where not known",
}
"""Columns of ``kernel_family``: one row an operation on a GPU."""

REPAIR_COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "gpu_op_id": "gpu_op.id of the operation",
    "start_ns": "begin, ns since the origin",
    "end_ns": "end, ns since the origin",
    "cause": "cause whose repair changes it",
    "repaired_ns": "its estimated length after the repair, ns",
    "merged": "whether it is not launched any more",
    "idle_ns": "late launches that go with it: before it, and behind the last of a loop, ns",
}
"""Columns of ``kernel_repair``: one row an operation and repair, in the steady steps."""

KERNELS_VIEW: Final = """
SELECT family, kernel, math, count(*) AS calls,
       round(count(*) / (SELECT count(*) FROM step WHERE steady), 2) AS calls_per_step,
       sum(end_ns - start_ns)::BIGINT AS time_ns,
       round(sum(end_ns - start_ns) / (SELECT count(*) FROM step WHERE steady))::BIGINT
           AS time_ns_per_step,
       round(sum(end_ns - start_ns) / (SELECT sum(wall_ns) FROM step WHERE steady), 4)
           AS share_of_step,
       median(end_ns - start_ns)::BIGINT AS median_ns,
       sum(moved_bytes)::BIGINT AS bytes,
       round(sum(moved_bytes) * 1e9 / sum(end_ns - start_ns) FILTER (moved_bytes IS NOT NULL)
           )::BIGINT AS bytes_per_s
FROM kernel_family WHERE steady
GROUP BY ALL ORDER BY time_ns DESC, kernel
"""
"""Kernels of the steady steps by family and name, all devices together."""

GROUPINGS: Final = {
    "operator": "coalesce(outer_operator, operator)",
    "inner": "operator",
    "range": "range",
    "module": "module",
    "source": "source",
    "family": "family",
}
"""What ``stepscope operators`` can group by -> expression over ``kernel_family``."""


def operators_view(by: str) -> str:
    """The statement that attributes device time to a key of ``GROUPINGS``."""
    key = GROUPINGS[by]
    mostly = "".join(
        f", mode({name}) AS mostly_in_{name}" for name in ("module", "source") if name != by
    )
    return f"""
SELECT coalesce({key}, '(none)') AS {"operator" if by == "inner" else by}, phase,
       count(*) AS kernels,
       round(count(*) / (SELECT count(*) FROM step WHERE steady), 2) AS kernels_per_step,
       sum(end_ns - start_ns)::BIGINT AS time_ns,
       round(sum(end_ns - start_ns) / (SELECT count(*) FROM step WHERE steady))::BIGINT
           AS time_ns_per_step,
       round(sum(end_ns - start_ns) / (SELECT sum(wall_ns) FROM step WHERE steady), 4)
           AS share_of_step,
       arg_max(kernel, end_ns - start_ns) AS longest_kernel{mostly}
FROM kernel_family WHERE steady
GROUP BY ALL ORDER BY time_ns DESC, 1, 2
"""


def family_table(explanations: Sequence[tuple[int, Explanation]]) -> pa.Table:
    """The ``kernel_family`` table of some (rank, explanation) pairs."""
    import pyarrow as pa

    return pa.concat_tables([_families(rank, e) for rank, e in explanations], promote_options=
                            "permissive").unify_dictionaries()  # fmt: skip


def repair_table(explanations: Sequence[tuple[int, Explanation]]) -> pa.Table:
    """The ``kernel_repair`` table of some (rank, explanation) pairs."""
    import pyarrow as pa

    parts = [_no_repair()]
    for rank, e in explanations:
        ops = e.lane.ops
        for cause, repair in e.inside_kernels.repairs.items():
            rows = repair.rows
            columns = {
                **_identity(rank, e, len(rows)),
                "gpu_op_id": ops["id"][rows],
                "start_ns": ops["start_ns"][rows],
                "end_ns": ops["end_ns"][rows],
                "cause": pa.array([cause] * len(rows), pa.string()),
                "repaired_ns": repair.new_ns,
                "merged": repair.merged,
                "idle_ns": repair.idle_ns,
            }
            parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def _identity(rank: int, e: Explanation, n: int) -> dict[str, AnyArray]:
    return {
        "rank": np.full(n, rank, np.int64),
        "process_id": np.full(n, e.lane.process_id, np.int64),
        "device": np.full(n, e.lane.device, np.int64),
    }


def _no_repair() -> pa.Table:
    import pyarrow as pa

    kinds = {"cause": pa.string(), "merged": pa.bool_()}
    return pa.schema([(n, kinds.get(n, pa.int64())) for n in REPAIR_COLUMNS]).empty_table()


def _families(rank: int, e: Explanation) -> pa.Table:
    import pyarrow as pa

    kernels, ops = e.kernels, e.lane.ops
    who = kernels.attribution
    operators = who.operators.texts.get("name", [])
    ranges = [plain_range_name(text) for text in who.ranges.texts.get("name", [])]
    python = who.python.texts.get("name", [])
    operator = _name_of(who.operators, who.operator)
    range_ = _name_of(who.ranges, who.range)
    columns = {
        **_identity(rank, e, len(ops)),
        "gpu_op_id": ops["id"],
        "start_ns": ops["start_ns"],
        "end_ns": ops["end_ns"],
        "steady": kernels.steady,
        "family": _text(kernels.family, FAMILY_NAMES),
        "math": _text(kernels.math, MATH_NAMES),
        "kernel": _text(ops["name"], [c.label for c in kernels.classes]),
        "phase": _text(kernels.phase, PHASES),
        "operator": _text(operator, operators),
        "outer_operator": _text(
            _name_of(who.operators, who.outermost),
            [text.removeprefix("autograd::engine::evaluate_function: ") for text in operators],
        ),
        "forward_operator": _text(_name_of(who.operators, who.forward), operators),
        "range": _text(range_, ranges),
        "module": _text(who.module, [text.removeprefix(MODULE_PREFIX) for text in python]),
        "source": _text(who.source, [who.source_text(code) or "" for code in range(len(python))]),
        "blocks": pa.array(kernels.blocks, mask=kernels.blocks == 0),
        "moved_bytes": pa.array(kernels.moved_bytes, mask=kernels.moved_bytes == 0),
    }
    return pa.table(columns)


def _name_of(frame: Frame, rows: IntArray) -> IntArray:
    if not len(frame):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows >= 0, frame["name"][np.maximum(rows, 0)], -1)


def _text(codes: IntArray, values: Sequence[str]) -> pa.DictionaryArray:
    """Codes into values as a text column; equal values share one code, negative codes are null."""
    import pyarrow as pa

    place: dict[str, int] = {}
    shared = np.array([place.setdefault(value, len(place)) for value in values] + [-1], np.int32)
    found = shared[codes]
    return pa.DictionaryArray.from_arrays(
        pa.array(found, mask=found < 0), pa.array(list(place), pa.string())
    )
