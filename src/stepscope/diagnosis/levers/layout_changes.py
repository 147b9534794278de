"""Kernels that reorder the channels of images before and after convolutions."""

from __future__ import annotations

from typing import Final

from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.lever import Found, Lever
from stepscope.kernels.layouts import channels_last
from stepscope.trace.frame import BoolArray

_ID: Final = "layout_changes"


def find(case: Case, taken: BoolArray) -> Found | None:
    """Transposes between NCHW and NHWC that cuDNN or MIOpen puts around convolutions."""
    kernels = case.explanation.kernels
    found = channels_last(kernels, kernels.gpu.is_compute & kernels.steady & ~taken)
    if found is None:
        return None
    return Found(
        repair=found,
        message=(
            "{kernels_per_step} kernels per step only reorder tensors between the layout of the "
            "model (channels first) and that of the convolutions (channels last); they take "
            "{kernels_ns_per_step}"
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
        "the step without these kernels; the range's upper end keeps a third of them. That "
        "normalisation and pooling gain as well with channels last is not counted"
    ),
    reference="PyTorch: channels last memory format; NVIDIA: tensor layouts in memory",
    find=find,
    order=2,
)
