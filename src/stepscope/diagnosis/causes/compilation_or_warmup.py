"""Device code is loaded or compiled inside the steps."""

from __future__ import annotations

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.frameworks import in_jax

_ID = "compilation_or_warmup"


_OF_EVENTS = f"FROM host_event WHERE cause = '{_ID}' AND {{lane}}"


@in_jax(
    "keep shapes, types and static arguments the same from step to step: each new "
    "combination is compiled again; jax.config.update('jax_log_compiles', True) names them",
    "pad batches to a few sizes",
    "keep compiled programs between runs: jax.config.update('jax_compilation_cache_dir', ...)",
)
def detect(case: Case) -> Detection | None:
    """Idle time while device code is compiled, loaded, planned or captured."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    where = case.place(_ID)
    place = "operator" if where.operator else "range" if where.range else ""
    says = "the GPU idles while device code is compiled or loaded"
    if len(case.explanation.events[_ID][0]):
        says += ", {compilations} times in {steps_with_compilation} of {steady_steps} steps"
    if place:
        says += f", most of it in {{{place}}}"
    return Detection(
        time_ns=time,
        direct_ns=case.direct_ns(_ID),
        unsure_ns=case.idle_ns("host_compute"),
        says=says,
        texts=where.texts(),
        do=[
            "keep shapes constant: pad to a few lengths (buckets), drop the last short batch; each "
            "new shape makes cuDNN plan and torch.compile trace again",
            "let torch.compile expect changing shapes: dynamic=True or torch._dynamo.mark_dynamic; "
            "TORCH_LOGS=recompiles says why it compiles again",
            "turn off searching where shapes change: torch.backends.cudnn.benchmark = False, or "
            "another attention backend (torch.nn.attention.sdpa_kernel)",
            "capture after warm-up (skip the first steps), or set CUDA_MODULE_LOADING=EAGER where "
            "lazy loading falls into measured steps",
        ],
        figures=[
            idle_figure(_ID),
            Figure("steady_steps", "count", "SELECT count(*) FROM step WHERE steady AND {lane}"),
            Figure("compilations", "count", f"SELECT count(*) {_OF_EVENTS}"),
            Figure("steps_with_compilation", "count", f"SELECT count(DISTINCT step) {_OF_EVENTS}"),
            Figure(
                "module_calls",
                "count",
                "SELECT count(*) FROM api_call WHERE regexp_matches(name, "
                "'^cu(Module|Library)(Load|Unload)|^cuLink|^nvrtc') AND {process} AND {window}",
            ),
        ],
        where=where,
        next_capture=(None if place else captures.STACKS),
    )


CAUSE = Cause(
    id=_ID,
    title="Compilation or warm-up",
    definition=(
        "Device code is compiled, linked, loaded or planned inside the measured steps: "
        "torch.compile again, Triton, cuDNN plans for new shapes, lazy loading, capture of a CUDA "
        "graph. Leading steps that are long for this reason are set aside as warm-up and not "
        "blamed."
    ),
    look_alikes=(
        "host_compute is a silence that neither a range or function of a compiler holds, nor the "
        "loading of a module or the first launch of a compiled kernel ends, nor an operator that "
        "plans for its shape contains. TorchDynamo's cache lookup, made in each call, is none."
    ),
    prediction="the step without the idle time during compiling and loading",
    reference="CUDA driver API: module and library management; PyTorch: torch.compile",
    min_share=0.05,
    detect=detect,
)
