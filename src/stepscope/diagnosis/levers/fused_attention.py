"""Attention that is not computed by the fastest kernel of the device."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.lever import Found, Lever
from stepscope.kernels.kernels import MATH_NAMES, changed, scaled
from stepscope.kernels.masks import EACH, FOR_ALL, KEYS, given_mask
from stepscope.trace.frame import BoolArray

_ID: Final = "fused_attention"
_OLDER: Final = re.compile(r"fmha_cutlass[FB]|flash(_fwd|_bwd)\w*_kernel.*(sm80|cutlass::half|bf)")
_HOPPER: Final = re.compile(r"\b(GH200|H[12]00|B[123]00|GB[23]00)\b")

NEWER: Final = (1.2, 1.5, 1.9)
"""How many times faster attention for Hopper (FlashAttention-3, cuDNN) is than kernels made for
Ampere, least, usual and most: 1.5 to 2.0 times in the forward and 1.5 to 1.75 in the backward pass
at long sequences (Shah et al., 2024); short sequences gain less."""

_CAUSAL: Final = (
    "where the mask is causal: scaled_dot_product_attention(q, k, v, is_causal=True) without "
    "attn_mask; in Hugging Face models no attention_mask where nothing is padded",
)
_MASKS: Final = {
    FOR_ALL: (
        "{0:,} x {0:,} that all samples and heads share",
        "hides later positions (causal) and says so instead, as half of the arithmetic goes",
        _CAUSAL,
    ),
    EACH: (
        "{0:,} x {0:,} for each sample",
        "hides later positions (causal) and padding behind them and says so instead, as half of "
        "the arithmetic goes",
        (*_CAUSAL, "padding behind all tokens needs no mask there: none of them looks at it"),
    ),
    KEYS: (
        "the {0:,} keys of each sample",
        "hides nothing, as no sample is padded, and is left out",
        (
            "give no mask where nothing is padded: batches of one length, windows of a fixed "
            "length, samples that are packed",
            "sort samples by length, so that batches need little padding, or pack them: nested "
            "tensors, or flash_attn_varlen_func with the samples' lengths",
        ),
    ),
}
"""Of each kind of mask what it is, when it can be spared, and how."""
_BLOCKS: Final = (
    "where it is needed (a window, documents in one sequence): flex_attention with a block mask, "
    "which leaves out what is masked"
)


def find(case: Case, taken: BoolArray) -> Found | None:
    """Attention written out that takes too little to be a finding, under a mask, or older."""
    kernels = case.explanation.kernels
    written = case.explanation.inside_kernels.attention
    if written is not None and not taken[written.repair.rows].any():
        return Found(
            repair=written.repair,
            message=(
                "attention runs as {kernels_per_step} separate kernels per step (GEMM, scale, "
                "mask, softmax, GEMM) that take {kernels_ns_per_step}; fused it takes some "
                "{changed_ns_per_step}"
            ),
            recommendations=[
                "torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=...) instead "
                "of the GEMMs, the mask and the softmax; is_causal=True and no mask where each "
                "token sees all earlier ones and no later one",
                "torch.nn.attention.flex_attention, compiled, for masks that it does not take",
            ],
            next_capture=None if len(kernels.attribution.operators) else captures.STACKS,
        )
    masked = given_mask(kernels, kernels.steady & ~taken)
    if masked is not None:
        of_what, where, advice = _MASKS[masked.kind]
        return Found(
            repair=masked.repair,
            message=(
                f"attention takes {{kernels_ns_per_step}} under a mask of "
                f"{of_what.format(masked.positions)}; where that mask only {where}, it takes some "
                "{changed_ns_per_step}"
            ),
            recommendations=[*advice, _BLOCKS],
        )
    if not _HOPPER.search(kernels.device[0]):
        return None
    older = kernels.gpu.ops.matches("name", _OLDER) & kernels.in_category("attention")
    older &= kernels.math == MATH_NAMES.index("16bit")  # no newer kernel takes other types
    rows = np.flatnonzero(older & kernels.steady & ~taken)
    if not len(rows):
        return None
    old = kernels.duration_ns[rows]
    total = int(old.sum())
    least, usual, most = NEWER
    return Found(
        repair=changed(rows, old, scaled(old, 1 / usual), total / most, total / least),
        message=(
            "attention takes {kernels_ns_per_step} in kernels that were made for an older GPU; "
            "those for this one take some {changed_ns_per_step}"
        ),
        recommendations=[
            "allow cuDNN's attention: torch.nn.attention.sdpa_kernel([SDPBackend.CUDNN_ATTENTION,"
            " SDPBackend.FLASH_ATTENTION])",
            "FlashAttention-3 (flash_attn_interface) for what cuDNN does not take",
        ],
    )


LEVER = Lever(
    id=_ID,
    title="Attention kernel",
    definition=(
        "Attention is computed by separate kernels with the scores in memory between them, or by "
        "a fused kernel that does not use what the device has: kernels made for Ampere (cutlass "
        "fmha, FlashAttention-2) achieve half of Hopper's rate. Or a mask is given as a tensor, "
        "whose half the kernels compute only to hide it."
    ),
    differential=(
        "the cause unfused_attention is attention written out that takes much of the step."
    ),
    prediction=(
        "written out: as the cause unfused_attention. An older kernel: what newer ones gain in "
        "published measurements. A mask for all heads alike (recorded shapes tell, or the kernel "
        "that converts it in each call): as many times quicker as causal attention is than masked, "
        "or attention without a mask where it is one of keys; whether the mask can go no capture "
        "tells, so that the range reaches today's step"
    ),
    reference="Dao et al., FlashAttention; Shah et al., FlashAttention-3 (NeurIPS 2024)",
    find=find,
    refines=("memory_bound_kernels",),
    instead=("unfused_attention",),
    order=1,
)
