"""Calls that belong before training but happen inside the steady steps."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from stepscope.activity import names as words
from stepscope.breakdown.explain import explain
from stepscope.tabular.maths import dictionary, group, round_half_away, statistics
from stepscope.tabular.needs import CUDA_CALLS, GPU_WORK
from stepscope.tabular.report import ROWS, Answer, Argument, Arguments, Column, Report, limit
from stepscope.tabular.source import Source, in_window


def _run(pattern: re.Pattern[str], source: Source, arguments: Arguments) -> Answer:
    calls = source.cuda_calls()
    matches = calls.that("name", pattern.search)
    keep = np.zeros(len(calls), dtype=bool)
    steps, length = 1, 0
    if matches.any():
        for found in explain(source.trace.frame, source.trace.meta):
            steps, length = max(steps, found.n_steady), max(length, found.end_ns - found.begin_ns)
            inside = in_window(calls["start_ns"], calls["end_ns"], found.begin_ns, found.end_ns)
            keep |= inside & (calls["process_id"] == found.gpu.process_id)
    calls = calls.where(keep & matches)
    groups, firsts = group(calls["process_id"], calls["name"])
    stats = statistics(calls.duration, groups, len(firsts))
    order = np.argsort(-stats.total, kind="stable")
    notable = stats.total[order] * 100 >= length * int(arguments["share"])
    order = order[notable][limit(arguments)]
    return [
        stats.total[order],
        stats.count[order],
        round_half_away(stats.count[order] / steps),
        round_half_away(stats.avg[order]),
        stats.high[order],
        calls["process_id"][firsts][order],
        dictionary(calls["name"][firsts][order], calls.texts("name")),
    ]


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
