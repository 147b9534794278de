"""What kernels for channels first take with channels last, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.kernels.test_merging import STEPS, Device
from tests.support.build import AUTOGRAD

from stepscope.kernels.kernels import Kernels, Repair
from stepscope.kernels.layouts import (
    FORWARD_IN_TRANSFORMS,
    IN_TRANSFORMS,
    LAST,
    LAST_PADDED,
    OF_FEW,
    OPERATORS,
    PERMUTED_BACKWARD,
    PERMUTED_FORWARD,
    STREAMED,
    STREAMED_SINGLE,
    channels_last,
)

THERE = "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half>(T1)"
BACK = "void cudnn::engines_precompiled::nhwcToNchwKernel<__half, __half>(T1)"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc"
GRADIENT = "sm90_xmma_{}grad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc"
LINEAR = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"
STATISTICS = "void at::native::batch_norm_collect_statistics_kernel<Var, c10::Half>(T1)"
APPLIED = "void at::native::batch_norm_transform_input_kernel<c10::Half, float>(T1)"
NORM_BACKWARD = "void at::native::batch_norm_backward_kernel<c10::Half, float>(T1)"
GROUP = "void at::native::elementwise_kernel<128, 2, GroupNormKernelImplInternal<float> >(T1)"
STREAM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<{}, float, int, 512, true, 1, true>(T1)"
SHUFFLED = (
    "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<direct_copy_kernel_cuda>>"
)
POOLED = "void at::native::max_pool_forward_nchw<c10::Half, int>(T1)"


def repaired(
    place: Path,
    forward: list[str],
    backward: tuple[str, ...] = (),
    *,
    blocks: int = 1000,
    images: int = 1000,
) -> tuple[Kernels, Repair | None]:
    """Steps of kernels of 100 us each; the repair of all of them."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for name in forward:
            device.kernel(name, blocks=blocks, rows=images if name == APPLIED else 1)
        for name in backward:
            device.kernel(name, thread=AUTOGRAD, blocks=blocks)
        device.build.range(begin, device.at, f"step_{number}")
    place.mkdir(exist_ok=True)
    kernels = device.kernels(place)
    return kernels, channels_last(kernels, kernels.gpu.is_compute & kernels.steady)


def parts(kernels: Kernels, repair: Repair | None, name: str) -> float:
    """Of their time, what kernels of a name take with channels last."""
    assert repair is not None
    mine = np.isin(repair.rows, np.flatnonzero(kernels.gpu.ops.equals("name", name)))
    assert mine.any()
    return float(repair.new_ns[mine].sum() / repair.old_ns[mine].sum())


LAYER = [THERE, THERE, CONVOLUTION, BACK]


def test_transposes_go_and_the_convolution_stays(tmp_path: Path) -> None:
    kernels, repair = repaired(tmp_path, [*LAYER, LINEAR])
    assert repair is not None
    assert repair.new_ns.sum() == 0
    assert repair.merged.all()
    assert len(repair.rows) == 3 * kernels.n_steady
    # the convolution's own preparation is before the first of them
    assert repair.leading is not None
    assert repair.leading.sum() == kernels.n_steady


def test_without_transposes_there_is_nothing_to_change(tmp_path: Path) -> None:
    assert repaired(tmp_path, [CONVOLUTION, STATISTICS, APPLIED, LINEAR])[1] is None


def test_operators_that_have_another_kernel(tmp_path: Path) -> None:
    kernels, repair = repaired(tmp_path, [*LAYER, POOLED, LINEAR])
    assert parts(kernels, repair, POOLED) == pytest.approx(OPERATORS["max_pool_forward_nchw"][1])


@pytest.mark.parametrize("channels", [1000, 65, 64, 32])
@pytest.mark.parametrize(("backward", "transforms"), [(False, FORWARD_IN_TRANSFORMS),
                                                      (True, IN_TRANSFORMS)])  # fmt: skip
def test_normalisation_takes_what_its_last_kernel_tells(
    tmp_path: Path, backward: bool, transforms: tuple[float, ...], channels: int
) -> None:
    # four or seven kernels, of which one uses the whole device
    forward = [*LAYER, *[STATISTICS] * 3, APPLIED, LINEAR]
    gradient = (NORM_BACKWARD,) * 3 if backward else ()
    kernels, repair = repaired(tmp_path, forward, gradient, blocks=channels)
    spent = 7 if backward else 4
    few = {64: OF_FEW[1][1], 32: OF_FEW[0][1]}.get(channels, 1.0)
    expected = min(few * transforms[1] / spent, 1.0)
    assert parts(kernels, repair, STATISTICS) == pytest.approx(expected, rel=1e-3)


def test_normalisation_of_few_large_images_counts_as_far_as_it_fills_the_device(
    tmp_path: Path,
) -> None:
    forward = [*LAYER, *[STATISTICS] * 3, APPLIED, LINEAR]
    kernels, repair = repaired(tmp_path, forward, blocks=100, images=2)
    # 100 channels of two volumes, in blocks of 128 threads, where 132 SMs want 1,024 each
    filled = 100 * 2 * 128 / (132 * 1024)
    expected = FORWARD_IN_TRANSFORMS[1] * filled / 4
    assert parts(kernels, repair, STATISTICS) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("kind", "shares"), [("__half", STREAMED), ("float", STREAMED_SINGLE)])
def test_a_block_for_each_channel_leaves_the_other_sms_idle(
    tmp_path: Path, kind: str, shares: tuple[float, ...]
) -> None:
    name = STREAM.format(kind)
    kernels, repair = repaired(tmp_path, [*LAYER, name, LINEAR], blocks=66)
    assert kernels.device[1] == 132
    assert parts(kernels, repair, name) == pytest.approx(shares[1] / 2, rel=1e-3)


def test_group_normalisation_keeps_its_transposes(tmp_path: Path) -> None:
    kernels, repair = repaired(tmp_path, [*LAYER, GROUP, *LAYER, LINEAR])
    assert parts(kernels, repair, THERE) == pytest.approx(0.5)


def test_a_convolution_that_ends_the_network_may_become_slow(tmp_path: Path) -> None:
    gradients = (GRADIENT.format("d"), GRADIENT.format("w"))
    kernels, repair = repaired(tmp_path / "end", [*LAYER, *LAYER], gradients)
    assert repair is not None
    assert parts(kernels, repair, CONVOLUTION) == LAST[1]
    assert repair.high_ns > repair.old_ns.sum()
    _, classified = repaired(tmp_path / "classes", [*LAYER, LINEAR], (LINEAR, *gradients))
    assert classified is not None
    assert classified.high_ns < classified.old_ns.sum()


def test_what_a_permutation_gives_between_convolutions_is_transposed_again(tmp_path: Path) -> None:
    backward = (GRADIENT.format("d"), SHUFFLED, GRADIENT.format("d"))
    kernels, repair = repaired(tmp_path, [*LAYER, SHUFFLED, *LAYER, LINEAR], (LINEAR, *backward))
    usual = (PERMUTED_FORWARD[1] + PERMUTED_BACKWARD[1]) / 2
    assert parts(kernels, repair, SHUFFLED) == pytest.approx(usual)


def test_other_copies_take_what_they_took(tmp_path: Path) -> None:
    # tokens of a transformer, and a contiguous tensor
    plain = SHUFFLED.replace("elementwise_kernel<128, 4", "vectorized_elementwise_kernel<8")
    forward = [*LAYER, SHUFFLED, LINEAR, SHUFFLED, *LAYER, plain, *LAYER, LINEAR]
    kernels, repair = repaired(tmp_path, forward)
    assert repair is not None
    copied = kernels.gpu.ops.equals("name", SHUFFLED) | kernels.gpu.ops.equals("name", plain)
    assert not copied[repair.rows].any()


@pytest.mark.parametrize(("channels", "share"), [(3, LAST_PADDED[1]), (4, LAST[1])])
def test_channels_that_are_padded_are_no_slower_at_the_end(
    tmp_path: Path, channels: int, share: float
) -> None:
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(THERE)
        device.operator("aten::cudnn_convolution", f"[[8,64,32,32],[{channels},64,3,3],[]]")
        device.kernel(CONVOLUTION)
        device.kernel(GRADIENT.format("d"), thread=AUTOGRAD)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    repair = channels_last(kernels, kernels.gpu.is_compute & kernels.steady)
    assert parts(kernels, repair, CONVOLUTION) == pytest.approx(share)
