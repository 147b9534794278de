"""Neighbouring pointwise kernels and reductions that a compiler would make one of."""

from __future__ import annotations

from typing import Final

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.frameworks import is_jax
from stepscope.diagnosis.lever import Found, Lever, of_lever
from stepscope.kernels.runs import short_runs
from stepscope.trace.frame import BoolArray

_ID: Final = "compile"
_ACHIEVED: Final = Figure(
    "achieved_bytes_per_s",
    "bytes_per_s",
    "SELECT sum(moved_bytes) * 1e9 / sum(end_ns - start_ns) FROM kernel_category "
    f"WHERE moved_bytes IS NOT NULL AND {of_lever(_ID)} AND {{gpu}}",
)
_UNKNOWN: Final = " (unknown: the capture does not tell what they move)"


def find(case: Case, taken: BoolArray) -> Found | None:
    """Runs of kernels that wait for memory, launched one after the other by one thread."""
    kernels = case.explanation.kernels
    if is_jax(case.explanation.gpu):
        return None  # XLA has merged what it could
    repair = short_runs(kernels, taken)
    if repair is None:
        return None
    # the time of a pass is read from the kernels themselves; how many bytes that is may be unknown
    known = bool((kernels.moved_bytes[repair.rows] > 0).any())
    return Found(
        repair=repair,
        message=(
            "{kernels_per_step} pointwise kernels, reductions and normalisations per step stand "
            "next to each other and take {kernels_ns_per_step}; merged, what one hands to the "
            "next need not go through memory, which leaves some {changed_ns_per_step} at the "
            "bandwidth that they achieve" + ("" if known else _UNKNOWN)
        ),
        recommendations=[
            "torch.compile(model); begin with the part of the model that holds most of them",
            "torch.compile only the function that spells an operation out, where the whole model "
            "does not compile",
        ],
        figures=[_ACHIEVED] if known else [],
        next_capture=None if len(kernels.attribution.operators) else captures.STACKS,
    )


LEVER = Lever(
    id=_ID,
    title="Compile",
    definition=(
        "Pointwise operations, casts, reductions and normalisations that follow one another each "
        "read their input from memory and write their result to it. A compiler makes one kernel "
        "of a run of them, which keeps what lies between on the chip."
    ),
    differential=(
        "the cause fusion_opportunity is about long chains that make up a tenth of the step: a "
        "function spelled out in primitives. These are the short runs that every model has; beside "
        "that finding they are told where all of them gain a quarter more than it does."
    ),
    prediction=(
        "each run as one kernel: the tensors that enter and leave it, at the speed at which the "
        "fastest of its kernels moves them here, or its arithmetic, whichever takes longer; "
        "reductions over columns stay kernels and take 0.6 of their time. The range goes from the "
        "fewest passes and a well used pipe to twice the passes. GEMMs are left as they are"
    ),
    reference="PyTorch: torch.compile; TorchInductor",
    find=find,
    refines=("memory_bound_kernels",),
    exceeds=("fusion_opportunity",),
    order=4,
)
