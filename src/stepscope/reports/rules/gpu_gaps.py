"""When a GPU has nothing to do, and how much of the time it is in use."""

from __future__ import annotations

from stepscope.reports.needs import GPU_WORK
from stepscope.reports.report import ROWS, Argument, Column, Report

# what kept a device of a process busy; the profiler's own work goes by the names that exports up
# to 2024 give it
_BUSY = """
WITH work AS (
    SELECT process_id, device, 0 AS side, id, start_ns, end_ns, context FROM gpu_work
    WHERE start_ns > 0
), spans AS (
    SELECT process_id, device, min(start_ns) AS first_ns, max(end_ns) AS last_ns,
        max(context) AS context
    FROM work GROUP BY ALL
), busy AS (
    SELECT * FROM work
    UNION ALL
    SELECT spans.process_id, spans.device, 1, overhead.id, start_ns, end_ns, NULL
    FROM spans JOIN overhead ON overhead.process_id = spans.process_id
        AND start_ns > first_ns AND end_ns < last_ns
    WHERE overhead.name IN ('CUDA profiling data flush overhead',
        'CUDA profiling stop overhead', 'CUDA profiling overhead')
)"""
# a gap has the context of the operation that ended last before it
_GAPS = f"""{_BUSY}, seen AS (
    SELECT process_id, device, start_ns,
        max(end_ns) OVER (PARTITION BY process_id, device ORDER BY start_ns, side, id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
    FROM busy
), gaps AS (
    SELECT process_id, device, until_ns, start_ns - until_ns AS length FROM seen
    WHERE length > {{gap}} * 1000000
    ORDER BY length DESC, until_ns, process_id, device LIMIT {{rows}}
)
SELECT row_number() OVER (ORDER BY length DESC, until_ns, process_id, device) AS number,
    length, until_ns, process_id, device,
    arg_max(coalesce(busy.context, spans.context), (busy.start_ns, busy.side, busy.id))
FROM gaps JOIN busy USING (process_id, device) JOIN spans USING (process_id, device)
WHERE busy.end_ns = until_ns
GROUP BY process_id, device, until_ns, length ORDER BY number
"""
# as in Nsight Systems, the limit comes before the order and keeps not the worst regions, but those
# with the least number of well-used parts of their device before them
_USE = f"""{_BUSY}, sized AS (
    SELECT *, greatest((last_ns - first_ns + {{chunks}} - 1) // {{chunks}}, 1) AS size,
        (greatest(last_ns, first_ns + 1) - first_ns + size - 1) // size AS number
    FROM (
        SELECT process_id, device, min(start_ns) AS first_ns, max(end_ns) AS last_ns,
            max(context) AS context
        FROM busy GROUP BY ALL
    )
), parts AS (
    SELECT *, first_ns + part * size AS begin_ns,
        least(first_ns + (part + 1) * size, last_ns) AS until_ns
    FROM (SELECT *, unnest(generate_series(0, number - 1)) AS part FROM sized)
), pieces AS (
    SELECT process_id, device, start_ns, end_ns, unnest(generate_series(
        least((start_ns - first_ns) // size, number - 1),
        least(greatest(end_ns - first_ns - 1, start_ns - first_ns) // size, number - 1)
    )) AS part
    FROM busy JOIN sized USING (process_id, device)
), used AS (
    SELECT process_id, device, part,
        sum(greatest(least(end_ns, until_ns) - greatest(start_ns, begin_ns), 0)) AS use_ns
    FROM pieces JOIN parts USING (process_id, device, part) GROUP BY ALL
), low AS (
    SELECT parts.*, coalesce(use_ns, 0) AS use_ns,
        part - row_number() OVER (PARTITION BY process_id, device ORDER BY part) AS run
    FROM parts LEFT JOIN used USING (process_id, device, part)
    WHERE coalesce(use_ns, 0) * 100 < {{threshold}} * (until_ns - begin_ns)
), regions AS (
    SELECT process_id, device, run, context, min(begin_ns) AS begin_ns,
        max(until_ns) - min(begin_ns) AS length, sum(use_ns) AS use_ns
    FROM low GROUP BY ALL ORDER BY run, process_id, device LIMIT {{rows}}
), ordered AS (
    SELECT *, row_number() OVER (ORDER BY (use_ns * 2000 + length) // (length * 2), length, run,
        process_id, device) AS number
    FROM regions
)
SELECT number, use_ns::DOUBLE * 100 / length, length, begin_ns, process_id, device, context
FROM ordered ORDER BY number
"""

_ADVICE = (
    "See what the host did there: NVTX ranges around the phases of a step, CPU samples and stacks "
    "(nsys profile --sample=process-tree), calls of the OS runtime that wait (-t osrt). "
    "stepscope diagnose attributes the gaps of every step to their causes."
)
_PLACE = (
    Column("PID", doc="process"),
    Column("Device ID", doc="device ordinal inside the process"),
    Column("Context ID", doc="CUDA context"),
)
RULES = [
    Report(
        "gpu_gaps",
        "GPU Gaps",
        "Times without any kernel, copy or fill on a device, all streams together, between its "
        "first and last operation, longer than the limit. Longest first.",
        (
            Column("Row#", doc="number"),
            Column("Duration", "dur", "length of the gap"),
            Column("Start", "ts", "begin of the gap"),
            *_PLACE,
        ),
        _GAPS,
        arguments=(ROWS, Argument("gap", "leave out gaps up to so many ms", 500, low=0)),
        needs=(GPU_WORK,),
        none_found="No gap is longer than the limit (gap=500 ms unless set; a training step "
        "rarely lasts as long, so try gap=1).",
        advice=f"The GPU had nothing to do. {_ADVICE}",
    ),
    Report(
        "gpu_time_util",
        "GPU Time Utilization",
        "Equal parts of the span of a device's work in which it was in use for less than the "
        "threshold; neighbouring parts are joined. Work on several streams at the same time counts "
        "in full each. Least used first; of more than rows regions the earliest are shown.",
        (
            Column("Row#", doc="number"),
            Column("In-Use", "ratio", "work in the region, in percent of its length"),
            Column("Duration", "dur", "length of the region"),
            Column("Start", "ts", "begin of the region"),
            *_PLACE,
        ),
        _USE,
        arguments=(
            ROWS,
            Argument("threshold", "show regions used less than so many percent", 50, low=0),
            Argument("chunks", "number of parts", 30, low=1, high=1000),
        ),
        needs=(GPU_WORK,),
        none_found="The GPU is in use for more than the threshold all the time.",
        advice=f"The GPU is idle for much of these regions. {_ADVICE}",
    ),
]
