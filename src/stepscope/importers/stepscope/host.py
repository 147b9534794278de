"""Calls of the CUDA API: the table ``api_call``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.importers.common.naming import call_name
from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.launched import Called, called, unrecorded
from stepscope.importers.stepscope.raw import Raw
from stepscope.importers.stepscope.sink import Sink, dictionary, ids
from stepscope.intervals.distinct import with_inverse
from stepscope.trace.frame import AnyArray, distinct

TABLE = "api_call"
_WORK = (layout.KERNEL, layout.COPY, layout.SET, layout.GRAPH)


def read_calls(sink: Sink, raw: Raw, process: int) -> None:
    """Fill ``api_call`` with the calls of one process."""
    named = dict(raw.of(layout.API_NAME).tolist())
    above = called(raw, of_runtime=True)
    for part in raw.parts(layout.API):
        rows = part
        if above is not None:
            # What the runtime calls of the driver bears the runtime's number, and is the same work.
            driver = (part["call"] & layout.DRIVER_CALL) != 0
            beneath = driver & above.bear(part["correlation"])
            rows = part[~beneath] if beneath.any() else part
        _put_calls(sink, raw, process, rows, named)


def _put_calls(
    sink: Sink, raw: Raw, process: int, rows: AnyArray, named: Mapping[int, int]
) -> None:
    numbers, inverse = with_inverse(rows["call"])
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


def count_unresolved(sink: Sink, raw: Raw, known: Called | None) -> None:
    """Count GPU work whose launching call was not recorded."""
    if known is None:
        return
    lacking = 0
    for kind in _WORK:
        for part in raw.parts(kind):
            rows = part[~unrecorded(raw, part, known)] if kind == layout.GRAPH else part
            lacking += int((~known.bear(rows["correlation"])).sum())
    sink.writer.problems.count("unresolved_correlation", lacking, scope="gpu_op")
