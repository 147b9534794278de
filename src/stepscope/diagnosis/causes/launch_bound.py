"""The host cannot enqueue kernels as fast as the device executes them."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection, idle_figure, kernel_figures
from stepscope.diagnosis.frameworks import in_jax
from stepscope.diagnosis.profiler_overhead_figures import (
    tool_figures,
    tool_text,
    uncertain_overhead_ns,
    unclaimed_ns,
)
from stepscope.diagnosis.thread_states import with_thread_states
from stepscope.diagnosis.workloads import in_inference
from stepscope.simulation import InGraphs

_ID = "launch_bound"
_PREDICTED = (
    "; the prediction is for the whole step as one CUDA graph, its range reaches to graphs of the "
    "model alone"
)
OTHER_WORK = 0.2
"""Of the time that is charged to late launches: a graph is credited with so much of other work."""
_LAUNCH_NS = 10_000  # what a framework needs at least from one launch to the next


@with_thread_states(_ID)
@in_jax(
    "compile the whole step: jax.jit around loss, gradients and update; operations outside "
    "of it are dispatched one by one from Python",
    "make several steps in one call: jax.lax.scan over their batches inside the jitted function",
    "give each operation more work: larger batches, jax.vmap instead of Python loops",
)
@in_inference(
    "replay each step as a CUDA graph: vLLM without enforce_eager, SGLang and TensorRT-LLM with "
    "their CUDA graphs on, torch.compile(model, mode='reduce-overhead')",
    "work on more requests at once (larger batches, continuous batching): as many launches do more",
    "make more tokens per step: speculative decoding, several steps between two decisions of the "
    "scheduler",
    "merge small kernels: torch.compile, fused normalisation, rotary and activation kernels",
)
def detect(case: Case) -> Detection | None:
    """Idle time in short pauses between launches that no wait explains."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    # What twice the estimated cost of recording would explain is not claimed.
    if time - unclaimed_ns(case) < CAUSE.min_share * case.step_ns:
        return None
    doubt = uncertain_overhead_ns(case, time)
    where = case.place(_ID)
    explanation = case.explanation
    kernels = max(int(explanation.gpu.is_kernel.sum()), 1)
    busy = int((explanation.gpu.busy[1] - explanation.gpu.busy[0]).sum())
    if busy / kernels < _LAUNCH_NS:
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
    return Detection(
        time_ns=time,
        direct_ns=time - doubt,
        overhead_ns=doubt,
        uncertain_ns=case.idle_ns("small_kernels"),
        # free launches also hide waits of other causes, which keep their own gain; host work
        # between launches goes with them, but is not what this finding is about
        max_gain_ns=time + case.idle_ns("small_kernels") + _other_work_ns(case, time),
        change=InGraphs("step"),
        lesser=InGraphs("model"),
        message=message + _PREDICTED + tool_text(case, time),
        texts=where.texts(),
        recommendations=[
            "capture the whole step, update included, in a CUDA graph (torch.cuda.graph; an "
            "optimizer with capturable=True): the prediction is for that. "
            "torch.compile(model, mode='reduce-overhead') and torch.cuda.make_graphed_callables "
            "leave the update, and some Python, outside of it, and gain less",
            "give each kernel more work: larger batches, or several steps' batches together",
            "use fused optimizers (fused=True, or foreach=True) and torch.compile, which merges "
            "elementwise kernels",
        ],
        figures=[
            idle_figure(_ID),
            *tool_figures(case),
            *kernel_figures(),
        ],
        where=where,
    )


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
        "host_sync leaves the same late launches after a wait that took the host's lead. "
        "profiler_overhead slows the host in the same way, but only while it is traced. "
        "small_kernels loses time on the device between kernels that were enqueued in time."
    ),
    prediction=(
        "the step as one CUDA graph: its kernels in their order, 0.4 us between two of them, "
        "without what the host does from one captured launch to the next; waits, input and what "
        "lies around the launches stay. The range's upper end is that of graphs of the model "
        "alone (torch.compile with mode='reduce-overhead'): the update and the way into the model "
        "stay, and the host needs up to 1.7 ms per step for the graphs"
    ),
    reference="NVIDIA CUDA best practices, CUDA graphs; PyTorch: accelerating with CUDA graphs",
    min_share=0.08,
    detect=detect,
)
