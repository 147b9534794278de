"""One kernel takes far longer than its work requires."""

from __future__ import annotations

import re
from typing import Final

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure
from stepscope.diagnosis.inside_kernels import detection, saved_time_sql
from stepscope.kernels.efficiency import Reason

_ID = "inefficient_kernel"
_BLOCK_A_CHANNEL = re.compile(r"batch_norm_(?:collect_statistics|backward)_kernel\b")
"""PyTorch's batch normalisation with channels first: a block for each channel."""
_CHANNELS_LAST: Final = (
    "convolve with channels last (model.to(memory_format=torch.channels_last), and the images "
    "alike): this kernel has one block for each channel, those for channels last have many"
)
PAD: Final = (
    "pad the odd size (vocabulary, head size, number of classes) to a multiple of 64, with weights "
    "that are never used: nn.Embedding(50304, ...) for 50257 tokens, resize_token_embeddings("
    "pad_to_multiple_of=64)"
)
_BY_REASON: Final[dict[Reason, tuple[str, str]]] = {
    "shape": (
        "it takes {kernels_ns_per_step} per step, many times what its shape requires",
        "pad dimensions to multiples of eight (sixteen for FP8), and avoid tall, thin shapes",
    ),
    "grid": (
        "its grid has {median_blocks} blocks, far fewer than the device has SMs, so most of the "
        "device stands idle while it runs",
        "give it more to do at once: larger batches, or dimensions that are split into more blocks",
    ),
    "small": (
        "it multiplies large batches of tiny matrices, of which its tile is mostly padding",
        "multiply element by element and sum: (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2) instead "
        "of a @ b, in a function that torch.compile makes one kernel of",
    ),
    "rows": (
        "it is the gradient of indexing, table[index], in which one warp adds up all that belongs "
        "to a row: the same rows are indexed again and again, and it takes {kernels_ns_per_step} "
        "per step",
        "index by torch.nn.functional.embedding(index, table), whose gradient many warps sum, or "
        "by index_select or gather; for a table of few rows, multiply a one-hot matrix with it",
    ),
    "unaligned": (
        "it is made for operands that are not aligned to sixteen bytes, which the tensor cores "
        "cannot load whole; GEMMs in such kernels take {kernels_ns_per_step} per step",
        PAD,
    ),
}
"""What a kernel is said to do, and what to try first, by what tells."""


def detect(case: Case) -> Detection | None:
    """A kernel far below its ceiling, with hardly any blocks, or known to do its work slowly."""
    found = case.explanation.inside_kernels.inefficient
    if found is None:
        return None
    # for the regular expression that ncu takes; nothing of the trace may reach a shell
    plain = re.split(r"[^A-Za-z0-9_]", found.label)[0] or "KERNEL"
    does, first = _BY_REASON[found.reason]
    if found.reason == "grid" and _BLOCK_A_CHANNEL.search(plain):
        first = _CHANNELS_LAST
    return detection(
        case,
        _ID,
        found.repair,
        message=f"the kernel {{kernel}} is far below what the device can do: {does}",
        texts={"kernel": plain},
        recommendations=[
            first,
            "examine it with the command of the next capture: the limiter is in its first section",
            "try another implementation: torch.compile(mode='max-autotune'), "
            "torch.backends.cudnn.benchmark = True, or a newer library",
        ],
        figures=[
            Figure(
                "median_blocks",
                "count",
                "SELECT coalesce(median(blocks), 0)::BIGINT FROM kernel_category WHERE gpu_op_id "
                f"IN (SELECT gpu_op_id FROM kernel_repair WHERE cause = '{_ID}' AND {{gpu}}) "
                "AND {gpu}",
            ),
        ],
        next_capture=f"ncu --set full -k regex:{plain} -c 5 -o kernel python train.py",
    )


CAUSE = Cause(
    id=_ID,
    title="Inefficient kernel",
    definition=(
        "One kernel takes a noticeable part of the step and reaches a small part of what its work "
        "allows: a GEMM whose shape gives a far shorter time at the device's peaks, a long "
        "kernel with fewer blocks than SMs (a softmax over a few long rows), GEMMs over large "
        "batches of tiny matrices or of operands that are not aligned, or the gradient of indexing "
        "whose rows are indexed again and again."
    ),
    differential=(
        "low_precision_unused is the wrong kind of cores, memory_bound_kernels the limit of the "
        "memory. Short kernels end before they fill the device and are not judged. Kernels that "
        "bring as many blocks as fit and keep them (cuBLAS, fused attention) are not judged by "
        "their grid."
    ),
    prediction=(
        "the step with the kernel at half of its ceiling, or with twice the time that its blocks "
        "would need if they filled the device. Batched products of tiny matrices: two passes over "
        "memory, in which elementwise kernels multiply and sum. Gradients of indexing: three "
        "passes over them. GEMMs of operands that are not aligned: as the lever aligned_shapes"
    ),
    reference="Williams et al., Roofline (CACM 2009); NVIDIA Nsight Compute documentation",
    min_share=0.10,
    time_sql=saved_time_sql(_ID),
    remedies=(
        "give GEMMs sizes that are multiples of 8 (16-bit types) or 16, and enough rows to fill"
        " the GPU",
        "examine it: `stepscope run --backend ncu --examine CAPTURE -- python train.py`",
        "try another implementation: torch.compile(mode='max-autotune'), "
        "torch.backends.cudnn.benchmark = True",
    ),
    detect=detect,
)
