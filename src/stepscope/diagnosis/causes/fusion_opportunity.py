"""Long chains of elementwise kernels that a compiler would merge."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, Further
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.diagnosis.inside_kernels import detection, saved_time_sql
from stepscope.diagnosis.predictions import WORTH_TELLING
from stepscope.kernels.findings import further_id
from stepscope.kernels.written_out import LARGEST
from stepscope.trace.frame import IntArray

_ID = "fusion_opportunity"
_SOFTMAX: Final = tuple(
    re.compile(pattern) for pattern in (LARGEST.pattern, r"exp_kernel", r"sum_functor")
)
"""What a softmax that is spelled out launches in turn, with one elementwise kernel between at most:
the largest of each row, taken from it, its exponential, and the sum of that."""
_IN_SOFTMAX: Final = 4
"""Kernels from the largest of a row to the sum of its exponentials, at most."""


def detect(case: Case) -> Detection | None:
    """Runs of elementwise kernels and reductions outside the optimizer and attention."""
    inside = case.explanation.inside_kernels
    found, repair = inside.chains, inside.compiled
    if found is None or repair is None:
        return None
    if case.explanation.kernels.per_step(found.repair.saved_ns) < CAUSE.least_ns(case):
        return None
    functions = _functions(case)
    named = " and ".join(functions)
    detected = detection(
        case,
        _ID,
        repair,
        message=(
            "long chains of elementwise kernels and reductions read and write the same tensors "
            "again and again; a compiler makes one kernel of each: {kernels_per_step} kernels per "
            "step, {kernels_ns_per_step}, then take some {repaired_ns_per_step}"
            + (f"; {{written_out_ns_per_step}} of that is {named} written out" * bool(functions))
        ),
        recommendations=[
            *([_ATTENTION] if _spells_softmax(case, repair.rows) else []),
            "torch.compile the function that spells the operation out, or the model, which merges "
            "the shorter runs of its kernels, too",
            _library(functions),
            "write the chain as one Triton kernel where the compiler does not merge it",
        ],
        figures=_WRITTEN_OUT if functions else None,
    )
    if not functions:
        return detected
    return replace(
        detected,
        further=Further(
            None, f"the library's own {named}", "each chain compiled", chosen_anyway=True
        ),
    )


def _functions(case: Case) -> tuple[str, ...]:
    """Functions of the library that are written out, where replacing them alone is worth it."""
    found = case.explanation.inside_kernels.written_out
    if found is None:
        return ()
    saved = case.explanation.kernels.per_step(found.repair.saved_ns)
    return found.names if saved >= WORTH_TELLING * case.step_ns else ()


def _library(functions: tuple[str, ...]) -> str:
    """Advice to use the library's functions, those that are written out by name."""
    if not functions:
        return (
            "use the library's own function where there is one: "
            "torch.nn.functional.rms_norm, gelu, silu, cross_entropy"
        )
    named = ", ".join(functions)
    return f"replace what is written out by the library's function: torch.nn.functional.{named}"


_FURTHER_ROWS: Final = f"FROM kernel_repair WHERE cause = '{further_id(_ID)}' AND {{gpu}}"
_WRITTEN_OUT: Final = [
    Figure(
        "written_out_ns_per_step",
        "ns_per_step",
        f"SELECT round(sum(end_ns - start_ns) / {STEADY_STEPS})::BIGINT {_FURTHER_ROWS}",
    ),
    Figure(
        "library_ns_per_step",
        "ns_per_step",
        f"SELECT round(sum(repaired_ns) / {STEADY_STEPS})::BIGINT {_FURTHER_ROWS}",
    ),
]
_ATTENTION = (
    "a softmax is among what is spelled out: torch.softmax; where it stands between two products, "
    "torch.nn.functional.scaled_dot_product_attention in place of all of it"
)


def _spells_softmax(case: Case, rows: IntArray) -> bool:
    """Whether the kernels of chains compute a softmax in each step."""
    kernels = case.explanation.kernels
    chained = np.zeros(len(kernels.gpu.ops), bool)
    chained[rows] = True
    order = kernels.order[chained[kernels.order]]
    name = kernels.gpu.ops["name"][order]
    order = order[np.diff(name, prepend=-1) != 0]  # large tensors take several launches each
    largest, exponential, total = (
        np.flatnonzero(kernels.gpu.ops.matches("name", pattern)[order]) for pattern in _SOFTMAX
    )
    begins = 0
    for at in largest.tolist():
        then = exponential[(exponential > at) & (exponential < at + _IN_SOFTMAX)]
        begins += len(then) > 0 and bool(((total > then[0]) & (total < at + _IN_SOFTMAX + 1)).any())
    return begins >= kernels.n_steady


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
        "compiled, with each shorter run as one kernel, too, to twice the passes. Beside it the "
        "step with PyTorch's functions in place of those that are written out "
        "(kernels/written_out.py), which takes no compiler"
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
