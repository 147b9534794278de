"""GEMMs, convolutions and attention in a type that the tensor cores multiply slowly."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.lever import Found, Lever, of_lever, with_lengths
from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.efficiency import product_elements
from stepscope.kernels.kernels import MATH_NAMES, PHASES, Kernels, changed
from stepscope.kernels.precision import in_precision
from stepscope.kernels.small_products import small_products
from stepscope.simulation.settings.base import Facts
from stepscope.simulation.settings.precision import Precision, lengths
from stepscope.trace.frame import BoolArray, FloatArray, IntArray

_ID: Final = "lower_precision"
LARGE_NS: Final = {"fp32": 20_000, "tf32": 20_000, "16bit": 100_000}
"""Shorter GEMMs end before the quicker type pays for its casts; FP8's scaling costs most."""

_QUICKER: Final = {"tf32": "16bit", "16bit": "8bit", "fp32": "16bit"}
"""Type -> the next quicker one."""
LEAST: Final = {"16bit": 0.75, "8bit": 0.4}
"""Least part of the estimated gain, by the new type: in FP8 scaling may cost most of it."""
MOST: Final = 1.2
"""The most: tensors between the GEMMs are half as large as well, which is not counted."""
NEWER_ATTENTION: Final = 6.0
OLDER_ATTENTION: Final = 3.0
"""How many times faster attention is in half precision than CUTLASS's in single precision, where
newer kernels exist (5.6 backward to 8.7 forward on an H200, heads of 64, 512 positions), and where
the type alone is what changes."""
_CAST_BYTES: Final = 6  # four are read, two written
_SINGLE_ATTENTION: Final = re.compile(r"fmha_cutlass[FB]_f32")
"""Fused attention in single precision: half precision has kernels of a newer design."""

_NARROW_OPERANDS: Final = (
    "give attention its operands in half precision, as the GEMMs have theirs: cast queries and "
    "keys back behind what widens them (rotary angles or norms in float32), q.to(v.dtype)"
)
"""What to do where attention alone is in single precision."""

_NAMES: Final = {"fp32": "FP32 on CUDA cores", "tf32": "TF32", "16bit": "BF16 or FP16",
                 "8bit": "FP8"}  # fmt: skip


def find(case: Case, taken: BoolArray) -> Found | None:
    """The type in which most time of large GEMMs is spent, and the next one."""
    kernels = case.explanation.kernels
    peaks = kernels.peaks
    if peaks is None:
        return None
    gemm = kernels.in_category(*PRODUCTS) & kernels.steady & ~taken

    gemm &= ~small_products(kernels).found  # their tiles are mostly padding in any type
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
    for math in _QUICKER:
        mine = large(math)
        spent = int(kernels.duration_ns[mine].sum())
        if spent > best[0] and peaks.of(_QUICKER[math]) > 1.2 * peaks.of(math) > 0:
            best = spent, math
    math = best[1]
    if not math:
        return None
    after = _QUICKER[math]
    rows = np.flatnonzero(large(math))
    old = kernels.duration_ns[rows]
    new = in_precision(kernels, rows, after) + _casts_ns(kernels, rows, after)
    attention = kernels.in_category("attention")[rows]
    if math == "tf32":
        newer = NEWER_ATTENTION if peaks.eight else OLDER_ATTENTION
        new = np.where(attention, old / newer, new)
    new = np.minimum(new, old)
    gain = float((old - new).sum())
    total = float(old.sum())
    eight = after == "8bit"
    dtype = "bfloat16" if peaks.bf16 else "float16"
    texts = {"before": _NAMES[math], "after": _NAMES[after]}
    return Found(
        repair=changed(
            rows, old, np.rint(new), max(total - gain * MOST, 0.0), total - gain * LEAST[after]
        ),
        message=(
            "large GEMMs and convolutions take {kernels_ns_per_step} per step in {before}; in "
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
                *([_NARROW_OPERANDS] if attention.all() else []),
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


def replayed(found: Found, facts: Facts, taken: BoolArray) -> Found:
    """The same with all kernels that autocast to half precision changes."""
    if found.texts["after"] != _NAMES["16bit"]:
        return found
    kernels = facts.kernels
    peaks = kernels.peaks
    setting = Precision("bf16" if peaks is not None and peaks.bf16 else "fp16")
    rows = np.flatnonzero(kernels.steady & ~taken)
    return replace(
        with_lengths(
            found, kernels, rows, lambda bound: lengths(facts, setting.target, bound)[rows]
        ),
        message=(
            "GEMMs, convolutions and attention in {before}, and what goes through their results, "
            "take {kernels_ns_per_step} per step; under autocast to {after} they take some "
            "{changed_ns_per_step}, casts not counted, where the model's accuracy bears it"
        ),
        setting=setting,
    )


def _casts_ns(kernels: Kernels, rows: IntArray, after: str) -> FloatArray:
    """What the casts take that autocast adds to GEMMs in single precision, ns.

    In the forward pass to the GEMMs' operands, in the backward pass of their results; none where
    the shapes are not known, and none to FP8, whose scaling is in what it achieves.
    """
    elements = product_elements(kernels)
    backward = kernels.phase[rows] == PHASES.index("backward")
    each = np.where(backward, elements[1][rows], elements[0][rows])
    if after != "16bit" or not kernels.attainable_bandwidth:
        return np.zeros(len(rows))
    found: FloatArray = each * _CAST_BYTES / kernels.attainable_bandwidth * 1e9
    return found


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
        "half precision by the replay with the setting precision (autocast around forward pass and "
        "loss, its casts included). FP8, and of several ranks half precision, too: the GEMMs at "
        "what is achieved of both types' peaks, not beyond what shapes and memory allow, plus the "
        "casts of their operands and results; attention in single precision at what newer kernels "
        "gain. The range goes from three quarters of that gain (FP8: two fifths) to a fifth more"
    ),
    reference="NVIDIA datasheets in kernels/ceilings.py; PyTorch: torchao.float8",
    find=find,
    refines=("memory_bound_kernels",),
    instead=("low_precision_unused",),
    order=7,
    claims=False,
    replayed=replayed,
)
