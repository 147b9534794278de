"""The optimizer launches several small kernels for every parameter."""

from __future__ import annotations

from typing import Final

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.diagnosis.inside_kernels import detection, saved_time_sql

_ID = "unfused_optimizer"


def detect(case: Case) -> Detection | None:
    """A loop of elementwise kernels over the parameters, and the idle time between them."""
    found = case.explanation.inside_kernels.optimizer
    if found is None:
        return None
    symptoms = frozenset({("launch_bound", case.rank)} if found.behind_launch_bound else ())
    # what else is late may be late because of the loop: it is folded into this finding
    other = max(
        case.idle_ns("launch_bound") - found.repair.total_idle_ns / case.explanation.n_steady, 0
    )
    late = (
        f"SELECT round(sum(idle_ns) / {STEADY_STEPS})::BIGINT FROM kernel_repair "
        f"WHERE cause = '{_ID}' AND {{gpu}}"
    )
    does, instead, all_at_once, recommendations = _AVERAGES if found.averages else _UPDATES
    return detection(
        case,
        _ID,
        found.repair,
        message=(
            f"{does} one parameter after the other, with {{kernels_per_step}} small kernels per "
            f"step, which run for {{kernels_ns_per_step}} where {instead} would take "
            "{repaired_ns_per_step}, and keep the GPU waiting {late_launches_ns_per_step} for "
            f"launches; {all_at_once}"
        ),
        recommendations=list(recommendations),
        figures=[Figure("late_launches_ns_per_step", "ns_per_step", late)],
        uncertain_ns=other if symptoms else 0.0,
        absorbs=symptoms,
    )


_UPDATES: Final = (
    "the optimizer updates",
    "a fused update",
    "the prediction is for fused=True, its range reaches to foreach=True",
    (
        "use a fused optimizer: torch.optim.AdamW(model.parameters(), lr=..., fused=True)",
        "where there is no fused one, foreach=True updates many parameters in one kernel",
        "torch.compile the optimizer's step() where neither exists",
    ),
)
_AVERAGES: Final = (
    "an average of the weights (EMA) goes through",
    "one call for all of them",
    "the prediction is for a call that reads and writes each once",
    (
        "torch._foreach_lerp_(averages, weights, 1 - decay) instead of a loop over the parameters, "
        "or torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))",
        "average every few steps, with the decay raised to their number",
    ),
)
"""What goes through the parameters, what would take its place, what is predicted, the advice."""

CAUSE = Cause(
    id=_ID,
    title="Unfused optimizer",
    definition=(
        "The optimizer's step loops over the parameters and launches each operation of the update "
        "(multiply, lerp, addcmul, sqrt, divide, addcdiv) for each of them: thousands of kernels "
        "that read and write every tensor again, launched one by one. A fused optimizer does the "
        "whole update of many parameters in one kernel. Multi-tensor kernels (foreach) count as "
        "repaired. So does an average of the weights (EMA) go through them one by one."
    ),
    differential=(
        "launch_bound is the same waiting all over the step: where the rest of the step waits for "
        "launches as much, it stays first. fusion_opportunity is about chains of elementwise "
        "kernels in the model."
    ),
    prediction=(
        "the step without the loop's kernels, the launch-late idle time between them and the "
        "run-ahead that the host lost in it, plus a fused update: each tensor moved once, at the "
        "memory's speed (seven tenths of the peak at most). The upper end is what multi-tensor "
        "kernels (foreach) take"
    ),
    reference="PyTorch: torch.optim, the parameters fused and foreach",
    min_share=0.05,
    time_sql=saved_time_sql(_ID),
    remedies=(
        "torch.optim.AdamW(model.parameters(), lr=..., fused=True)",
        "where there is no fused one: foreach=True, or torch.compile the optimizer's step()",
    ),
    detect=detect,
)
