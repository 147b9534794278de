"""Which canonical tables a capture lacks, why, and the option that would provide them."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.trace.meta import Absent

_RUN = "stepscope run"
_OPTIONS = (
    ("gpu_op", "GPU work", _RUN),
    ("api_call", "CUDA calls", _RUN),
    ("range", "NVTX ranges", f"{_RUN} on a script with NVTX ranges, or --steps"),
    ("sync", "synchronisations", _RUN),
    ("event_record", "CUDA event records", f"{_RUN} --record event"),
    ("memory_event", "GPU memory allocations", f"{_RUN} --record memory"),
    ("overhead", "overhead of the tool itself", _RUN),
    ("timed_stretch", "steps timed without recording", f"{_RUN} --steps 10"),
    ("metric_sample", "GPU counters", f"{_RUN} --counters"),
    ("osrt", "calls of the operating system's runtime", f"{_RUN} --waits"),
    ("sched", "thread scheduling", "nsys profile --cpuctxsw=process-tree"),
    ("thread_state", "states of threads", f"{_RUN} --threads-hz 20"),
    ("cpu_sample", "samples of the CPU", f"{_RUN} --sample-hz 50, for Python stacks"),
    ("stack_frame", "stacks of the CPU", f"{_RUN} --sample-hz 50, for Python stacks"),
    ("gil", "use of Python's global lock", f"{_RUN} --waits"),
    ("operator", "framework operators", f"{_RUN} --steps 10 --ops, or --backend torch"),
    ("python_function", "Python function calls", f"{_RUN} --backend torch --stacks"),
    ("collective", "descriptions of collectives", f"{_RUN} --backend torch"),
    ("communicator", "process groups", f"{_RUN} --backend torch"),
)


def absent_tables(rows: Mapping[str, int]) -> list[Absent]:
    """The tables without rows.

    Args:
        rows: rows of each canonical table.
    """
    return [
        Absent(table, f"the capture holds no {what}", flag)
        for table, what, flag in _OPTIONS
        if not rows.get(table)
    ]
