"""Calls of the CUDA API: the table ``api_call``."""

from __future__ import annotations

import numpy as np

from stepscope.importers.naming import call_name
from stepscope.importers.own import layout
from stepscope.importers.own.raw import Raw
from stepscope.importers.own.sink import Sink, dictionary, ids
from stepscope.trace.frame import distinct

TABLE = "api_call"


def read_calls(sink: Sink, raw: Raw, process: int) -> None:
    """Fill ``api_call`` with the calls of one process."""
    rows = raw.of(layout.API)
    if not len(rows):
        return
    named = dict(raw.of(layout.API_NAME).tolist())
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
    calls = raw.of(layout.API)["correlation"]
    lacking = 0
    for kind in (layout.KERNEL, layout.COPY, layout.SET, layout.GRAPH):
        lacking += int((~np.isin(raw.of(kind)["correlation"], calls)).sum())
    sink.writer.problems.count("unresolved_correlation", lacking, scope="gpu_op")
