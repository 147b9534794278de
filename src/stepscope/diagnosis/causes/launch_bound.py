"""The host cannot enqueue kernels as fast as the device executes them."""

from __future__ import annotations

from stepscope.diagnosis.cause import (
    Case,
    Cause,
    Detection,
    Further,
    idle_figure,
    kernel_figures,
)
from stepscope.diagnosis.frameworks import in_cuda, in_jax, is_jax, is_own_program
from stepscope.diagnosis.profiler_overhead_figures import (
    tool_figures,
    tool_text,
    uncertain_overhead_ns,
    unclaimed_ns,
)
from stepscope.diagnosis.thread_states import beside_other_threads, with_thread_states
from stepscope.diagnosis.workloads import in_inference
from stepscope.intervals.distinct import distinct_values
from stepscope.simulation import InGraphs
from stepscope.simulation.graphs import outside

_ID = "launch_bound"
_STEP = "; the prediction is for each step as one CUDA graph"
_WHOLE = Further(
    InGraphs("step"),
    "the whole step as one CUDA graph with the update",
    "CUDA graphs of the model, with the update launched as today",
)
_WHOLE_INFERENCE = Further(
    InGraphs("step"),
    "the whole step as one CUDA graph",
    "CUDA graphs of a compiled model that Python calls in each step",
)
_IN_PLACE = (
    "; the step writes parts of tensors in place (index_copy_, index_put_), and compiled code may "
    "copy these tensors as a whole: how large they are the capture does not tell, so that the "
    "range reaches to the step of today; torch.cuda.graph around the step copies none of them"
)
OTHER_WORK = 0.2
"""Of the time that is charged to late launches: a graph is credited with so much of other work."""
_LAUNCH_NS = 10_000  # what a framework needs at least from one launch to the next


@with_thread_states(_ID)
@in_cuda(
    "record the launches of the loop once as a CUDA graph (cudaStreamBeginCapture) and replay it "
    "by cudaGraphLaunch",
    "give each launch more to do: merge kernels that follow one another, or handle several inputs "
    "in one",
    "launch from a thread that does nothing else",
)
@in_jax(
    "compile the whole step: jax.jit around loss, gradients and update; operations outside "
    "of it are dispatched one by one from Python",
    "make several steps in one call: jax.lax.scan over their batches inside the jitted function",
    "give each operation more work: larger batches, jax.vmap instead of Python loops",
)
@in_inference(
    "launch the model as CUDA graphs: torch.compile(model, mode='reduce-overhead')",
    "replay each step as one CUDA graph: torch.cuda.graph around it, over buffers that stay; vLLM "
    "without enforce_eager, SGLang and TensorRT-LLM with their CUDA graphs on",
    "work on more inputs or requests at once (larger batches, continuous batching): as many "
    "launches do more",
    "of a language model, make more tokens per step: speculative decoding, several steps between "
    "two decisions of the scheduler",
    "merge small kernels: torch.compile, fused normalisation, rotary and activation kernels",
)
def detect(case: Case) -> Detection | None:
    """Idle time in short pauses between launches that no wait explains."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    # What twice the estimated cost of recording would explain is not claimed.
    if time - unclaimed_ns(case) < CAUSE.least_ns(case):
        return None
    overhead = uncertain_overhead_ns(case, time)
    where = case.place(_ID)
    explanation = case.explanation
    # a graph's kernels are launched by one call
    called = explanation.gpu.call[explanation.gpu.is_kernel]
    launches = len(distinct_values(called[called >= 0])) + int((called < 0).sum())
    busy = int((explanation.gpu.busy[1] - explanation.gpu.busy[0]).sum())
    if busy / max(launches, 1) < _LAUNCH_NS:
        message = (
            "the kernels are shorter than the time the host needs to launch them, so the GPU waits "
            "for almost every launch"
        )
    else:
        inside = ", most of it in {range}" if where.range else ""
        message = (
            "the host launches too slowly in parts of the step, so the GPU has finished before "
            f"the next launch arrives{inside}"
        )
    # XLA compiles whatever is jitted with it, and CUDA of one's own captures what it launches
    alone = is_jax(explanation.gpu) or is_own_program(case)
    beside = outside(explanation)
    updated = not explanation.workload.infers and bool(beside.updates.any())
    scope = _STEP if alone else _IN_PLACE if beside.in_place else ""
    found = Detection(
        time_ns=time,
        direct_ns=time - overhead,
        overhead_ns=overhead,
        uncertain_ns=case.idle_ns("small_kernels"),
        # free launches also hide waits of other causes, which keep their own gain; host work
        # between launches goes with them, but is not what this finding is about
        max_gain_ns=time + case.idle_ns("small_kernels") + _other_work_ns(case, time),
        change=InGraphs("step" if alone else "model"),
        further=None if alone else _WHOLE if updated else _WHOLE_INFERENCE,
        message=message + scope + tool_text(case, time),
        texts=where.texts(),
        recommendations=[
            "launch the model as CUDA graphs: torch.compile(model, mode='reduce-overhead'), or "
            "torch.cuda.make_graphed_callables where nothing is to be compiled; the update stays "
            "outside",
            "capture the whole step, update included, in one CUDA graph (torch.cuda.graph; an "
            "optimizer with capturable=True), where shapes and control flow never change",
            "give each kernel more work: larger batches, or several steps' batches together",
            "launch fewer kernels: a fused optimizer (fused=True, or foreach=True), and fused "
            "normalisation, rotary and activation kernels",
        ],
        figures=[
            idle_figure(_ID),
            *tool_figures(case),
            *kernel_figures(),
        ],
        where=where,
    )
    return beside_other_threads(case, found)


def _other_work_ns(case: Case, time_ns: float) -> float:
    """Host work that a graph takes away beside launching, and is credited with, ns per step."""
    return min(case.idle_ns("host_compute"), OTHER_WORK * time_ns)


CAUSE = Cause(
    id=_ID,
    title="Launch-bound",
    definition=(
        "Launching a kernel costs the host 5 to 10 us and the framework's dispatch as much again. "
        "When the kernels are shorter than that, the GPU waits for launches all the time."
    ),
    differential=(
        "host_sync leaves the same late launches after a wait that took the host's run-ahead. "
        "profiler_overhead slows the host in the same way, but only while it is traced. "
        "small_kernels loses time on the device between kernels that were enqueued in time."
    ),
    prediction=(
        "forward and backward pass as CUDA graphs: their kernels in their order, 0.1 us more than "
        "each took alone, without what launching them costs the host; the update, waits, input and "
        "the way into the model stay, and the graphs cost the host what 22 launches and 0.4 for "
        "each parameter do, 8 without a backward pass. The step as one graph, update included, is "
        "predicted beside it: without what the host does from one captured launch to the next"
    ),
    reference="NVIDIA CUDA best practices, CUDA graphs; PyTorch: accelerating with CUDA graphs",
    min_share=0.08,
    remedies=(
        "capture the step in a CUDA graph: torch.compile(model, mode='reduce-overhead'), "
        "torch.cuda.make_graphed_callables, or torch.cuda.graph for the whole step",
        "give each kernel more work: larger batches",
        "fused optimizers (fused=True) and torch.compile, which merge kernels",
    ),
    detect=detect,
    less_recording=True,
)
