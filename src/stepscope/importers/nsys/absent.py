"""Which canonical tables a capture lacks, why, and the option that would provide them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.trace.meta import Absent


@dataclass(frozen=True)
class _Option:
    """How to get a table.

    Attributes:
        table: canonical table, or ``osrt`` for the part of ``api_call`` with that name.
        what: what it holds, as subject of a sentence.
        flag: the option that provides it.
        traced: how the export names the trace option, where it does.
    """

    table: str
    what: str
    flag: str
    traced: str = ""


_OTHER = "torch.profiler"
_OPTIONS = (
    _Option("gpu_op", "GPU work", "nsys profile -t cuda", "Cuda"),
    _Option("api_call", "CUDA calls", "nsys profile -t cuda", "Cuda"),
    _Option("osrt", "calls of the operating system's runtime", "nsys profile -t osrt", "OSRuntime"),
    _Option("range", "NVTX ranges", "nsys profile -t nvtx", "NvtxEvents"),
    _Option("sync", "synchronisations", "nsys profile -t cuda", "Cuda"),
    _Option("event_record", "CUDA event records", "nsys profile --cuda-event-trace=true"),
    _Option("cpu_sample", "samples of the CPU", "nsys profile --sample=process-tree"),
    _Option("stack_frame", "stacks of the CPU", "nsys profile --sample=process-tree"),
    _Option("sched", "thread scheduling", "nsys profile --cpuctxsw=process-tree"),
    _Option("thread_state", "states of threads", "nsys profile --cpuctxsw=process-tree"),
    _Option("gil", "use of Python's global lock", "nsys profile -t python-gil"),
    _Option("metric_sample", "GPU counters", "nsys profile --gpu-metrics-devices=all"),
    _Option("memory_event", "GPU memory allocations", "nsys profile --cuda-memory-usage=true"),
    _Option(
        "operator",
        "framework operators",
        "torch.autograd.profiler.emit_nvtx(record_shapes=True) around the steps (or nsys profile "
        f"--pytorch=autograd-shapes-nvtx), or {_OTHER}",
    ),
    _Option("overhead", "overhead of the tool itself", "nsys profile -t cuda", "Cuda"),
)
_NEVER = (
    _Option("python_function", "Python function calls", f"{_OTHER} with with_stack=True"),
    _Option("collective", "descriptions of collectives", f"{_OTHER}"),
    _Option("communicator", "process groups", f"{_OTHER}"),
)


def absent_tables(rows: Mapping[str, int], traced: set[str]) -> list[Absent]:
    """The tables without rows.

    Args:
        rows: rows of each canonical table (and of ``osrt``).
        traced: what the capture's options name as traced; empty where they do not tell.
    """
    absent = [
        Absent(option.table, _reason(option, traced), option.flag)
        for option in _OPTIONS
        if not rows.get(option.table)
    ]
    absent += [
        Absent(option.table, f"Nsight Systems records no {option.what}", option.flag)
        for option in _NEVER
        if not rows.get(option.table)
    ]
    return absent


def _reason(option: _Option, traced: set[str]) -> str:
    if not option.traced or not traced:
        return f"the capture holds no {option.what}"
    if option.traced in traced:
        return f"the capture traced {option.what}, but recorded none"
    return f"the capture did not trace {option.what}"
