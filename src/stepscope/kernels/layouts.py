"""What the kernels of a convolutional network take once its tensors have channels last.

Transposes around convolutions go. Convolutions themselves hardly change (1.02 times their time),
and elementwise operations do not; normalisation, pooling, upsampling and depthwise convolutions
have other kernels for that order: quicker ones, or slower ones. Measured on an H100 (PyTorch 2.11,
cuDNN 9; 8 sizes from 14 x 14 to 160 x 160 with 64 to 512 channels, in three types, and 8 up to
256 x 256 with 16 to 256 channels in two).
"""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np

from stepscope.kernels.kernels import LAYOUT_CHANGE, PHASES, SCATTERED_COPY, Kernels, Repair
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.shapes import shapes_of

STAYS: Final = (0.0, 0.0, 0.3)
"""Part of the transposes that stays (the first convolution's input, operators that have no other
order): least, usual, most, as in all that follows."""

OPERATORS: Final = {
    r"max_pool_forward_nchw": (1.1, 1.25, 1.7),
    r"max_pool_backward_nchw": (0.5, 0.6, 0.9),
    r"avg_pool2d_out_cuda_frame<": (1.7, 2.0, 2.05),
    r"upsample_nearest2d_out_frame<": (1.8, 2.2, 2.9),
    r"upsample_nearest2d_backward_out_frame<": (1.05, 1.6, 2.0),
    # channels side by side are so in every pixel
    r"CatArrayBatchedCopy": (1.0, 1.4, 1.8),
    r"upsample_bilinear2d_out_frame<": (0.2, 0.6, 1.0),
    # least where few positions become many: all of these add to the same few elements
    r"upsample_bilinear2d_backward_out_frame<": (0.15, 0.85, 0.9),
    r"conv_depthwise2d_(?:forward|backward|grad_weight)_kernel": (0.17, 0.2, 0.32),
    r"(?:conv2d|dgrad2d)_c1_k1_nchw": (0.45, 0.6, 1.0),
    r"wgrad2d_shmem_tiling": (0.23, 0.4, 0.8),
    # all of a channel lies in one block's registers
    r"bn_(?:fw_tr|bw)_1C11_singleread": (0.9, 1.2, 1.5),
}
"""Kernels for channels first: what those for channels last take, as parts of their time."""

_BIAS: Final = r"reduce_kernel<\(?(?:int\))?512, \(?(?:int\))?1,.*sum_functor"
BIAS: Final = (1.3, 1.65, 2.1)
"""The same of gradients of biases, sums over images and positions, in the backward pass."""

_STATISTICS: Final = r"batch_norm_(?:collect_statistics|backward)_kernel<"
_TRANSFORM: Final = r"batch_norm_transform_input_kernel<"
IN_TRANSFORMS: Final = (3.2, 4.0, 5.0)
"""Batch normalisation by PyTorch's own kernels takes so many times what the kernel takes that
applies it with channels first, which alone of them uses the whole device then (both passes). It has
a block for each channel and image: of few large ones (volumes) it counts as far as it fills the
device."""
_BUSY_THREADS: Final = 1024
"""Threads of an SM with which it waits for the memory and not for more threads; it holds 2,048."""
FORWARD_IN_TRANSFORMS: Final = (1.7, 2.0, 2.5)
"""The same of the forward pass alone."""
OF_FEW: Final = ((32, 1.6), (64, 1.15))
"""With up to so many channels, which fill no row of blocks, both take so many times as long: 5.7
and 7.4 times the kernel that applies it with 16 and 32, 3.9 to 5.2 times with 48 and 64."""

_STREAMED: Final = r"bn_(?:fw_tr|bw)_1C11_kernel"
_SINGLE: Final = r"1C11_kernel\w*<float"
STREAMED: Final = (0.2, 0.3, 0.45)
"""Batch normalisation of cuDNN that reads a channel in one block, by blocks for each SM: with
fewer channels than SMs most of the device is idle, with channels last none is."""
STREAMED_SINGLE: Final = (0.45, 0.6, 0.85)
"""The same in single precision, of which a block reads twice the bytes in the same time."""

_GROUPS: Final = r"GroupNormKernelImplInternal"

LAST: Final = (1.0, 2.0, 11.0)
"""The convolution that ends a network: it has few channels (an image, latents, a class each), for
which cuDNN has hardly a kernel that reads channels last. Of 18 such convolutions half took no
longer, transposes aside, and all of them twice as long on average; of four channels in half
precision the gradient of the weights took ten times as long."""

LAST_PADDED: Final = (1.0, 1.05, 2.0)
"""The same where shapes tell that its channels are no multiple of four, as the three of an image:
cuDNN pads them (``nhwcAddPadding``) and has the kernels of eight then. For each element that takes
as long with channels last as with channels first, in either pass (two programs, H100, BF16)."""
_PADDED: Final = 4

PERMUTED_FORWARD: Final = (1.0, 6.0, 7.5)
PERMUTED_BACKWARD: Final = (1.0, 4.0, 5.0)
"""Copies that reorder a tensor between two convolutions (pixels or channels are shuffled): what
they give has channels first whatever they read. They read or write across rows then, which takes
PyTorch's copies twice as long (150 against 300 thousand million elements a second in some twenty
programs on H100 and H200), and the convolution has its operand transposed by further such copies:
in the forward pass, and again in the backward pass, which transposes the saved one; and so is the
gradient that the copy's own backward pass gives. At least nothing changes: what is copied may be a
part of the channels."""
_OF_IMAGES: Final = 4
"""Dimensions of batches of images; a permutation of pixels or channels has more."""


def channels_last(kernels: Kernels, mine: BoolArray) -> Repair | None:
    """Kernels for channels first and transposes, and what they take with channels last.

    None where no transposes surround convolutions. Of the transposes those that group
    normalisation needs stay; others become copies where a permutation gives channels first.

    Args:
        kernels: the device's kernels.
        mine: operations that may be changed.
    """
    old = kernels.duration_ns.astype(np.float64)
    ops = kernels.gpu.ops
    transposes = mine & ops.matches("name", LAYOUT_CHANGE)
    if not transposes.any():
        return None
    share = np.ones((3, len(ops)))
    kept = min(1.0, _group_norms(kernels, mine))
    share[:, transposes] = (kept + (1 - kept) * np.array(STAYS))[:, None]
    for which, shares in _shares(kernels, mine & ~transposes):
        share[:, which] = shares
    rows = np.flatnonzero(transposes | (share != 1).any(axis=0))
    old, share = old[rows], share[:, rows]
    least, new, most = share * old
    # what is uncertain of one kernel is so of all of its name, and of those of one convolution
    code = np.where(_ends_with(kernels, mine)[rows], 0, ops["name"][rows] + 1)
    apart = [
        math.sqrt(float(np.sum(np.bincount(code, weights=ends - new) ** 2)))
        for ends in (least, most)
    ]
    total = float(new.sum())
    after = np.rint(new).astype(np.int64)
    return Repair(
        rows=rows,
        old_ns=kernels.duration_ns[rows],
        new_ns=after,
        merged=after == 0,
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=round(max(total - apart[0], 0.0)),
        high_ns=max(round(total + apart[1]), int(after.sum())),
        leading=_leading(kernels, mine)[rows],
    )


def _leading(kernels: Kernels, mine: BoolArray) -> BoolArray:
    """Transposes that come first in their convolution: what the host does before is its own."""
    order = kernels.order[mine[kernels.order]]
    transposes = kernels.gpu.ops.matches("name", LAYOUT_CHANGE)[order]
    beside = transposes | kernels.in_category("convolution")[order]
    found = np.zeros(len(mine), bool)
    found[order] = transposes & ~np.append(False, beside[:-1])
    return found


def _shares(kernels: Kernels, mine: BoolArray) -> list[tuple[BoolArray, AnyArray]]:
    """Rows of kernels for channels first, and the shares of their time with channels last."""
    ops = kernels.gpu.ops

    def named(pattern: str) -> BoolArray:
        found: BoolArray = mine & ops.matches("name", re.compile(pattern))
        return found

    found = [(named(pattern), np.array(ends)[:, None]) for pattern, ends in OPERATORS.items()]
    backward = kernels.phase == PHASES.index("backward")
    found.append((named(_BIAS) & backward, np.array(BIAS)[:, None]))
    streamed, single = named(_STREAMED), named(_SINGLE)
    filled = kernels.blocks / max(kernels.device[1], 1)
    for which, ends in ((streamed & ~single, STREAMED), (streamed & single, STREAMED_SINGLE)):
        known = which & (kernels.blocks > 0)
        # with more channels than SMs all of these are busy with channels first as well
        each = np.array(ends)[:, None] * np.minimum(filled[known], 1 / STREAMED_SINGLE[1])
        found.append((known, each))
    transforms, rest = named(_TRANSFORM), named(_STATISTICS)
    if transforms.any() and rest.any():
        own = transforms | rest
        both = bool((own & backward).any())
        passes = np.array(IN_TRANSFORMS if both else FORWARD_IN_TRANSFORMS)
        # those that gather statistics have a block for each channel
        longer = np.ones(len(ops))
        for channels, times in reversed(OF_FEW):
            longer[(kernels.blocks > 0) & (kernels.blocks <= channels)] = times
        duration = kernels.duration_ns
        at_once = max(kernels.device[1] * _BUSY_THREADS, 1)
        part_used = np.minimum(kernels.blocks * kernels.threads / at_once, 1.0)
        part_used[kernels.blocks <= 0] = 1.0
        whole = float(duration[own].sum())
        applied = float((duration * part_used)[transforms].sum())
        passes = passes * np.average(longer[rest], weights=duration[rest])
        found.append((own, np.minimum(passes * applied / whole, 1.0)[:, None]))
    permuted = _between_convolutions(kernels, named(SCATTERED_COPY.pattern))
    found.append((permuted & ~backward, np.array(PERMUTED_FORWARD)[:, None]))
    found.append((permuted & backward, np.array(PERMUTED_BACKWARD)[:, None]))
    at_end = _ends_with(kernels, mine)
    rows = np.flatnonzero(at_end)
    padded = np.zeros(len(ops), bool)
    padded[rows] = _output_channels(kernels, rows) % _PADDED > 0
    found.append((at_end & ~padded, np.array(LAST)[:, None]))
    found.append((padded, np.array(LAST_PADDED)[:, None]))
    return found


_WEIGHTS: Final = {
    "aten::cudnn_convolution": 1,
    "aten::miopen_convolution": 1,
    "aten::convolution_backward": 2,
}
"""Operators, and which of their shapes is that of the weights."""


def _output_channels(kernels: Kernels, rows: IntArray) -> IntArray:
    """Channels of what convolutions give, as shapes tell; 0 where none do."""
    table, operator = kernels.attribution.operators, kernels.attribution.operator
    found = np.zeros(len(rows), np.int64)
    if not len(table) or "input_shapes" not in table:
        return found
    for place, row in enumerate(operator[rows].tolist()):
        weights = _WEIGHTS.get(table.text("name", row)) if row >= 0 else None
        if weights is not None and table["input_shapes"][row] >= 0:
            shapes = shapes_of(table.text("input_shapes", row))
            found[place] = shapes[weights][0] if len(shapes) > weights and shapes[weights] else 0
    return found


_WORKS_ON_IMAGES: Final = (
    "convolution",
    "matmul",
    "attention",
    "normalisation",
    "softmax",
    "index",
)
"""Categories that tell what a copy between two of them is for: tokens, slices, or pixels."""


def _between_convolutions(kernels: Kernels, copies: BoolArray) -> BoolArray:
    """Those of some copies that stand between convolutions, apart from what is pointwise.

    Where shapes are recorded, those of more dimensions than images have.
    """
    table, operator = kernels.attribution.operators, kernels.attribution.operator
    if len(table) and "input_shapes" in table:
        dimensions = np.array(
            [max(map(len, shapes_of(text)), default=0) for text in table.texts["input_shapes"]]
            + [_OF_IMAGES + 1]
        )
        code = np.where(operator >= 0, table["input_shapes"][np.maximum(operator, 0)], -1)
        copies = copies & (dimensions[code] > _OF_IMAGES)
    works = kernels.gpu.is_compute & kernels.in_category(*_WORKS_ON_IMAGES)
    rows = kernels.order[works[kernels.order]]
    found = np.zeros(len(copies), bool)
    if not len(rows) or not copies.any():
        return found
    place = np.empty(len(copies), np.int64)
    place[kernels.order] = np.arange(len(copies))
    at = np.flatnonzero(copies)
    after = np.searchsorted(place[rows], place[at])
    inner = (after > 0) & (after < len(rows))
    at, after = at[inner], after[inner]
    convolves = kernels.in_category("convolution")[rows]
    found[at[convolves[after - 1] & convolves[after]]] = True
    return found


def _group_norms(kernels: Kernels, mine: BoolArray) -> float:
    """Group normalisations for each convolution of the forward pass.

    They have no kernel for channels last: their input is copied to channels first, and what they
    give has to be copied back for the next convolution.
    """
    forward = mine & (kernels.phase != PHASES.index("backward"))
    norms = forward & kernels.gpu.ops.matches("name", re.compile(_GROUPS))
    convolutions = forward & kernels.in_category("convolution")
    return int(norms.sum()) / max(int(convolutions.sum()), 1)


def _ends_with(kernels: Kernels, mine: BoolArray) -> BoolArray:
    """The convolution that ends the network, in both passes; none where something else does."""
    found = np.zeros(len(mine), bool)
    products = kernels.in_category("convolution", "matmul")
    products &= ~kernels.gpu.ops.matches("name", re.compile("init_device_workspace"))
    order = kernels.order[(mine & products)[kernels.order]]
    if not len(order):
        return found
    backward = kernels.phase[order] == PHASES.index("backward")
    convolution = kernels.in_category("convolution")[order]
    begins = np.flatnonzero(backward[1:] & ~backward[:-1]) + 1  # of the backward pass of each step
    begins = begins[convolution[begins - 1] & convolution[begins]]
    gradients = np.minimum(begins + 1, len(order) - 1)
    found[order[begins - 1]] = found[order[begins]] = True
    found[order[gradients[convolution[gradients]]]] = True
    return found
