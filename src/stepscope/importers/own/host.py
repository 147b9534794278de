"""Calls of the CUDA API: the table ``api_call``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.importers.naming import call_name
from stepscope.importers.own import layout
from stepscope.importers.own.launched import MOST_IDS, called, unrecorded
from stepscope.importers.own.raw import Raw
from stepscope.importers.own.sink import Sink, dictionary, ids
from stepscope.trace.frame import AnyArray, BoolArray, distinct

TABLE = "api_call"
_WORK = (layout.KERNEL, layout.COPY, layout.SET, layout.GRAPH)


def read_calls(sink: Sink, raw: Raw, process: int) -> None:
    """Fill ``api_call`` with the calls of one process."""
    named = dict(raw.of(layout.API_NAME).tolist())
    above = _numbers_of_runtime_calls(raw)
    for rows in raw.parts(layout.API):
        # What the runtime calls of the driver bears the runtime's number, and is the same work.
        driver = (rows["call"] & layout.DRIVER_CALL) != 0
        number = rows["correlation"]
        beneath = driver & above[np.minimum(number, len(above) - 1)]
        _put_calls(sink, raw, process, rows[~beneath] if beneath.any() else rows, named)


def _numbers_of_runtime_calls(raw: Raw) -> BoolArray:
    """Whether a call of the runtime bears a number; the last element stands for all above it."""
    most = 0
    for part in raw.parts(layout.API):
        runtime = part["correlation"][(part["call"] & layout.DRIVER_CALL) == 0]
        most = max(most, int(runtime.max())) if len(runtime) else most
    if most > MOST_IDS:
        return np.zeros(1, dtype=bool)  # damaged numbers; a table of them would take all memory
    found = np.zeros(most + 2, dtype=bool)
    for part in raw.parts(layout.API):
        found[part["correlation"][(part["call"] & layout.DRIVER_CALL) == 0]] = True
    found[0] = False  # no number
    return found


def _put_calls(
    sink: Sink, raw: Raw, process: int, rows: AnyArray, named: Mapping[int, int]
) -> None:
    numbers, inverse = np.unique(rows["call"], return_inverse=True)
    names = []
    for number in numbers.tolist():
        driver = bool(number & layout.DRIVER_CALL)
        known = raw.texts.get(named.get(number, 0))
        names.append(known or f"{'cu' if driver else 'cuda'}[{number & ~layout.DRIVER_CALL}]")
    is_driver = (rows["call"] & layout.DRIVER_CALL) != 0
    sink.threads |= {(process, thread) for thread in distinct(rows["thread"]).tolist()}
    sink.put(
        TABLE,
        {
            "api": dictionary(is_driver.astype(np.int32), ["runtime", "driver"]),
            "process_id": np.full(len(rows), process),
            "thread_id": rows["thread"].astype(np.int64),
            "start_ns": sink.times(rows["start"]),
            "end_ns": sink.times(rows["end"]),
            "name": dictionary(inverse, [call_name(name) for name in names]),
            "raw_name": dictionary(inverse, names),
            "name_number": rows["call"].astype(np.int64),
            "return_value": rows["result"].astype(np.int64),
            "correlation_id": ids(rows["correlation"], 0),
        },
    )


def count_unresolved(sink: Sink, raw: Raw) -> None:
    """Count GPU work whose launching call was not recorded."""
    known = called(raw)
    if known is None:
        return
    lacking = 0
    for kind in _WORK:
        for part in raw.parts(kind):
            rows = part[~unrecorded(raw, part, known)] if kind == layout.GRAPH else part
            number = rows["correlation"]
            inside = number < len(known)
            lacking += len(number) - int(known[number[inside]].sum())
    sink.writer.problems.count("unresolved_correlation", lacking, scope="gpu_op")
