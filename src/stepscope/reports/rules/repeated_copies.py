"""Uploads of one size from one place, again and again within a step."""

from __future__ import annotations

from stepscope.reports.needs import COPIES, CUDA_CALLS
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

_COPIES = """gpu_op WHERE kind = 'memcpy' AND copy_kind = 'HtoD' AND bytes >= {kb} * 1024
    AND graph_node_id IS NULL AND correlation_id >= 0"""
# step_7 and step_8 are one place
_KEYS = "process_id, device, thread_id, bytes, api, within"
_SQL = f"""
WITH copies AS (
    SELECT id, process_id, device, correlation_id, start_ns, duration_ns, bytes FROM {_COPIES}
), launched AS (
    SELECT copies.*, call.id AS call, call.thread_id, call.name AS api
    FROM copies JOIN cuda_call AS call USING (process_id, correlation_id)
    QUALIFY row_number() OVER (PARTITION BY copies.id ORDER BY call.id) = 1
), placed AS (
    SELECT launched.*, regexp_replace(range.name, '\\d+', '#', 'g') AS within
    FROM launched LEFT JOIN innermost_range AS inner_range USING (call)
    LEFT JOIN range ON range.id = inner_range.range
), windows AS (
    SELECT place, count(*) AS steps, max(end_ns) - min(start_ns) AS length
    FROM steady_step GROUP BY place
), stepped AS (
    SELECT placed.*, place, step.start_ns AS step_ns
    FROM placed JOIN steady_step AS step ON step.process_id = placed.process_id
        AND step.device = placed.device
        AND placed.start_ns >= step.start_ns AND placed.start_ns < step.end_ns
), counted AS (
    SELECT {_KEYS}, place, step_ns, count(*) AS number, sum(duration_ns) AS took_ns
    FROM stepped GROUP BY ALL
), in_windows AS (
    -- steps without any count, too
    SELECT {_KEYS}, list_median(list_resize(list(number::DOUBLE), any_value(steps), 0)) AS a_step,
        sum(took_ns) * 100::DOUBLE / greatest(any_value(length), 1) AS share
    FROM counted JOIN windows USING (place) GROUP BY {_KEYS}, place
), notable AS (
    SELECT {_KEYS}, sum(a_step) AS a_step, sum(share) AS share FROM in_windows GROUP BY ALL
    HAVING a_step >= {{times}} AND share >= {{share}}
), found AS (
    SELECT {_KEYS}, sum(duration_ns)::BIGINT AS total, count(*) AS number
    FROM (SELECT DISTINCT {_KEYS}, id, duration_ns FROM stepped) GROUP BY ALL
)
SELECT total, notable.share, number, a_step, found.bytes, found.bytes * number, found.process_id,
    found.thread_id, found.device, found.api, found.within
FROM found JOIN notable ON {
    " AND ".join(f"found.{key} IS NOT DISTINCT FROM notable.{key}" for key in _KEYS.split(", "))
}
ORDER BY total DESC, found.process_id, found.device, found.thread_id, found.bytes, found.api,
    found.within LIMIT {{rows}}
"""


def _run(source: Source, arguments: Arguments) -> Answer:
    copies = _COPIES.replace("{kb}", str(int(arguments["kb"])))
    if not source.value(f"SELECT EXISTS (SELECT 1 FROM {copies})"):
        return [[] for _ in _COLUMNS]  # to find the steps takes long
    return columns_of(source, _SQL, arguments, _COLUMNS)


_COLUMNS = (
    Column("Total Time", "dur", "sum of the copies' durations in steady steps"),
    Column("Time", "ratio", "that sum in percent of the steady steps' time"),
    Column("Count", doc="number of copies in steady steps"),
    Column("Copies a Step", doc="copies in the median steady step"),
    Column("Bytes", "mem", "size of each"),
    Column("Total", "mem", "bytes of all"),
    Column("PID", doc="process"),
    Column("TID", doc="thread that copies"),
    Column("Device ID", doc="device ordinal inside the process"),
    Column("API Name", doc="function"),
    Column("NVTX Range", doc="innermost range around the call, # for numbers"),
)
RULES = [
    Report(
        "repeated_copies",
        "Uploads That May Repeat the Same Data",
        "Host-to-device copies of equal size that one place (thread, function, innermost range) "
        "makes several times in the median steady step, longest total first. No capture records "
        "what is copied or from where: these are candidates. Micro-batches of gradient "
        "accumulation, or tensors of one shape, look the same.",
        _COLUMNS,
        _run,
        arguments=(
            ROWS,
            # inputs and targets of one shape are two, with a mask three
            Argument("times", "leave out what happens fewer times a step", 4, low=2),
            Argument("kb", "leave out copies of fewer KiB", 64, low=0),
            Argument("share", "leave out less than so many percent of the time", 1, low=0),
        ),
        needs=(COPIES, CUDA_CALLS),
        none_found="No call site uploads the same size several times a step for a notable time.",
        advice="Check in the program whether these uploads carry the same data. What does not "
        "change (masks, position tables, constants built on the host) belongs on the device once: "
        "register it as a buffer, build it with device=..., or keep the device copy. What does "
        "change can go up in one copy instead of several.",
    )
]
