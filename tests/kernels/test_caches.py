"""Keys and values that are joined to earlier ones before attention."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kernels.test_merging import CONCATENATED, GEMM, STEPS, STRIDED, Device, pointwise
from tests.support.build import AUTOGRAD

from stepscope.kernels.caches import grown_caches
from stepscope.kernels.runs import compiled

ATTENTION = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_f16_knob_31_64x64x64_4x1x1"
MUL = pointwise("mul", 3)


def steps(layer: list[str], backward: list[str]) -> Device:
    """Steps of two layers; joining takes ten times as long as anything else."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for name in layer * 2:
            device.kernel(name, 1000.0 if name == CONCATENATED else 100.0)
        for name in backward:
            device.kernel(name, thread=AUTOGRAD)
        device.build.range(begin, device.at, f"step_{number}")
    return device


@pytest.mark.parametrize(
    ("layer", "backward", "found"),
    [
        ([GEMM, CONCATENATED, CONCATENATED, ATTENTION], [], 4),
        ([GEMM, CONCATENATED, STRIDED, CONCATENATED, STRIDED, ATTENTION], [], 4),  # repeated heads
        ([GEMM, CONCATENATED, MUL, ATTENTION], [], 0),  # halves of rotated queries
        ([GEMM, CONCATENATED, GEMM, ATTENTION], [], 0),
        ([GEMM, CONCATENATED, CONCATENATED, ATTENTION], [GEMM, GEMM], 0),  # training keeps none
    ],
)
def test_caches_that_grow(
    layer: list[str], backward: list[str], found: int, tmp_path: Path
) -> None:
    kernels = steps(layer, backward).kernels(tmp_path)
    grown = grown_caches(kernels)
    assert grown.sum() == found * kernels.n_steady
    assert not compiled(kernels)[grown].any()
