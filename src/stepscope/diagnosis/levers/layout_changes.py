"""Kernels that reorder the channels of images before and after convolutions."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.lever import Found, Lever, changed
from stepscope.kernels.kernels import LAYOUT_CHANGE
from stepscope.trace.frame import BoolArray

_ID: Final = "layout_changes"
STAYS: Final = (0.0, 0.0, 0.3)
"""Share of these kernels that stays, least, usual and most: the first convolution's input, and
operators that have no other order."""
NORMS: Final = (0.3, 0.58, 0.8)
"""What batch normalisation takes with channels last, over what it takes with channels first: 0.23
to 0.72 in thirteen runs of seven networks, half precision and single (H200, PyTorch 2.11)."""
DEPTHWISE: Final = (0.15, 0.3, 0.6)
"""The same of depthwise convolutions in the framework's own kernels (0.14 to 0.35 in four runs)."""

_NORM_FIRST: Final = re.compile(
    r"batch_norm_(backward|collect_statistics|transform_input)_kernel|bn_(bw|fw_tr|fw_inf)_1C11"
)
_DEPTHWISE_FIRST: Final = re.compile(r"conv_depthwise2d_(forward|backward|grad_weight)_kernel")


def find(case: Case, taken: BoolArray) -> Found | None:
    """Transposes between NCHW and NHWC that cuDNN or MIOpen puts around convolutions.

    With them what is slower with channels first: batch normalisation, depthwise convolutions.
    """
    kernels = case.explanation.kernels
    ops = kernels.gpu.ops
    free = kernels.gpu.is_compute & kernels.steady & ~taken
    reorders = free & ops.matches("name", LAYOUT_CHANGE)
    if not reorders.any():
        return None
    norms = free & ops.matches("name", _NORM_FIRST)
    depthwise = free & ops.matches("name", _DEPTHWISE_FIRST)
    rows = np.flatnonzero(reorders | norms | depthwise)
    old = kernels.duration_ns[rows]
    least, new, most = (
        np.rint(old * np.select([norms[rows], depthwise[rows]], (norm, alone), stay))
        for stay, norm, alone in zip(STAYS, NORMS, DEPTHWISE, strict=True)
    )
    return Found(
        repair=changed(rows, old, new.astype(np.int64), float(least.sum()), float(most.sum())),
        message=(
            "{kernels_per_step} kernels per step reorder tensors between the layout of the model "
            "(channels first) and that of the convolutions (channels last), or normalise and "
            "convolve single channels where that layout is slow; they take {kernels_ns_per_step}, "
            "with channels last some {changed_ns_per_step}"
        ),
        recommendations=[
            "model = model.to(memory_format=torch.channels_last), and the images: "
            "images.to(device, memory_format=torch.channels_last)",
            "with that, keep every operator between convolutions in it: no .view or .permute that "
            "brings channels first back",
        ],
    )


LEVER = Lever(
    id=_ID,
    title="Layout changes",
    definition=(
        "Tensor cores convolve with channels last. A model whose tensors have channels first pays "
        "a transpose before and after each convolution."
    ),
    differential=(
        "casts_and_copies is about copies that change no layout of images. Padding of few input "
        "channels (nhwcAddPadding) stays with channels last as well."
    ),
    prediction=(
        "the step without the kernels that reorder, and with batch normalisation and depthwise "
        "convolutions as long as they were measured to take with channels last; the range's upper "
        "end keeps a third of the former. That convolutions and pooling gain as well is not counted"
    ),
    reference="PyTorch: channels last memory format; NVIDIA: tensor layouts in memory",
    find=find,
    order=2,
)
