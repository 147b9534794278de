"""The capturing tool itself slows the host down."""

from __future__ import annotations

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure

_ID = "profiler_overhead"


_OF_TORCH = (
    "record less: with_stack=False, profile_memory=False, record_shapes=False; fewer steps do not "
    "help",
    "capture with stepscope run, or with nsys profile -t cuda,nvtx: each event costs the host less",
)
_OF_TOOLS = (
    "record less: nsys profile -t cuda,nvtx --sample=none --cpuctxsw=none, without backtraces and "
    "the memory that CUDA uses",
    "begin behind the first steps (-c cudaProfilerApi, --delay): the tool sets itself up in them",
)


def detect(case: Case) -> Detection | None:
    """Idle time that recording explains, as the tool recorded it or by the cost of its events."""
    time = case.idle_ns(_ID)
    overhead = case.explanation.recording_ns / case.explanation.n_steady
    uncertain = min(overhead, case.idle_ns("launch_bound") + case.idle_ns("host_compute"))
    if not time:
        return None
    options = case.meta.capture_options
    heavy = [name for name in ("with_stack", "profile_memory", "record_shapes", "with_modules")
             if options.get(name, "0") not in ("", "0", "false", "False")]  # fmt: skip
    using = f" (with {', '.join(heavy)})" if heavy else ""
    return Detection(
        time_ns=time,
        direct_ns=time / 2,
        uncertain_ns=uncertain,
        message=(
            f"recording{using} slows the host until the GPU waits for it; the program without the "
            "profiler is faster than this capture shows"
        ),
        recommendations=[
            "judge the step time from a run without the profiler",
            *(_OF_TORCH if case.meta.source == "kineto" else _OF_TOOLS),
        ],
        figures=[
            idle_figure(_ID),
            Figure(
                "operators_recorded",
                "count",
                "SELECT count(*) FROM operator WHERE {process} AND {window}",
            ),
            Figure(
                "python_functions_recorded",
                "count",
                "SELECT count(*) FROM python_function WHERE {process} AND {window}",
            ),
        ],
        next_capture=captures.PLAIN,
    )


CAUSE = Cause(
    id=_ID,
    title="Profiler overhead",
    definition=(
        "Recording an event costs the host a fraction of a microsecond to several microseconds. In "
        "an eager program that the host barely keeps fed, this alone makes the GPU wait."
    ),
    differential=(
        "launch_bound is the same symptom without the profiler: it is reported only for the idle "
        "time that twice the estimated cost of recording would not explain."
    ),
    prediction="the step without the idle time that recording explains; a rough estimate",
    reference="unit costs measured by benchmarks/captures/profiler_cost.py",
    min_share=0.08,
    remedies=(
        "judge the step time from a run without the profiler",
        "record less: no stacks, no shapes, no memory; fewer steps do not help",
        "`stepscope run -- python train.py` costs the host least for each event",
    ),
    detect=detect,
    of_program=False,
)
