"""What to say of a trace that holds no GPU work, and what capture adds it."""

from __future__ import annotations

from typing import Final

from stepscope.activity.device import Reader
from stepscope.breakdown.without_gpu import WithoutGpu, without_gpu
from stepscope.trace.units import shown

_TRACING: Final = (
    "capture with CUDA tracing on (nsys profile -t cuda,nvtx, or ProfilerActivity.CUDA) while the "
    "GPU trains"
)
_CUPTI: Final = (
    "CUPTI lacks permission (ERR_NVGPUCTRPERM: run as root, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0), runs under WSL, or another profiler holds it; "
    "stepscope doctor tells which"
)
_ROCM: Final = "the tracer of ROCm did not deliver them, or another profiler holds it"
_LONGEST: Final = 60


def why_without_gpu(path: str, read: Reader, source: str) -> str:
    """One sentence: the trace, why it holds no GPU work as far as that shows, and what to do.

    Args:
        path: the trace.
        read: gives its tables.
        source: name of its importer.
    """
    known = without_gpu(read)
    if known.launches:
        return (
            f"{path} holds no GPU work: {known.launches} calls that launch kernels were recorded, "
            f"the kernels were not; {_ROCM if known.api == 'hip' else _CUPTI}"
        )
    if source == "kineto" and known.operators:
        return f"{path} holds no GPU work: {_on_the_cpu(known)}"
    if known.repeated:
        return f"{path} holds no GPU work; {_repeats(known)}; to see the GPU, {_TRACING}"
    return f"{path} holds no GPU work; {_TRACING}"


def _on_the_cpu(known: WithoutGpu) -> str:
    if known.devices:
        return (
            f"nothing ran on a GPU in this trace, although the machine has one "
            f"({known.devices[0]}); the model or its tensors are on the CPU (model.to('cuda'), "
            "tensor.to('cuda')), or ProfilerActivity.CUDA was off"
        )
    return (
        "nothing ran on a GPU in this trace; the model or its tensors are on the CPU, or "
        "ProfilerActivity.CUDA was off"
    )


def _repeats(known: WithoutGpu) -> str:
    parts = ", ".join(
        f"{_short(part.name)} ({shown(part.typical_ns, 'ns')})" for part in known.repeated
    )
    return (
        f"its ranges repeat {known.repeated[0].count} times, every "
        f"{shown(known.period_ns, 'ns')}: {parts}"
    )


def _short(name: str) -> str:
    return repr(name if len(name) <= _LONGEST else name[: _LONGEST - 3] + "...")
