"""Masks of fused attention, by the kernels that convert them in each call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.kernels.test_merging import GEMM, STEPS, Device, pointwise
from tests.support.build import AUTOGRAD

from stepscope.kernels.fused_attention import CAUSAL, UNMASKED, share_of_masked
from stepscope.kernels.masks import EACH, FOR_ALL, KEYS, GivenMask, given_mask

POSITIONS, SAMPLES, HEAD = 1000, 8, 64
AHEAD, BACK = (f"cudnn_generated_fort_native_sdpa_sm90_flash_{way}prop_wgmma_f16" for way in "fb")
SUMS = f"void cudnn::fusion::compute_dot_do_o_specialized<true, {HEAD}>(void const*)"
CUTLASS = "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)"
WHERE, CAST = pointwise("where", 3), pointwise("bfloat16_copy", 2)
IN_BLOCK = 1024  # elements of a block of either


def attention(
    folder: Path,
    before: list[tuple[str, int]],
    kernel: str = AHEAD,
    *,
    bare: int = 0,
    instead: str = CAUSAL,
) -> tuple[GivenMask | None, float]:
    """Steps of two layers, forward and backward, and what attention takes of masked.

    Args:
        folder: where the trace is written.
        before: kernels ahead of the attention, and the elements that each makes.
        kernel: the attention.
        bare: layers without a mask that come first.
        instead: the mask that it has then.
    """
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for layer in range(bare + 2):
            device.kernel(GEMM)
            for name, elements in before if layer >= bare else []:
                device.kernel(name, 10.0, blocks=-(-elements // IN_BLOCK))
            of_cutlass = -(-POSITIONS // 64)
            device.kernel(kernel, blocks=of_cutlass if kernel == CUTLASS else 132)
        for _ in range(bare + 2):
            if kernel == AHEAD:
                # 1024 elements of a head in a block
                blocks = -(-POSITIONS * HEAD // 1024)
                device.kernel(SUMS, thread=AUTOGRAD, blocks=blocks, rows=SAMPLES)
                device.kernel(BACK, 300.0, thread=AUTOGRAD)
            device.kernel(GEMM, thread=AUTOGRAD)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(folder)
    sizes = np.array([float(POSITIONS)]), np.array([float(HEAD)])
    share = share_of_masked(kernels, *sizes, instead)
    return given_mask(kernels, kernels.steady), float(share[0])


@pytest.mark.parametrize("bare", [0, 1])
@pytest.mark.parametrize(
    ("converts", "elements", "kind"),
    [
        (WHERE, POSITIONS**2, FOR_ALL),
        (CAST, POSITIONS**2, FOR_ALL),
        (WHERE, SAMPLES * POSITIONS**2, EACH),
        (WHERE, SAMPLES * POSITIONS, KEYS),
    ],
)
def test_a_mask_is_told_by_what_converts_it(
    converts: str, elements: int, kind: int, bare: int, tmp_path: Path
) -> None:
    """The backward kernels are those of the masked layers, in reverse; the conversion goes."""
    instead = UNMASKED if kind == KEYS else CAUSAL
    masked, share = attention(tmp_path, [(converts, elements)], bare=bare, instead=instead)
    assert masked is not None
    # those of keys are known up to whole blocks
    assert POSITIONS <= masked.positions <= POSITIONS + 16
    assert masked.kind == kind
    repair = masked.repair
    layers = len(repair.rows) // 3
    assert int(repair.old_ns.sum()) == layers * (10 + 100 + 300) * 1000
    assert repair.new_ns.sum() == pytest.approx(layers * share * 400_000, rel=1e-3)
    assert repair.high_ns == repair.old_ns.sum()  # it may not be causal
    assert 0.3 < share < 0.7


@pytest.mark.parametrize(
    "before",
    [
        [],
        [(CAST, 2 * POSITIONS**2)],  # of something else
        [(WHERE, POSITIONS**2), (pointwise("mul", 2), POSITIONS**2)],  # of something before it
    ],
)
def test_what_is_no_mask_of_positions(before: list[tuple[str, int]], tmp_path: Path) -> None:
    assert attention(tmp_path, before)[0] is None


def test_kernels_of_cutlass_tell_their_blocks_of_positions(tmp_path: Path) -> None:
    masked, _ = attention(tmp_path, [(WHERE, POSITIONS**2)], CUTLASS)
    assert masked is not None
    assert (masked.positions, masked.kind) == (POSITIONS, FOR_ALL)
