"""GEMMs, convolutions and attention in a type that the tensor cores multiply slowly."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.lever import Found, Lever, changed, of_lever
from stepscope.kernels.view import MATH_NAMES, scaled
from stepscope.trace.frame import BoolArray

_ID: Final = "lower_precision"
LARGE_NS: Final = {"fp32": 20_000, "tf32": 20_000, "16bit": 100_000}
"""Shorter products end before the quicker type pays for its casts; FP8's scaling costs most."""

_SCALED: Final = {"tf32": ("16bit", 1.0), "16bit": ("8bit", 0.5), "fp32": ("16bit", 0.6)}
"""Type -> the next quicker one, and the part of the gain that the ratio of their peaks promises.
Libraries achieve the same share of the peak in half precision as in TF32; FP8 pays for scaling."""
BEST: Final = 1.25
"""The quicker type may achieve more of its peak, where its kernels are the better ones."""
_SINGLE_ATTENTION: Final = re.compile(r"fmha_cutlass[FB]_f32")
"""Fused attention in single precision: half precision has kernels of a newer design."""

_NAMES: Final = {"fp32": "FP32 on CUDA cores", "tf32": "TF32", "16bit": "BF16 or FP16",
                 "8bit": "FP8"}  # fmt: skip


def find(case: Case, taken: BoolArray) -> Found | None:
    """The type in which most time of large products is spent, and the next one."""
    kernels = case.explanation.kernels
    peaks = kernels.peaks
    if peaks is None:
        return None
    gemm = kernels.in_category("matmul", "convolution", "attention") & kernels.steady & ~taken

    single = kernels.gpu.ops.matches("name", _SINGLE_ATTENTION)

    def large(math: str) -> BoolArray:
        mine = gemm & (kernels.math == MATH_NAMES.index(math))
        if math == "tf32":
            mine |= gemm & single
        if math == "16bit":
            mine &= kernels.in_category("matmul")  # eight bits are for GEMMs
        found: BoolArray = mine & (kernels.duration_ns >= LARGE_NS[math])
        return found

    best: tuple[int, str] = (0, "")
    for math in _SCALED:
        mine = large(math)
        spent = int(kernels.duration_ns[mine].sum())
        if spent > best[0] and peaks.of(_SCALED[math][0]) > 1.2 * peaks.of(math) > 0:
            best = spent, math
    math = best[1]
    if not math:
        return None
    after, part = _SCALED[math]
    rows = np.flatnonzero(large(math))
    ratio = peaks.of(after) / peaks.of(math)
    usual = max(1 + (ratio - 1) * part, 1.0)
    least = 1 + (usual - 1) / 2
    old = kernels.duration_ns[rows]
    total = float(old.sum())
    eight = after == "8bit"
    dtype = "bfloat16" if peaks.bf16 else "float16"
    texts = {"before": _NAMES[math], "after": _NAMES[after]}
    return Found(
        repair=changed(
            rows, old, scaled(old, 1 / usual), total / max(usual, ratio * BEST), total / least
        ),
        message=(
            "large GEMMs and convolutions take {kernels_ns_per_step} a step in {before}; in "
            "{after} they take some {changed_ns_per_step}, where the model's accuracy bears it"
        ),
        recommendations=(
            [
                "train the linear layers in FP8: torchao.float8.convert_to_float8_training(model), "
                "or Transformer Engine's te.fp8_autocast; compile the model with it, so that the "
                "casts are merged",
                "leave the first and the last layer, and layers whose sizes are below some "
                "thousand, in half precision",
            ]
            if eight
            else [
                f"with torch.autocast('cuda', dtype=torch.{dtype}): around forward and loss, "
                "which halves the bytes of activations as well",
                "torch.set_float32_matmul_precision('high') where single precision must stay",
            ]
        ),
        figures=[
            Figure(
                "products_share",
                "share",
                "SELECT sum(own_ns)::DOUBLE / (SELECT sum(own_ns) FROM kernel_bound WHERE steady "
                "AND compute AND {gpu}) FROM kernel_bound WHERE "
                f"{of_lever(_ID)} AND {{gpu}}",
            )
        ],
        texts=texts,
    )


LEVER = Lever(
    id=_ID,
    title="Lower precision",
    definition=(
        "The tensor cores multiply half precision twice as fast as TF32, and FP8, where they have "
        "it, twice as fast as half precision. Whether the model's accuracy bears it only training "
        "tells."
    ),
    differential=(
        "the cause low_precision_unused is single precision without tensor cores, which is a "
        "finding. Short GEMMs gain nothing and are not counted."
    ),
    prediction=(
        "the time of the products over the ratio of the peaks, from TF32 to half precision; half "
        "of that gain from half precision to FP8. The range goes from half of the gain to a "
        "quarter more than the ratio"
    ),
    reference="NVIDIA datasheets in kernels/ceilings.py; PyTorch: torchao.float8",
    find=find,
    instead=("low_precision_unused",),
    order=7,
    claims=False,
)
