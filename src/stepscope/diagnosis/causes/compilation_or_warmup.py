"""Device code is loaded or compiled inside the steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.frameworks import in_jax
from stepscope.gaps.compilation import FIRST_EVIDENCE
from stepscope.kernels.categories import classify

_ID = "compilation_or_warmup"


_OF_EVENTS = f"FROM host_event WHERE cause = '{_ID}' AND {{gpu}}"


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
    message = "the GPU idles while device code is compiled or loaded"
    if len(case.explanation.events[_ID][0]):
        message += ", {compilations} times"
        if case.explanation.n_steady > 1:
            message += " in {steps_with_compilation} of {steady_steps} steps"
    if place:
        message += f", most of it in {{{place}}}"
    first = _first_calls(case)
    if first:
        message += first.message
    recommendations = [
        "keep shapes constant: pad to a few lengths (buckets), drop the last short batch; each "
        "new shape makes cuDNN plan and torch.compile trace again",
        "let torch.compile expect changing shapes: dynamic=True or torch._dynamo.mark_dynamic; "
        "TORCH_LOGS=recompiles says why it compiles again",
        "turn off searching where shapes change: torch.backends.cudnn.benchmark = False, or "
        "another attention backend (torch.nn.attention.sdpa_kernel)",
        "capture after warm-up (skip the first steps), or set CUDA_MODULE_LOADING=EAGER where "
        "lazy loading falls into measured steps",
    ]
    if first and 2 * first.ns >= time * case.explanation.n_steady:
        recommendations = [_WARM_UP, _CAPTURE_LATER, _EAGER]
    elif case.explanation.n_steady == 1:
        # a single step does not tell that shapes change
        recommendations = [_WARM_UP, _CAPTURE_LATER, *recommendations[:1], _EAGER]
    return Detection(
        time_ns=time,
        direct_ns=case.direct_ns(_ID),
        uncertain_ns=case.idle_ns("host_compute"),
        message=message,
        texts=where.texts() | (first.texts if first else {}),
        recommendations=recommendations,
        figures=[
            idle_figure(_ID),
            Figure("steady_steps", "count", "SELECT count(*) FROM step WHERE steady AND {gpu}"),
            Figure("compilations", "count", f"SELECT count(*) {_OF_EVENTS}"),
            Figure("steps_with_compilation", "count", f"SELECT count(DISTINCT step) {_OF_EVENTS}"),
            Figure(
                "module_calls",
                "count",
                "SELECT count(*) FROM api_call WHERE regexp_matches(name, "
                "'^cu(Module|Library)(Load|Unload)|^cuLink|^nvrtc') AND {process} AND {window}",
            ),
            *(first.figures if first else []),
        ],
        where=where,
        next_capture=(None if place or first else captures.STACKS),
    )


_WARM_UP = (
    "warm up before measuring: run some steps with the same shapes first, and count only those "
    "that follow"
)
_CAPTURE_LATER = (
    "capture after warm-up: torch.profiler.schedule(wait=..., warmup=...), stepscope run --warmup, "
    "or cudaProfilerStart behind the first steps"
)
_EAGER = (
    "where the first call itself must be fast, load everything when the program starts: "
    "CUDA_MODULE_LOADING=EAGER, at the price of memory and a longer start"
)


@dataclass(frozen=True)
class _First:
    """What is said of first calls that loaded code, with its figures."""

    message: str
    texts: dict[str, str]
    figures: list[Figure]
    ns: int


def _first_calls(case: Case) -> _First | None:
    """The longest first call in the steady steps, and all of them together."""
    e = case.explanation
    api = e.gpu.host.api
    begin = api["start_ns"][e.loading.call]
    rows = np.flatnonzero((begin >= e.begin_ns) & (begin < e.end_ns))
    if not len(rows):
        return None
    call, op = int(e.loading.call[rows[0]]), int(e.loading.op[rows[0]])
    took = (api["end_ns"] - api["start_ns"])[e.loading.call[rows]]
    name = e.gpu.ops.text("name", op) if op >= 0 else api.text("name", call)
    message = (
        "; the first launch of {first} took {first_call_ns}: its code was loaded then"
        if op >= 0
        else "; the first call of {first} took {first_call_ns}: what it needs was loaded or "
        "initialised then"
    )
    figures = [
        Figure(
            "first_call_ns",
            "ns",
            "SELECT (end_ns - start_ns)::BIGINT FROM api_call "
            f"WHERE id = {int(api['id'][call])} AND {{process}}",
        )
    ]
    if len(rows) > 1:
        message += " ({first_calls} such first calls, {first_calls_ns} in all)"
        first = f"{_OF_EVENTS} AND evidence IN {FIRST_EVIDENCE}"
        figures += [
            Figure("first_calls", "count", f"SELECT count(*) {first}"),
            Figure("first_calls_ns", "ns", f"SELECT sum(end_ns - start_ns)::BIGINT {first}"),
        ]
    label = classify(name).label if op >= 0 else name
    return _First(message, {"first": repr(label)}, figures, int(took.sum()))


CAUSE = Cause(
    id=_ID,
    title="Compilation or warm-up",
    definition=(
        "Device code is compiled, linked, loaded or planned inside the measured steps: "
        "torch.compile again, Triton, cuDNN plans for new shapes, lazy loading by the first launch "
        "of a kernel, initialisation by the first call of its name, capture of a CUDA graph. "
        "Leading steps that are long for this reason are set aside as warm-up and not blamed."
    ),
    differential=(
        "host_compute is untraced CPU time that neither a range or function of a compiler holds, "
        "nor the loading of a module or the first launch of a compiled kernel ends, nor an "
        "operator that plans for its shape contains. TorchDynamo's cache lookup, made in each "
        "call, is none. launch_bound is many short launches; a first launch that takes ten times "
        "as long as the later ones, and 5 ms or more on an idle device, loads code."
    ),
    prediction="the step without the idle time during compiling and loading",
    reference="CUDA driver API: module and library management; PyTorch: torch.compile",
    min_share=0.05,
    remedies=(
        "keep shapes the same, or mark the sizes that change: torch._dynamo.mark_dynamic; "
        "TORCH_LOGS=recompiles tells why it compiles again",
        "measure after more warm-up steps: `stepscope run --warmup 20 --steps 20 -- python "
        "train.py`",
    ),
    detect=detect,
)
