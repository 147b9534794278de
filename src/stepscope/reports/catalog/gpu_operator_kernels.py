"""Which kernels operators launch, in which order, how often, and how long after they began."""

from __future__ import annotations

from stepscope.reports.gpu_work import WITHOUT_LAST_STEP
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK, KERNELS, Need
from stepscope.reports.report import ROWS, Argument, Column, Report

_OPERATOR = Argument(
    "operator",
    "operators and annotations whose name holds this; by default all operators",
    text=True,
)
_LEAST = Argument("kernels", "only sequences of at least this many operations", 3, low=1)
_ANY = Argument("any", "operators of any name; by default those of ATen, aten::")

# sequences are lists of numbers of names: texts of that length would be hashed again and again
_NAMES = """
names AS (
    SELECT name, row_number() OVER () AS code FROM (SELECT DISTINCT name FROM {early}gpu_work)
), texts AS (SELECT list(name ORDER BY code) AS texts FROM names)
"""
_SHOWN = "array_to_string(list_transform(codes, lambda code: texts[code]), ' -> ')"
_OPERATORS = f"""
WITH {_NAMES}, alone AS (
    SELECT call, any_value(op) AS op FROM launch JOIN {{early}}gpu_work AS work ON work.id = op
    GROUP BY call HAVING count(*) = 1
), launched AS (
    SELECT CASE WHEN {{any}} THEN operator ELSE aten END AS operator, kernel.id, code,
        call.start_ns AS call_ns, kernel.start_ns, kernel.duration_ns
    FROM alone JOIN operator_call USING (call) JOIN cuda_call AS call ON call.id = alone.call
    JOIN kernel ON kernel.id = alone.op JOIN names ON names.name = kernel.name
), instances AS (
    SELECT operator, list(code ORDER BY call_ns, id) AS codes, min(call_ns) AS call_ns,
        arg_min(start_ns, (call_ns, id)) AS start_ns, sum(duration_ns) AS gpu_ns
    FROM launched WHERE operator >= 0 GROUP BY operator
), found AS (
    SELECT name, count(*) AS number, avg(call_ns - operator.start_ns),
        avg(instances.start_ns - call_ns), avg(gpu_ns), codes, min(operator.id) AS earliest
    FROM instances JOIN operator ON operator.id = operator GROUP BY name, codes
    ORDER BY number DESC, earliest LIMIT {{rows}}
)
SELECT found.* EXCLUDE (codes, earliest), {_SHOWN} FROM found, texts
ORDER BY number DESC, earliest
"""
_FREQUENT = f"""
WITH {_NAMES}, host AS (
    SELECT process_id, thread_id, start_ns, end_ns, name, (0, id) AS number
    FROM operator WHERE contains(name, {{operator}})
    UNION ALL SELECT process_id, thread_id, start_ns, end_ns, name, (1, id) FROM range
    WHERE kind IN ('annotation', 'pushpop') AND {{operator}} <> '' AND contains(name, {{operator}})
), outermost AS (  -- an instant where another one ends is not inside that one
    SELECT *, 2 * end_ns + (end_ns = start_ns)::INT AS twice FROM host
    QUALIFY coalesce(max(twice) OVER (
        PARTITION BY process_id, thread_id ORDER BY start_ns, twice DESC, number
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) < twice, true)
), launched AS (
    SELECT op, call.process_id, call.thread_id, call.start_ns AS call_ns, call.end_ns AS call_end,
        work.start_ns AS work_ns, work.duration_ns AS gpu_ns, code
    FROM launch JOIN {{early}}gpu_work AS work ON work.id = op
    JOIN cuda_call AS call ON call.id = launch.call JOIN names ON names.name = work.name
), instances AS (
    SELECT number, any_value(name) AS name, any_value(end_ns - start_ns) AS cpu_ns,
        list(code ORDER BY work_ns, op) AS codes, sum(gpu_ns) AS gpu_ns
    FROM launched ASOF JOIN outermost ON outermost.process_id = launched.process_id
        AND outermost.thread_id = launched.thread_id AND call_ns >= start_ns
    WHERE end_ns >= call_end GROUP BY number HAVING count(*) >= {{kernels}}
), found AS (
    SELECT name, count(*) AS times, len(codes) AS operations, sum(gpu_ns)::BIGINT AS gpu_ns,
        sum(cpu_ns)::BIGINT AS cpu_ns, codes, min(number) AS earliest
    FROM instances GROUP BY name, codes ORDER BY times DESC, gpu_ns DESC, earliest LIMIT {{rows}}
)
SELECT found.* EXCLUDE (codes, earliest), {_SHOWN} FROM found, texts
ORDER BY times DESC, gpu_ns DESC, earliest
"""
_HELD = Need(
    "operators of the framework",
    "operator",
    "torch.profiler, or nsys profile with --pytorch=autograd-nvtx",
    "operator",
)


REPORTS = [
    Report(
        "gpu_operator_kernels",
        "Kernels by Operator",
        "The kernels that operators launch themselves (the innermost operator around the call "
        "launches it), by operator and sequence, most frequent first. The launch delay runs from "
        "the operator's begin to that of its first launching call, the queue delay from there to "
        "the begin of its first kernel. Kernels of CUDA graphs are left out.",
        (
            Column("Operator"),
            Column("Count", doc="operators that launched this sequence"),
            Column("Avg Launch Delay", "dur", "from the operator's begin to its first launch"),
            Column("Avg Queue Delay", "dur", "from that launch to the begin of its kernel"),
            Column("Avg GPU Time", "dur", "sum of the kernels' lengths"),
            Column("Kernels", doc="in the order of their launches"),
        ),
        _OPERATORS,
        arguments=(_ANY, ROWS, WITHOUT_LAST_STEP),
        aliases=("get_aten_op_kernels_and_delay",),
        needs=(KERNELS, CUDA_CALLS, _HELD),
    ),
    Report(
        "gpu_kernel_sequences",
        "Frequent Kernel Sequences",
        "The sequences of kernels, copies and memsets that operators or annotations launched, "
        "everything inside them counted, most frequent first. Of those whose names hold "
        "'operator', one inside another is part of the outer one.",
        (
            Column("Operator", doc="operator or annotation"),
            Column("Count", doc="how often it launched this sequence"),
            Column("Operations", doc="length of the sequence"),
            Column("GPU Time", "dur", "sum of the operations' lengths"),
            Column("CPU Time", "dur", "sum of the operators' lengths"),
            Column("Sequence", doc="in the order in which they began on the GPU"),
        ),
        _FREQUENT,
        arguments=(_OPERATOR, _LEAST, ROWS, WITHOUT_LAST_STEP),
        aliases=("get_frequent_cuda_kernel_sequences",),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
]
