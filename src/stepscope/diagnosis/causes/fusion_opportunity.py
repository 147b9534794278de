"""Long chains of elementwise kernels that a compiler would merge."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection
from stepscope.diagnosis.inside_kernels import detection, saved_time_sql

_ID = "fusion_opportunity"


def detect(case: Case) -> Detection | None:
    """Runs of elementwise kernels and reductions outside the optimizer and attention."""
    found = case.explanation.inside_kernels.chains
    if found is None:
        return None
    return detection(
        case,
        _ID,
        found.repair,
        message=(
            "long chains of elementwise kernels and reductions ({kernels_per_step} kernels a "
            "step, {kernels_ns_per_step}) read and write the same tensors again and again; merged, "
            "each chain would do so once"
        ),
        recommendations=[
            "torch.compile the model, or the function that spells the operation out",
            "use the library's own function where there is one: "
            "torch.nn.functional.rms_norm, gelu, silu, cross_entropy",
            "write the chain as one Triton kernel where the compiler does not merge it",
        ],
    )


CAUSE = Cause(
    id=_ID,
    title="Fusion opportunity",
    definition=(
        "A function of the model is spelled out in primitive operations (power, mean, square "
        "root, multiply, add ...), each a kernel of its own that moves whole tensors. A compiler "
        "merges such chains into one kernel."
    ),
    differential=(
        "unfused_optimizer and unfused_attention are chains with a repair of their own and are "
        "not counted here. The few elementwise kernels that a layer of a framework leaves "
        "(activation, residual, scale) are an ordinary mix. launch_bound waits for the host "
        "between such kernels."
    ),
    prediction=(
        "the step with each chain as long as its longest kernel; the range's upper end saves half "
        "of that"
    ),
    reference="PyTorch: torch.compile; TorchInductor",
    min_share=0.10,
    time_sql=saved_time_sql(_ID),
    detect=detect,
)
