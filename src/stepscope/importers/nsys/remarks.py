"""The capturing tool's remarks, and whether the records of GPU work are complete.

After most captures nsys remarks that "not all CUDA events might have been collected", on complete
ones too. What decides is the data: every successful kernel launch has its kernel in a complete
capture.
"""

from __future__ import annotations

import re

from stepscope.importers.nsys import codes
from stepscope.importers.nsys.correlation import CorrelationFlags
from stepscope.importers.nsys.gpu import DEVICE, LAUNCH, GpuReader
from stepscope.importers.nsys.host import CudaCalls
from stepscope.importers.nsys.rows import code, may, must
from stepscope.importers.nsys.sink import Sink, process_of
from stepscope.importers.nsys.text import clean

_WARNING = 2
_LOSS = re.compile(
    r"\b(dropped|discarded|lost|overflow\w*|wrong event order|out of memory)\b"
    r"|buffers? (is|are|was|were) full|failed to (collect|flush)",
    re.IGNORECASE,
)


def read_diagnostics(sink: Sink) -> None:
    """Fill ``diagnostic``; remarks that records were lost are counted as a problem."""
    import pyarrow as pa

    fields = (
        code("timestamp", "time"),
        must("text", "raw"),
        code("severity"),
        may("globalPid"),
    )
    for rows in sink.tables.read("DIAGNOSTIC_EVENT", fields, "diagnostic"):
        severity = rows["severity"].fill_null(1)
        global_pid = rows.ints("globalPid")
        # remarks are prose with tabs and line ends in it
        texts = [
            clean(b" ".join(text.split())) for text in rows["text"].cast(pa.binary()).to_pylist()
        ]
        for text, level in zip(texts, severity.to_pylist(), strict=True):
            if level in (_WARNING, _WARNING + 1) and _LOSS.search(text):
                sink.tables.problems.count("dropped_records", 1, scope="diagnostic", detail=text)
        sink.put(
            "diagnostic",
            {
                "time_ns": rows["timestamp"],
                # the session's own remarks carry process bits that are all ones
                "process_id": pa.array(process_of(global_pid), mask=global_pid < 0),
                "severity": sink.labels(
                    "diagnostic", "severity", severity, codes.SEVERITIES, "info"
                ),
                "text": sink.lexicon("diagnostic", "text").codes(pa.array(texts, pa.string())),
            },
        )


def check_completeness(
    sink: Sink, flags: CorrelationFlags, cuda: CudaCalls, gpu: GpuReader
) -> None:
    """Count launches whose GPU work is not in the capture."""
    problems = sink.tables.problems
    nothing = sink.rows["gpu_op"] == 0
    if cuda.graph_launches and not gpu.graph_rows and not gpu.node_rows:
        detail = f"{cuda.graph_launches} graph launches without any record of their work"
        problems.count("graph_mode", cuda.graph_launches, scope="gpu_op", detail=detail)
    if not flags.complete or (cuda.stream_captures and not nothing):
        return  # launches that a stream capture recorded into a graph enqueue nothing
    lost = flags.count(LAUNCH, DEVICE)
    detail = f"{lost} kernel launches have no recorded kernel"
    problems.count("dropped_records", lost, scope="gpu_op", detail=detail)
