"""Images that are padded by kernels of their own before convolutions."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kernels.test_merging import STEPS, STRIDED, Device, pointwise
from tests.support.build import AUTOGRAD

from stepscope.kernels.padding import padded_apart

CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
GRADIENT = "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
FILL, CAST, ADD = (
    pointwise(name, n) for name, n in (("Fill", 1), ("bfloat16_copy", 2), ("add", 3))
)
# a block of the copy makes 512 elements, one of the fill 1024
PADDED, IMAGE = 1040, 2000


def pads(folder: Path, forward: list[str], backward: list[str], padded: int = PADDED) -> float:
    """Kernels a step that pad, in steps of two layers."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for names, thread in ((forward, 0), (backward, AUTOGRAD)):
            for name in names * 2:
                blocks = {FILL: padded, STRIDED: IMAGE, CAST: 1}.get(name, 1000)
                where = {"thread": thread} if thread else {}
                device.kernel(name, blocks=blocks, **where)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(folder)
    return len(padded_apart(kernels, kernels.steady)) / kernels.n_steady


@pytest.mark.parametrize(
    ("forward", "backward", "padded", "found"),
    [
        ([FILL, STRIDED, CAST, CAST, CONVOLUTION], [GRADIENT, STRIDED, ADD], PADDED, 6),
        # the gradients of weights and bias come between
        ([FILL, STRIDED, CONVOLUTION], [GRADIENT, ADD, ADD, STRIDED, ADD], PADDED, 6),
        # more copies behind than images were padded: which cut them is not known
        ([FILL, STRIDED, CONVOLUTION], [GRADIENT, STRIDED, STRIDED, ADD], PADDED, 4),
        # an image that is no larger than what is copied, or three times as large
        ([FILL, STRIDED, CONVOLUTION], [GRADIENT, STRIDED, ADD], IMAGE // 2, 0),
        ([FILL, STRIDED, CONVOLUTION], [GRADIENT, STRIDED, ADD], 3 * IMAGE // 2, 0),
        # no convolution near
        ([FILL, STRIDED, *[ADD] * 9], [ADD] * 3, PADDED, 0),
        ([STRIDED, CONVOLUTION], [GRADIENT, STRIDED, ADD], PADDED, 0),
    ],
)
def test_padding(
    forward: list[str], backward: list[str], padded: int, found: float, tmp_path: Path
) -> None:
    assert pads(tmp_path, forward, backward, padded) == found
