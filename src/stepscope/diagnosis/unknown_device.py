"""Products in single precision on a GPU of unknown tensor cores: said, not predicted."""

from __future__ import annotations

from typing import Final

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS, STEP_SQL
from stepscope.diagnosis.frameworks import is_torch
from stepscope.diagnosis.warned import Warned
from stepscope.kernels.convolutions import SHARE, is_convolution
from stepscope.kernels.kernels import MATH_NAMES
from stepscope.kernels.vendors import measures_ceilings

_LEAST: Final = 0.05 / (1 - SHARE["tf32"]["high"])
"""Share of the step from which on such products would be a finding on a device with tensor cores:
at least so much of them would be saved that it is a twentieth of the step."""

_WITH_TENSOR_CORES: Final = 7
"""Compute capability, major, from which on GPUs have tensor cores (Volta)."""


def single_precision_warning(case: Case) -> Warned | None:
    """What these products take, and what would tell more; None where they take too little."""
    kernels = case.explanation.kernels
    if kernels.peaks is not None or not measures_ceilings(kernels.vendor):
        return None
    table = case.device.read("device", "device", "compute_major")
    major = table["compute_major"][table["device"] == case.explanation.gpu.device]
    if ((major > 0) & (major < _WITH_TENSOR_CORES)).any():
        return None
    mine = kernels.in_category("matmul") | is_convolution(kernels)
    mine &= kernels.steady & (kernels.math == MATH_NAMES.index("fp32"))
    steps = case.explanation.n_steady
    if int(kernels.duration_ns[mine].sum()) < _LEAST * case.step_ns * steps:
        return None
    time = (
        f"SELECT sum(end_ns - start_ns) / {STEADY_STEPS} FROM kernel_category "
        "WHERE steady AND math = 'fp32' AND {gpu}"
    )
    named = kernels.device[0]
    unknown = "the rates of this GPU are not known here" if named else "no GPU is named in it"
    how = " (torch.set_float32_matmul_precision) or autocast" if is_torch(case) else " or a cast"
    return Warned(
        "products in single precision on the CUDA cores take {single_precision_ns_per_step} per "
        "step ({single_precision_of_step} of it); whether tensor cores would take less, the "
        f"capture does not tell: {unknown}. Where the GPU has them, TF32{how} to 16 bits takes a "
        "fraction of it; "
        "stepscope ceilings -o FILE on that machine, then --ceilings FILE, predicts it",
        [
            Figure("single_precision_ns_per_step", "ns_per_step", time),
            Figure(
                "single_precision_of_step", "share", f"SELECT round(({time}) / ({STEP_SQL}), 4)"
            ),
        ],
    )
