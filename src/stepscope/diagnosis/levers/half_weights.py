"""Weights in half precision instead of autocast: what lies between products becomes half, too."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.lever import Found, Lever
from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.kernels import MATH_NAMES, NOT_VECTORISED, WIDENS, Kernels, changed
from stepscope.kernels.written_out import HALF_CASTS
from stepscope.simulation.settings.autocast import in_losses
from stepscope.trace.frame import BoolArray

_ID: Final = "half_weights"
_SINGLE: Final = re.compile(
    r"(?:Binary|[AB]?Unary)Functor<float|CUDAFunctor\w*<float>|lambda\((?:bool, )?float[,)]"
    r"|FillFunctor<float>|(?:kernel|Kernel|Template)\w*<float|OptimizerTensorListMetadata.*<float"
)
"""Kernels that compute of operands in single precision, by the first type of a template."""
_BY_ELEMENT: Final = re.compile(NOT_VECTORISED)

SHARES: Final = (
    (("elementwise", "dropout"), 0.5),
    (("normalisation",), 0.8),
)
"""Time of kernels in half precision over single, by their category: 0.44 to 0.52 and 0.75 to 0.94
in six models with weights in BF16 instead of autocast (H200, PyTorch 2.11)."""
STRIDED: Final = 0.8
"""The same of elementwise kernels whose operands do not lie side by side."""
UPDATE: Final = 0.66
"""The same of the update, whose gradients and states are half as large, too (0.65 to 0.68)."""
_PARAMETERS: Final = re.compile(r"GammaBeta")
"""Gradients of a norm's parameters, which take as long."""
MOST_IN_HALF: Final = 0.8
"""Share of the time of products from which on they are in half precision."""
CASTS: Final = 0.5
"""Casts to half precision for each product of the forward pass from which on autocast makes them:
one for each weight, and one for an input that is not in half precision."""
STAY: Final = 0.5
"""Share of the casts that may stay: what the model casts by itself."""


def find(case: Case, taken: BoolArray) -> Found | None:
    """Casts, and kernels in single precision between products in half."""
    kernels = case.explanation.kernels
    if not _autocasts(kernels):
        return None
    mine = kernels.gpu.is_compute & kernels.steady & ~taken
    losses = in_losses(kernels)
    updates = kernels.in_phase("optimizer")
    either_way = kernels.of_operation(*HALF_CASTS) | kernels.gpu.ops.matches("name", WIDENS)
    casts, of_losses = (mine & either_way & where for where in (~losses, losses))
    single = mine & kernels.gpu.ops.matches("name", _SINGLE) & ~casts
    share = np.ones(len(casts))
    for categories, part in SHARES:
        share[single & kernels.in_category(*categories) & ~losses] = part
    strided = kernels.in_category("elementwise") & kernels.gpu.ops.matches("name", _BY_ELEMENT)
    share[single & strided & ~losses] = STRIDED
    share[kernels.gpu.ops.matches("name", _PARAMETERS)] = 1.0
    share[single & updates] = UPDATE
    share[casts & ~updates] = 0.0
    rows = np.flatnonzero(share < 1)
    old = kernels.duration_ns[rows]
    new = np.rint(old * share[rows])
    stays = np.where(share[rows] > 0, old, STAY * old)
    least = 0.9 * new.sum() - float(kernels.duration_ns[of_losses].sum())
    return Found(
        repair=changed(rows, old, new, max(least, 0.0), float(stays.sum())),
        message=(
            "{kernels_per_step} kernels a step cast between single and half precision, or compute "
            "in single precision between products in half, and take {kernels_ns_per_step}; with "
            "weights in half precision, and the update's states, some {changed_ns_per_step}"
        ),
        recommendations=[
            "load the weights in BF16 (model.to(torch.bfloat16)) and run without autocast"
            if case.explanation.workload.infers
            else "keep the weights in BF16 (model.to(torch.bfloat16)) and train without autocast: "
            "norms and residuals are then in half precision, too",
            "where the model's accuracy does not bear it, keep master weights in single precision "
            "for the update alone: FSDP's MixedPrecisionPolicy(param_dtype=torch.bfloat16), or an "
            "optimizer that has them or rounds stochastically",
        ],
        next_capture=None if len(kernels.attribution.operators) else captures.STACKS,
    )


def _autocasts(kernels: Kernels) -> bool:
    """Whether products are in half precision, and their operands cast for them in every step."""
    products = kernels.in_category(*PRODUCTS) & kernels.steady
    half = products & (kernels.math == MATH_NAMES.index("16bit"))
    spent = kernels.duration_ns
    if not half.any() or spent[half].sum() < MOST_IN_HALF * spent[products].sum():
        return False
    forward = half & kernels.in_phase("forward")
    casts = kernels.of_operation(*HALF_CASTS) & kernels.steady & kernels.in_phase("forward")
    return int(casts.sum()) >= CASTS * int(forward.sum())


LEVER = Lever(
    id=_ID,
    title="Weights in half precision",
    definition=(
        "Under autocast weights are in single precision and cast for each product, and norms and "
        "what is added to their results stay in single precision. With weights in half precision "
        "nothing is cast, and what lies between the products moves half of the bytes."
    ),
    differential=(
        "lower_precision and low_precision_unused are about the products themselves. "
        "casts_and_copies counts the casts without what is computed between them; compile merges "
        "both into fewer kernels."
    ),
    prediction=(
        "casts go, but for those of the loss; elementwise kernels in single precision take half of "
        "their time, norms and strided ones four fifths, the update two thirds. The range goes "
        "from half of the casts alone to all casts"
    ),
    reference="six models under autocast and with weights in BF16, by kernel (H200, PyTorch 2.11)",
    find=find,
    refines=("memory_bound_kernels", "fusion_opportunity"),
    order=3,
    claims=False,
)
