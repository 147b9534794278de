"""Numbers that a column does not hold: absent and counted, never an internal error or a zero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.trace.trace import Trace

_FIELDS = (
    "device", "context", "stream", "correlation", "registers per thread", "shared memory",
    "graph id", "graph node id", "bytes", "External id", "Sequence number", "Fwd thread id",
    "Python parent id", "Python id", "inDevice", "inContext", "wait_on_cuda_event_id", "Bytes",
    "Device Id", "Device Type", "Addr", "Total Allocated", "Total Reserved",
)  # fmt: skip
_CATEGORIES = (
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_sync", "cuda_runtime", "cuda_driver", "cpu_op",
    "python_function", "user_annotation", "gpu_user_annotation", "overhead",
)  # fmt: skip


def _event(category: str, at: float, args: dict[str, Any], **other: Any) -> dict[str, Any]:
    base = {"ph": "X", "cat": category, "name": f"{category}_one", "pid": 1, "tid": 7,
            "ts": at, "dur": 1.0, "args": args}  # fmt: skip
    return base | other


def _opened(folder: Path, events: list[dict[str, Any]]) -> Trace:
    path = folder / "trace.json"
    document = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}
    path.write_text(json.dumps(document))
    return load(path, Cache(folder / "cache"))


@pytest.mark.parametrize(
    "number", [2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**70, -1, -(2**63), -(2**80)]
)
def test_every_number_may_be_of_any_size(tmp_path: Path, number: int) -> None:
    args = dict.fromkeys(_FIELDS, number) | {"grid": [number, 1, 1], "block": [1, number, 1]}
    events = [_event(category, 10.0 + i, args) for i, category in enumerate(_CATEGORIES)]
    events += [_event(category, 50.0 + i, {}, tid=number, pid=number)
               for i, category in enumerate(_CATEGORIES)]  # fmt: skip
    for category in ("ac2g", "fwdbwd"):
        for phase in "sf":
            events.append(_event(category, 10.0, {}, ph=phase, id=number, bp="e"))
    events.append(_event("cpu_instant_event", 30.0, args, ph="i", name="[memory]"))
    trace = _opened(tmp_path, events)
    table = trace.arrow("gpu_op", ["kind", "context", "registers", "grid_x", "block_y"])
    kernel = next(row for row in table.to_pylist() if row["kind"] == "kernel")
    assert [kernel[name] for name in ("context", "registers", "grid_x", "block_y")] == [None] * 4
    counted = {problem.id: problem.count for problem in trace.meta.problems}
    assert ("number_too_large" in counted) == ((number > 2**31 - 1 and number != 2**32 - 1)
                                               or number < -(2**63))  # fmt: skip


def test_what_a_copy_does_not_have_is_absent_and_not_zero(tmp_path: Path) -> None:
    copy = _event("gpu_memcpy", 10.0, {"bytes": 8, "stream": 7, "device": 0})
    trace = _opened(tmp_path, [copy, _event("cpu_op", 9.0, {})])
    (row,) = trace.arrow("gpu_op", ["context", "registers", "grid_x", "bytes"]).to_pylist()
    assert row == {"context": None, "registers": None, "grid_x": None, "bytes": 8}
