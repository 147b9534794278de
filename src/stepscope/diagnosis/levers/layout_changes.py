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
        # a compiler may make the others quicker instead
        claimed=found.rows[found.merged],
        message=(
            "{kernels_per_step} kernels per step reorder tensors between the layout of the model "
            "(channels first) and that of the convolutions (channels last), or are slower or "
            "quicker in the latter (normalisation, pooling); they take {kernels_ns_per_step}, and "
            "with channels last some {changed_ns_per_step}"
        ),
        recommendations=[
            "model = model.to(memory_format=torch.channels_last), and the images: "
            "images.to(device, memory_format=torch.channels_last)",
            "with that, keep every operator between convolutions in it: no .view, .permute or "
            "pixel_shuffle that brings channels first back, and batch rather than group "
            "normalisation, which has no kernel for channels last",
            "where the last convolution has few channels (an image, latents), compare both: it "
            "may take several times as long with channels last",
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
        "the step without the transposes, of which the range's upper end keeps a third, and group "
        "normalisations keep theirs; batch normalisation, pooling, upsampling, depthwise "
        "convolutions and gradients of biases at the part of their time that they were measured "
        "to take with channels last. Copies that reorder pixels or channels between convolutions "
        "(pixel_shuffle) give channels first in any case: they become slower, and what they give "
        "is transposed by further copies. Whether the convolution that ends a network is as quick "
        "then no capture tells: the upper end has it take ten times as long. The host goes on "
        "doing what leads to a convolution"
    ),
    reference="PyTorch: channels last memory format; NVIDIA: tensor layouts in memory",
    find=find,
    refines=("memory_bound_kernels", "inefficient_kernel", "fusion_opportunity"),
    order=2,
)
