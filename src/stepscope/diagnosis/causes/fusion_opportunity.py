"""Long chains of elementwise kernels that a compiler would merge."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection
from stepscope.diagnosis.inside_kernels import detection, saved_time_sql

_ID = "fusion_opportunity"


def detect(case: Case) -> Detection | None:
    """Runs of elementwise kernels and reductions outside the optimizer and attention."""
    inside = case.explanation.inside_kernels
    found, repair = inside.chains, inside.compiled
    if found is None or repair is None:
        return None
    if case.explanation.kernels.per_step(found.repair.saved_ns) < CAUSE.least_ns(case):
        return None
    return detection(
        case,
        _ID,
        repair,
        message=(
            "long chains of elementwise kernels and reductions read and write the same tensors "
            "again and again; a compiler makes one kernel of each: {kernels_per_step} kernels per "
            "step, {kernels_ns_per_step}, then take some {repaired_ns_per_step}"
        ),
        recommendations=[
            "torch.compile the function that spells the operation out, or the model, which merges "
            "the shorter runs of its kernels, too",
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
        "the step with each chain as one kernel: the tensors that enter and leave it, at the speed "
        "at which its kernels move them, or its arithmetic, whichever takes longer; reductions "
        "over columns stay kernels (kernels/merging.py). The range goes from the whole model "
        "compiled, with each shorter run as one kernel, too, to twice the passes"
    ),
    reference="PyTorch: torch.compile; TorchInductor",
    min_share=0.10,
    time_sql=saved_time_sql(_ID),
    remedies=(
        "torch.compile the function that is spelled out, or the model",
        "use the library's function: torch.nn.functional.rms_norm, gelu, silu, cross_entropy",
    ),
    detect=detect,
)
