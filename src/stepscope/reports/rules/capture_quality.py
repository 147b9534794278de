"""Whether the capture itself can be trusted."""

from __future__ import annotations

from stepscope.breakdown.explain import explain
from stepscope.reports.report import ROWS, Answer, Argument, Arguments, Column, Report
from stepscope.reports.source import Source

_TRACE_LESS = (
    "the profiler's own work takes this share of the time between the first and the last GPU "
    "operation; trace less (-t cuda,nvtx), or a "
    "shorter time"
)
_FILTER = (
    "sums over the whole capture include these steps; leave them out with --filter-time or "
    "--filter-nvtx"
)
_FEW_ORPHANS = 1
"""Percent: those launched before recording began lack their call in every capture."""
_ORPHANS = (
    "this share of the GPU operations has no recorded launching call, so the idle time before them "
    "cannot be explained; record the calls of the CUDA API, too"
)
_RECORDING = "estimated cost of recording in the steady steps; stepscope diagnose shows it"


def _run(source: Source, arguments: Arguments) -> Answer:
    meta = source.trace.meta
    found: list[tuple[str, str, str]] = [
        ("records lost", f"{problem.count:,}", f"{problem.message}; {problem.remedy}")
        for problem in meta.problems
        if problem.severity in ("data_loss", "error")
    ]
    work = source.value("SELECT count(*) FROM gpu_work")
    orphans = sum(p.count for p in meta.problems if p.id == "unresolved_correlation")
    if work and orphans * 100 > work * _FEW_ORPHANS:
        found.append(("launches missing", f"{100.0 * orphans / work:.1f} %", _ORPHANS))
    most = int(arguments["overhead"])
    share = _overhead_share(source)
    if share > most:
        found.append(("profiler overhead", f"{share:.1f} %", _TRACE_LESS))
    for gpu in explain(source.trace.frame, meta):
        where = f"device {gpu.gpu.device}"
        least = int(arguments["steps"])
        if len(gpu.steps) < least:
            stated = f"{where}: {gpu.steps.message}; capture at least {least} steps"
            found.append(("too short", f"{len(gpu.steps)} steps", stated))
        lengths = gpu.durations_ns
        aside_ns = int(lengths.sum() - gpu.steady_durations_ns.sum())
        if gpu.set_aside and aside_ns * 100 > int(lengths.sum()) * int(arguments["warmup"]):
            found.append(("warm-up included", gpu.set_aside, f"{where}: {_FILTER}"))
        share = 100.0 * gpu.recording_ns / max(gpu.end_ns - gpu.begin_ns, 1)
        if share > most:
            found.append(("profiler overhead", f"{share:.1f} %", f"{where}: {_RECORDING}"))
    rows = int(arguments["rows"])
    shown = found if rows < 0 else found[:rows]
    return [
        [number + 1 for number in range(len(shown))],
        *([row[i] for row in shown] for i in range(3)),
    ]


def _overhead_share(source: Source) -> float:
    """The profiler's own work between the first and the last GPU operation, percent of that span.

    What it does after the last operation (writing its buffers) disturbs nothing.
    """
    share = source.value(
        """
        WITH span AS (
            SELECT min(start_ns) AS first_ns, max(end_ns) AS last_ns FROM gpu_work
        )
        SELECT sum(greatest(least(end_ns, last_ns) - greatest(start_ns, first_ns), 0))::DOUBLE
            * 100 / greatest(any_value(last_ns - first_ns), 1)
        FROM overhead, (SELECT * FROM span)
        """
    )
    return 0.0 if share is None else float(share)


RULES = [
    Report(
        "capture_quality",
        "Capture Quality",
        "What makes figures of this capture doubtful: records lost, launches not recorded, the "
        "profiler's own cost, too few steps, much of the time in warm-up steps.",
        (
            Column("Row#", doc="number"),
            Column("Check", doc="what was looked at"),
            Column("Value", doc="what was found"),
            Column("Meaning", doc="what it means and what to do", prose=True),
        ),
        _run,
        arguments=(
            ROWS,
            Argument("steps", "a capture of fewer steps is too short", 5, low=1),
            Argument(
                "warmup",
                "report warm-up above so many percent of all steps' time",
                20,
                low=0,
            ),
            Argument("overhead", "report overhead above so many percent", 5, low=0),
        ),
        none_found="Nothing speaks against this capture.",
        advice="Look at these before trusting any figure of the capture.",
    )
]
