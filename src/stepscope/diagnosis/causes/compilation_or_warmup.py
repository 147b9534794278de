"""Device code is loaded or compiled inside the steps."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure

_ID = "compilation_or_warmup"


def detect(case: Case) -> Detection | None:
    """Idle time during module loading and run-time compilation calls."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    return Detection(
        time_ns=time,
        direct_ns=case.direct_ns(_ID),
        says="the GPU idles while device code is loaded or compiled",
        do=[
            "capture after warm-up: skip the first 10 steps",
            "fix the shapes or mark them dynamic, so that torch.compile does not compile again",
            "set CUDA_MODULE_LOADING=EAGER where lazy loading falls into measured steps",
        ],
        figures=[
            idle_figure(_ID),
            Figure(
                "module_calls",
                "count",
                "SELECT count(*) FROM api_call WHERE regexp_matches(name, "
                "'^cu(Module|Library)(Load|Unload)|^cuLink|^nvrtc') AND {process} AND {window}",
            ),
        ],
        where=case.place(_ID),
    )


CAUSE = Cause(
    id=_ID,
    title="Compilation or warm-up",
    definition="Modules are loaded, linked or compiled inside the measured steps.",
    look_alikes="host_compute is CPU work without such calls.",
    prediction="the step without the idle time during those calls",
    reference="CUDA driver API: module and library management",
    min_share=0.05,
    detect=detect,
)
