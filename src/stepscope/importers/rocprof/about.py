"""Which tables a result lacks, and the option of rocprofv3 that records each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stepscope.importers.common.about import Option, without_rows
from stepscope.trace.meta import MissingTable

_TORCH: Final = "torch.profiler.profile(activities=[CPU, CUDA])"
_LACKING: Final = (
    Option("gpu_op", "kernels", "rocprofv3 --kernel-trace --memory-copy-trace"),
    Option("api_call", "calls of HIP", "rocprofv3 --hip-trace"),
    Option("range", "ranges of the program", "rocprofv3 --marker-trace, with roctx in the program"),
    Option("operator", "framework operators", _TORCH),
    Option("python_function", "Python functions", f"{_TORCH} with with_stack=True"),
    Option("collective", "descriptions of collectives", _TORCH),
    Option("sync", "synchronisation records", _TORCH),
    Option("cpu_sample", "samples of stacks", "py-spy or perf beside the run"),
)


def missing_tables(rows: Mapping[str, int]) -> list[MissingTable]:
    """The tables that a result does not hold, and how to get them."""
    return without_rows(_LACKING, rows)
