"""The training thread computes something else than launches."""

from __future__ import annotations

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, idle_figure
from stepscope.diagnosis.frameworks import in_cuda, in_jax
from stepscope.diagnosis.thread_states import with_thread_states
from stepscope.diagnosis.workloads import in_inference
from stepscope.gaps.untraced_cpu import BATCH_UPLOADED, NAMED_OTHER, OS_WAIT

_ID = "host_compute"


_ONCE = (
    "what happens once (building the model, reading its weights) is no part of a step: mark the "
    "steps by ranges, or begin to record behind it"
)


@with_thread_states(_ID)
@in_cuda(
    "move the work to the GPU, or out of the loop",
    "let it overlap: enqueue the kernels of the next iteration first, with buffers of their own",
    "divide it among threads, which also keeps the one that launches free",
)
@in_jax(
    "move the work out of the step: every N steps, to another process, or into the jitted function",
    "let it overlap: a jitted call returns before the device is done, so enqueue the next "
    "step first and read results afterwards",
    "vectorise it (NumPy, jax.numpy) where it is a Python loop",
)
@in_inference(
    "let the CPU's work overlap with the GPU's: asynchronous scheduling (--async-scheduling of "
    "vLLM, SGLang's overlap scheduler), so that the next step is enqueued before it",
    "take sampling, detokenising and logging off the thread that launches: other processes, or the "
    "GPU",
    "prepare the next request's input while the GPU works on this one",
    "vectorise it (NumPy, torch) where it is a Python loop",
)
def detect(case: Case) -> Detection | None:
    """Idle time in which the training thread made no CUDA call for long."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    where = case.place(_ID)
    segments = case.explanation.gaps.segments
    codes = set(segments["evidence"][case.explanation.segments_of(_ID)].tolist())
    named = NAMED_OTHER in codes or where.range is not None
    inside = " in {range}" if where.range else ""
    if where.source:
        inside += " at {source}"
    elif where.function:
        inside += " in {function}"
    thread = "training" if case.explanation.workload.goes_back else "launching"
    message = f"the GPU idles while the {thread} thread works on the CPU{inside}"
    facts = named or bool(where.source or where.function)
    if not facts:
        message += _maybe(codes, case.explanation.workload.infers)
    return Detection(
        time_ns=time,
        uncertain_ns=case.idle_ns("launch_bound"),
        direct_ns=case.direct_ns(_ID),
        message=message,
        texts=where.texts(),
        recommendations=[
            *([] if case.explanation.steps.source != "whole_capture" else [_ONCE]),
            "move the work out of the step: every N steps, to another process, or to the GPU",
            "let it overlap: enqueue the next step before doing it, and remove the synchronisation "
            "that makes the GPU wait for it",
            "vectorise it (NumPy, torch) where it is a Python loop",
        ],
        figures=[idle_figure(_ID)],
        where=where,
        next_capture=None if where.source or where.function else captures.STACKS,
    )


def _maybe(codes: set[int], infers: bool) -> str:
    """What the host may be doing where nothing names it, with what points there."""
    if OS_WAIT in codes:
        return (
            "; it waits in the operating system, and nothing says for what: input, a lock, another "
            "process"
        )
    if infers:
        return (
            "; nothing in the capture says at what: scheduling of requests, preparing their input, "
            "or sampling and decoding of results"
        )
    if BATCH_UPLOADED in codes:
        return (
            "; nothing in the capture says at what: input, or other host work, for the thread "
            "uploads data afterwards"
        )
    return "; nothing in the capture says at what: input, or other host work"


CAUSE = Cause(
    id=_ID,
    title="Host computation",
    definition=(
        "The GPU has finished its queue and idles while the training thread does CPU work without "
        "any CUDA call (metrics, logging, Python loops), for longer than a framework needs between "
        "two launches."
    ),
    differential=(
        "input_starvation is untraced CPU time spent getting a batch, which evidence must show. "
        "launch_bound is made of many short pauses between launches. CPU work that the queue "
        "hides is not reported."
    ),
    prediction="the step without the idle time in long untraced CPU time of the training thread",
    reference="docs/how-it-works.md, idle time",
    min_share=0.08,
    remedies=(
        "move the work out of the step: to another process, to the GPU, or to every N steps",
        "enqueue the next step before doing it, and take out the synchronisation in between",
        "vectorise what is a Python loop",
    ),
    detect=detect,
    less_recording=True,
)
