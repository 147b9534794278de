"""GEMMs whose sizes do not fit the grid of the tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.causes.inefficient_kernel import PAD
from stepscope.diagnosis.frameworks import is_torch
from stepscope.diagnosis.lever import Found, Lever, of_lever
from stepscope.kernels.efficiency import product_work
from stepscope.kernels.kernels import MATH_NAMES, Kernels, changed
from stepscope.kernels.unaligned import NEWER, NEWER_BY_NAME, OLDER, unaligned
from stepscope.operators.roofline import OperatorGroup, operator_groups
from stepscope.trace.frame import BoolArray, FloatArray, IntArray
from stepscope.trace.shapes import shapes_of

_ID: Final = "aligned_shapes"

GRID: Final = {"16bit": 8, "tf32": 4, "8bit": 16}
"""Elements that make 16 bytes: other sizes cannot be loaded in one access."""

REACHED: Final = 0.6
"""Share of the ceiling that GEMMs on the grid achieve, where the capture has none to compare with:
libraries achieve 50 to 80 %."""

BEST: Final = 0.85
"""Share of the ceiling that no GEMM exceeds by much."""
_PADDED_TO = 64


@dataclass(frozen=True)
class _Gemm:
    """Calls of one operator with one set of shapes: their share of the ceiling, and the sizes."""

    group: OperatorGroup
    achieved: float
    sizes: tuple[int, int, int]


def find(case: Case, taken: BoolArray) -> Found | None:
    """By the names of kernels for badly aligned operands, else by recorded shapes."""
    kernels = case.explanation.kernels
    if kernels.capability >= NEWER and is_torch(case):
        return _by_name(case, taken, NEWER_BY_NAME)
    gemms = _gemms(kernels, case)
    if gemms:
        return _by_shape(kernels, gemms, taken)
    if len(kernels.attribution.operators):
        return None
    return _by_name(case, taken, OLDER)


def _by_name(
    case: Case, taken: BoolArray, shares: Mapping[tuple[str, int], tuple[float, ...]]
) -> Found | None:
    kernels = case.explanation.kernels
    odd = unaligned(kernels, shares)
    mine = odd.found & kernels.steady & ~taken
    rows = np.flatnonzero(mine)
    if not len(rows):
        return None
    old = kernels.duration_ns[rows]
    floor = np.minimum(_least_ns(kernels)[rows], old)
    least, new, most = (np.maximum(old * each, floor) for each in odd.share[:, rows])
    sizes = _odd_sizes(kernels, case, rows, old - new)
    of_sizes = "with a size of {sizes} " if sizes else ""
    return Found(
        repair=changed(rows, old, np.rint(new), float(least.sum()), float(most.sum())),
        message=(
            f"GEMMs {of_sizes}take {{kernels_ns_per_step}} in kernels for operands that are not "
            "aligned; with "
            "sizes padded to the grid of the tensor cores they take some {changed_ns_per_step}"
        ),
        recommendations=[
            PAD,
            *([] if sizes else ["record the shapes, which tell the sizes"]),
        ],
        texts={"sizes": sizes} if sizes else {},
        next_capture=None if sizes else captures.STACKS,
    )


def _odd_sizes(kernels: Kernels, case: Case, rows: IntArray, saved_ns: FloatArray) -> str:
    """Sizes off the grid of some GEMMs, those that cost most first; empty without shapes."""
    saved = np.zeros(len(kernels.gpu.ops))
    saved[rows] = saved_ns
    cost: dict[str, float] = {}
    for gemm in _gemms(kernels, case):
        grid = GRID.get(gemm.group.math, 0)
        for size in set(gemm.sizes):
            if grid and size % grid:
                cost[str(size)] = cost.get(str(size), 0.0) + float(saved[gemm.group.rows].sum())
    return _listed({size: cost[size] for size in cost if cost[size] > 0})


def _listed(cost: Mapping[str, float]) -> str:
    return "', '".join(sorted(cost, key=lambda size: -cost[size])[:3]).join(
        ("'", "'") if cost else ("", "")
    )


def _least_ns(kernels: Kernels) -> FloatArray:
    """The least that GEMMs of recorded shapes take, ns; 0 of others."""
    if kernels.peaks is None:
        return np.zeros(len(kernels.gpu.ops))
    flop, moved = product_work(kernels)
    peak = np.array([kernels.peaks.of(math) for math in MATH_NAMES] + [0.0])[kernels.math]
    arithmetic = np.where(peak > 0, flop / np.maximum(peak, 1.0) / BEST, 0.0)
    memory = moved / (kernels.attainable_bandwidth or np.inf)
    found: FloatArray = np.maximum(arithmetic, memory) * 1e9
    return found


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
    texts = {"sizes": _listed(sizes)}
    return Found(
        repair=changed(every, kernels.duration_ns[every], np.concatenate(new), least, most),
        message=(
            "GEMMs with a size of {sizes}, which the tensor cores cannot load whole, take "
            "{kernels_ns_per_step} and achieve {achieved} of their ceiling; at the share that "
            "others achieve, some {changed_ns_per_step}"
        ),
        recommendations=[
            PAD,
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
    matrices = [s for s in shapes_of(shapes) if len(s) in (2, 3) and min(s) > 0]
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
        "the cause inefficient_kernel is a GEMM far below its ceiling for whatever reason; "
        "where that is its sizes, this says what all such GEMMs gain. "
        "Sizes off the grid that cost nothing are not named."
    ),
    prediction=(
        "of PyTorch on Hopper and newer devices, kernels for unaligned operands at the share of "
        "their time that GEMMs of such a type and alignment took there on the grid (by name; "
        "measured). Else the padded work at the share of the ceiling that GEMMs on the grid "
        "achieve in the same capture (60 % where there is none); from what the best of them "
        "achieves to half of the gain. Without shapes, half the time of cutlass's kernels for "
        "unaligned operands"
    ),
    reference="NVIDIA: matrix multiplication background, requirements of tensor cores",
    find=find,
    refines=("inefficient_kernel",),
    order=6,
    claims=False,
)
