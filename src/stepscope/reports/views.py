"""What statements of reports read beside the canonical tables: each is declared when one names it.

Every view is under the scope of the report; ``all_NAME`` is a canonical table whatever the scope.
"""

from __future__ import annotations

from typing import Final

_RANGES: Final = "('pushpop', 'annotation', 'startend')"
_WORK: Final = "('kernel', 'memcpy', 'memset')"
_COPY_KINDS: Final = ", ".join(
    f"'{kind}': '{label}'"
    for kind, label in {
        "unknown": "Unknown",
        "HtoD": "Host-to-Device",
        "DtoH": "Device-to-Host",
        "HtoA": "Host-to-Array",
        "AtoH": "Array-to-Host",
        "AtoA": "Array-to-Array",
        "AtoD": "Array-to-Device",
        "DtoA": "Device-to-Array",
        "DtoD": "Device-to-Device",
        "HtoH": "Host-to-Host",
        "PtoP": "Peer-to-Peer",
        "UVM HtoD": "Unified Host-to-Device",
        "UVM DtoH": "Unified Device-to-Host",
        "UVM DtoD": "Unified Device-to-Device",
    }.items()
)
_MEMORY_KINDS: Final = " ".join(
    f"WHEN '{kind}' THEN '{label}'"
    for kind, label in {
        "pageable": "Pageable",
        "pinned": "Pinned",
        "device": "Device",
        "array": "Array",
        "managed": "Managed",
        "device_static": "Device Static",
        "managed_static": "Managed Static",
        "unknown": "Unknown",
    }.items()
)

# a range that has no end ends at the latest time that any names
_LATEST: Final = "max(CASE WHEN end_missing THEN start_ns ELSE end_ns END)"

VIEWS: Final[dict[str, str]] = {
    "kernel": "SELECT * FROM gpu_op WHERE kind = 'kernel'",
    # named as Nsight Systems does, whatever the source wrote
    "memory_op": f"""
        SELECT *, CASE
            WHEN (SELECT bool_and(starts_with(name, '[CUDA ')) FROM gpu_op
                  WHERE kind IN ('memcpy', 'memset')) THEN name
            WHEN kind = 'memset' THEN '[CUDA memset]'
            ELSE '[CUDA memcpy '
                || coalesce(MAP {{{_COPY_KINDS}}}[copy_kind], copy_kind, 'Unknown') || ']'
        END AS operation
        FROM gpu_op WHERE kind IN ('memcpy', 'memset')""",
    # whole graphs are left out, as what they hold is unknown
    "gpu_work": f"""
        SELECT *, CASE src_memory {_MEMORY_KINDS} ELSE src_memory END AS src_kind,
            CASE dst_memory {_MEMORY_KINDS} ELSE dst_memory END AS dst_kind
        FROM gpu_op WHERE kind IN {_WORK}""",
    # without a four-digit interface version (_v3020)
    "cuda_call": r"""
        SELECT *, regexp_replace(raw_name, '_v\d{4}$', '') AS function
        FROM api_call WHERE api IN ('runtime', 'driver')""",
    # launched before the last step began; all of it where there are fewer than two steps
    "early_gpu_work": """
        WITH last_step AS (
            SELECT max(start_ns) AS begin_ns FROM range
            WHERE kind IN ('annotation', 'pushpop') AND name LIKE '%ProfilerStep%'
            HAVING count(DISTINCT name) > 1
        )
        SELECT * FROM gpu_work WHERE NOT EXISTS (SELECT 1 FROM last_step) OR id IN (
            SELECT launch.op FROM launch JOIN cuda_call ON cuda_call.id = launch.call
            WHERE start_ns < (SELECT begin_ns FROM last_step))""",
    # which call launched which work: same process, same id
    "launch": """
        SELECT op.id AS op, call.id AS call
        FROM gpu_work AS op JOIN cuda_call AS call USING (process_id, correlation_id)
        WHERE op.correlation_id >= 0""",
    "launching_call": """
        SELECT * FROM cuda_call
        SEMI JOIN gpu_work USING (process_id, correlation_id) WHERE correlation_id >= 0""",
    "host_range": f"""
        SELECT * EXCLUDE (end_ns, duration_ns),
            CASE WHEN end_missing THEN (
                SELECT {_LATEST} FROM range WHERE kind IN {_RANGES}
            ) ELSE end_ns END AS end_ns,
            CASE WHEN end_missing
                THEN (SELECT {_LATEST} FROM range) ELSE end_ns END - start_ns AS duration_ns,
            CASE WHEN domain IS NULL THEN name ELSE domain || ':' || name END AS label,
            CASE kind WHEN 'startend' THEN 'StartEnd' ELSE 'PushPop' END AS style,
            -- the source's row id; its place in the trace where the source has none
            CASE WHEN (SELECT count(source_row) FROM range) > 0
                THEN source_row ELSE id END AS row_id
        FROM range WHERE kind IN {_RANGES}""",
    "pushpop": "SELECT * FROM host_range WHERE style = 'PushPop'",
    "startend": "SELECT * FROM host_range WHERE style = 'StartEnd'",
    # not closed by another thread
    "own_range": "SELECT * FROM host_range WHERE end_thread_id IS NULL",
    # the innermost range around the launch of an operation
    "launch_range": """
        SELECT launch.op AS id, arg_max_null(range.name, launch.call) AS range_name
        FROM launch LEFT JOIN innermost_range AS inner_range USING (call)
        LEFT JOIN range ON range.id = inner_range.range
        GROUP BY launch.op""",
    "kernel_in_range": "SELECT * FROM kernel LEFT JOIN launch_range USING (id)",
    "gpu_work_in_range": "SELECT * FROM gpu_work LEFT JOIN launch_range USING (id)",
    # one row a kernel and launching call
    "execution": """
        SELECT kernel.*, call.id AS call, call.start_ns AS call_start_ns,
            call.end_ns AS call_end_ns, call.duration_ns AS call_ns,
            call.thread_id AS call_thread, call.function,
            kernel.start_ns - call.end_ns AS queue_ns,
            greatest(call.end_ns, kernel.end_ns) - call.start_ns AS total_ns
        FROM kernel JOIN cuda_call AS call USING (process_id, correlation_id)
        WHERE kernel.correlation_id >= 0""",
}
VIEWS["execution_in_range"] = "SELECT * FROM execution LEFT JOIN launch_range USING (id)"
