"""Calls that belong before training but happen inside the steady steps."""

from __future__ import annotations

import re
from functools import partial

from stepscope.activity import names as words
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK
from stepscope.reports.report import (
    ROWS,
    Answer,
    Argument,
    Arguments,
    Column,
    Report,
    columns_of,
)
from stepscope.reports.source import Source

_SQL = """
WITH windows AS (
    SELECT process_id, min(start_ns) AS begin_ns, max(end_ns) AS until_ns, count(*) AS steps
    FROM steady_step GROUP BY place, process_id
), most AS (
    SELECT max(steps) AS steps, max(until_ns - begin_ns) AS length FROM windows
), calls AS (
    SELECT * FROM {calls}
)
SELECT sum(duration_ns)::BIGINT AS total, count(*), count(*)::DOUBLE / any_value(steps),
    total::DOUBLE / count(*), max(duration_ns), process_id, name
FROM calls, (SELECT * FROM most)
WHERE EXISTS (
    SELECT 1 FROM windows
    WHERE windows.process_id = calls.process_id
        AND (start_ns BETWEEN begin_ns AND until_ns - 1
            OR end_ns BETWEEN begin_ns AND until_ns - 1
            OR (start_ns < begin_ns AND end_ns >= until_ns))
)
GROUP BY process_id, name HAVING total * 100 >= any_value(length) * {share}
ORDER BY total DESC, process_id, name LIMIT {rows}
"""


def _run(pattern: re.Pattern[str], source: Source, arguments: Arguments) -> Answer:
    calls = f"cuda_call WHERE regexp_matches(name, '{pattern.pattern}')"
    if not source.value(f"SELECT EXISTS (SELECT 1 FROM {calls})"):
        return [[] for _ in _COLUMNS]  # to find the steps takes long
    return columns_of(source, _SQL.replace("{calls}", calls), arguments, _COLUMNS)


_COLUMNS = (
    Column("Total Time", "dur", "sum of the calls' durations"),
    Column("Num Calls", doc="number of calls"),
    Column("Calls a Step", doc="calls in the mean steady step"),
    Column("Avg", "dur", "mean duration"),
    Column("Max", "dur", "longest"),
    Column("PID", doc="process"),
    Column("API Name", doc="function"),
)
# these calls contain the time in which they make the device or the host wait, so a short one
# cost little; one allocation that a cache needed late is no pattern
_SHARE = Argument("share", "leave out less than so many percent of the steady steps", 1, low=0)
RULES = [
    Report(
        "allocation_in_step",
        "Memory Allocation Inside the Step",
        "CUDA calls that allocate or release memory during the steady steps (warm-up steps are not "
        "counted), by process and function. Longest total first.",
        _COLUMNS,
        partial(_run, words.ALLOCATION_CALL),
        arguments=(ROWS, _SHARE),
        needs=(GPU_WORK, CUDA_CALLS),
        none_found="No steady step allocates or releases CUDA memory.",
        advice="cudaMalloc and cudaFree stop the whole device. A framework's caching allocator "
        "should serve steady steps: look for memory pressure, calls of empty_cache, shapes that "
        "change (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), and allocate buffers once.",
    ),
    Report(
        "module_loading_in_step",
        "Module Loading and Compilation Inside the Step",
        "CUDA calls that load or compile code during the steady steps, by process and function. "
        "Longest total first.",
        _COLUMNS,
        partial(_run, words.MODULE_CALL),
        arguments=(ROWS, _SHARE),
        needs=(GPU_WORK, CUDA_CALLS),
        none_found="No steady step loads or compiles CUDA code.",
        advice="Code is loaded lazily at the first use of a kernel. Warm up with all shapes before "
        "training (or measuring), set CUDA_MODULE_LOADING=EAGER, keep compilation caches, and "
        "avoid shapes that make torch.compile or Triton compile again.",
    ),
]
