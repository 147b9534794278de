"""GEMMs whose sizes do not fit the grid of the tensor cores."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.lever import Found, Lever, changed, of_lever
from stepscope.kernels.kernels import Kernels
from stepscope.operators.roofline import OperatorGroup, operator_groups
from stepscope.trace.frame import BoolArray, IntArray

_ID: Final = "aligned_shapes"

GRID: Final = {"16bit": 8, "tf32": 4, "8bit": 16}
"""Elements that make 16 bytes: other sizes cannot be loaded in one access."""

REACHED: Final = 0.6
"""Share of the ceiling that GEMMs on the grid achieve, where the capture has none to compare with:
libraries achieve 50 to 80 %."""

_NAMED: Final = re.compile(r"_align[12](?!\d)")
"""cutlass's kernels for operands that are aligned to one or two elements."""
BY_NAME: Final = (0.3, 0.5, 0.85)
"""What such a kernel takes on the grid, as a share, where no shapes are recorded: least, usual,
most."""
_PADDED_TO = 64


@dataclass(frozen=True)
class _Gemm:
    """Calls of one operator with one set of shapes: their share of the ceiling, and the sizes."""

    group: OperatorGroup
    achieved: float
    sizes: tuple[int, int, int]


def find(case: Case, taken: BoolArray) -> Found | None:
    """By recorded shapes, else by the names of kernels for badly aligned operands."""
    kernels = case.explanation.kernels
    gemms = _gemms(kernels, case)
    if gemms:
        return _by_shape(kernels, gemms, taken)
    named = kernels.gpu.ops.matches("name", _NAMED) & kernels.in_category("matmul")
    rows = np.flatnonzero(named & kernels.steady & ~taken)
    if not len(rows) or len(kernels.attribution.operators):
        return None
    old = kernels.duration_ns[rows]
    total = float(old.sum())
    least, usual, most = BY_NAME
    return Found(
        repair=changed(rows, old, np.rint(old * usual), least * total, most * total),
        message=(
            "GEMMs take {kernels_ns_per_step} in kernels for operands that are not aligned; with "
            "sizes padded to the grid of the tensor cores they take some {changed_ns_per_step}"
        ),
        recommendations=[_PAD, "record the shapes, which tell the sizes"],
        next_capture=captures.STACKS,
    )


_PAD: Final = (
    "pad the odd size (vocabulary, head size, number of classes) to a multiple of 64, with weights "
    "that are never used: nn.Embedding(50304, ...) for 50257 tokens, resize_token_embeddings("
    "pad_to_multiple_of=64)"
)


def _by_shape(kernels: Kernels, gemms: list[_Gemm], taken: BoolArray) -> Found | None:
    rows: list[IntArray] = []
    new: list[IntArray] = []
    least = most = 0.0
    sizes: dict[str, int] = {}
    for gemm in gemms:
        grid = GRID.get(gemm.group.math, 0)
        odd = [size for size in gemm.sizes if grid and size % grid]
        if not odd or taken[gemm.group.rows].any():
            continue
        good = [
            (other.achieved, other.group.time_ns)
            for other in gemms
            if other.group.math == gemm.group.math and not any(size % grid for size in other.sizes)
        ]
        whole = sum(time for _, time in good)
        reached = sum(share * time for share, time in good) / whole if whole else REACHED
        padded = np.prod([ceil(size / _PADDED_TO) * _PADDED_TO for size in gemm.sizes])
        grown = float(padded / np.prod(gemm.sizes))
        factor = gemm.achieved * grown / reached
        if factor >= 1:
            continue
        old = kernels.duration_ns[gemm.group.rows]
        total = float(old.sum())
        rows.append(gemm.group.rows)
        new.append(np.rint(old * factor).astype(np.int64))
        least += total * max(factor * reached / max(_best(good), reached), 0.1)
        most += total * (1 + factor) / 2
        for size in odd:
            sizes[str(size)] = sizes.get(str(size), 0) + int(total * (1 - factor))
    if not rows:
        return None
    every = np.concatenate(rows)
    worst = sorted(sizes, key=lambda size: -sizes[size])[:3]
    texts = {"sizes": "', '".join(worst).join(("'", "'"))}
    return Found(
        repair=changed(every, kernels.duration_ns[every], np.concatenate(new), least, most),
        message=(
            "GEMMs with a size of {sizes}, which the tensor cores cannot load whole, take "
            "{kernels_ns_per_step} and achieve {achieved} of their ceiling; at the share that "
            "others achieve, some {changed_ns_per_step}"
        ),
        recommendations=[
            _PAD,
            "choose widths and batch sizes that are multiples of 8 (BF16, FP16), 16 (FP8) or 4 "
            "(TF32); multiples of 64 or 128 fill the tiles as well",
        ],
        figures=[
            Figure(
                "achieved",
                "share",
                "SELECT sum(least_ns)::DOUBLE / sum(end_ns - start_ns) FROM kernel_bound WHERE "
                f"{of_lever(_ID)} AND {{gpu}}",
            )
        ],
        texts=texts,
    )


def _best(good: list[tuple[float, int]]) -> float:
    return max((share for share, _ in good), default=0.8)


def _gemms(kernels: Kernels, case: Case) -> list[_Gemm]:
    """GEMMs whose shapes and arithmetic are known, and the device's ceilings."""
    if kernels.peaks is None or not kernels.bandwidth:
        return []
    groups, _ = operator_groups(kernels, case.device.read)
    found = []
    for (_, shapes, _), group in groups.items():
        peak = kernels.peaks.of(group.math)
        sizes = _sizes(shapes)
        if not peak or sizes is None or not group.work.moved_bytes:
            continue
        least = max(group.work.flop / peak, group.work.moved_bytes / kernels.bandwidth)
        achieved = min(least * group.calls / max(group.time_ns, 1) * 1e9, 1.0)
        found.append(_Gemm(group, achieved, sizes))
    return found


def _sizes(shapes: str) -> tuple[int, int, int] | None:
    """m, n and k of a GEMM of the last two operands; None where it is none."""
    try:
        matrices = [
            shape
            for shape in json.loads(shapes)
            if isinstance(shape, list) and len(shape) in (2, 3)
            and all(isinstance(size, int) and size > 0 for size in shape)
        ]  # fmt: skip
    except ValueError:
        return None
    if len(matrices) < 2:
        return None
    left, right = matrices[-2:]
    if left[-1] == right[-2]:
        return left[-2], right[-1], left[-1]
    if left[-1] == right[-1]:  # linear: the weight has its outputs first
        return left[-2], right[-2], left[-1]
    return None


LEVER = Lever(
    id=_ID,
    title="Aligned shapes",
    definition=(
        "Tensor cores load sixteen bytes at a time: eight elements in half precision. A GEMM with "
        "a size that is no multiple of them (a vocabulary of 50257, 10 classes, an odd batch) "
        "takes kernels that load element by element."
    ),
    differential=(
        "the cause inefficient_kernel is a GEMM far below its ceiling for whatever reason. "
        "Sizes off the grid that cost nothing are not named."
    ),
    prediction=(
        "the padded work at the share of the ceiling that GEMMs on the grid achieve in the same "
        "capture (60 % where there is none); from what the best of them achieves to half of the "
        "gain. Without shapes, half the time of cutlass's kernels for unaligned operands"
    ),
    reference="NVIDIA: matrix multiplication background, requirements of tensor cores",
    find=find,
    order=6,
    claims=False,
)
