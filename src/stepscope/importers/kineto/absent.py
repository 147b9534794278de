"""Which tables a trace lacks, and what would have recorded them."""

from __future__ import annotations

from stepscope.trace.meta import Absent

_CPU = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ...])"
_CUDA = "torch.profiler.profile(activities=[..., ProfilerActivity.CUDA])"
_NEVER = (
    Absent(
        "cpu_sample",
        "the PyTorch profiler does not sample call stacks",
        "nsys profile --sample=process-tree",
    ),
    Absent(
        "sched",
        "the PyTorch profiler does not record when threads run",
        "nsys profile --cpuctxsw=process-tree",
    ),
    Absent(
        "gil",
        "the PyTorch profiler does not record who holds Python's lock",
        "nsys profile --trace=cuda,nvtx,osrt,python-gil",
    ),
    Absent(
        "metric_sample",
        "the PyTorch profiler does not sample hardware counters",
        "nsys profile --gpu-metrics-devices=all",
    ),
    Absent(
        "event_record",
        "the PyTorch profiler does not record CUDA events",
        "nsys profile --cuda-event-trace=true",
    ),
)


def absent_tables(
    *,
    operators: bool,
    shapes: bool,
    gpu: bool,
    calls: bool,
    python: bool,
    memory: bool,
    sync: bool,
    distributed: bool,
    collectives: bool,
) -> list[Absent]:
    """The tables that hold nothing, given which ones hold something.

    Args:
        operators: there are framework operators.
        shapes: operators came with input shapes.
        gpu: there is GPU work.
        calls: there are CUDA calls.
        python: there are Python functions.
        memory: there are allocations.
        sync: there are synchronisation records.
        distributed: the trace is one of several ranks.
        collectives: communication kernels are described.
    """
    found = []
    if not operators:
        found.append(Absent("operator", "framework operators were not recorded", _CPU))
    elif not shapes:
        found.append(
            Absent(
                "operator",
                "operators were recorded without the sizes of their inputs",
                "torch.profiler.profile(record_shapes=True)",
            )
        )
    if not gpu:
        found.append(Absent("gpu_op", "GPU work was not recorded", _CUDA))
    if not calls:
        found.append(Absent("api_call", "CUDA calls were not recorded", _CUDA))
    if not python:
        found.append(
            Absent(
                "python_function",
                "Python functions were not recorded",
                "torch.profiler.profile(with_stack=True)",
            )
        )
    if not memory:
        found.append(
            Absent(
                "memory_event",
                "allocations were not recorded",
                "torch.profiler.profile(profile_memory=True)",
            )
        )
    if gpu and not sync:
        found.append(
            Absent(
                "sync",
                "what synchronisations waited for was not recorded",
                "torch.profiler.profile(experimental_config="
                "torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))",
            )
        )
    if distributed and not collectives:
        found.append(
            Absent(
                "collective",
                "this version of PyTorch does not describe communication kernels",
                "capture with PyTorch 2.2 or newer and the NCCL backend",
            )
        )
    if gpu:
        found.append(
            Absent(
                "gpu_op",
                "the PyTorch profiler only records the sum of static and dynamic shared memory, "
                "which stands in dynamic_shared_bytes",
                "nsys profile --trace=cuda",
            )
        )
    return [
        *found,
        Absent(
            "api_call",
            "the PyTorch profiler does not record calls of the operating system",
            "nsys profile --trace=cuda,nvtx,osrt",
        ),
        *_NEVER,
    ]
