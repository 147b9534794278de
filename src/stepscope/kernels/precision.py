"""GEMMs in another type: what they take on the cores that multiply it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among
from stepscope.kernels.ceilings import Peaks
from stepscope.kernels.convolutions import on_tensor_cores
from stepscope.kernels.efficiency import product_work
from stepscope.kernels.kernels import MATH_NAMES, Kernels, Repair, changed
from stepscope.kernels.small_products import small_products
from stepscope.kernels.tiles import read_again_bytes, traffic_bytes
from stepscope.trace.frame import BoolArray, FloatArray, IntArray
from stepscope.trace.shapes import matrices_of

ACHIEVED: Final = {"fp64": 0.8, "fp32": 0.8, "tf32": 0.72, "16bit": 0.82, "8bit": 0.61}
"""Share of the dense peak that cuBLAS achieves in GEMMs of training steps, by type, where single
precision achieves 0.8 of its own. FP8 pays for scaling: 1.5 times what 16 bits achieve."""

TF32_ACHIEVED: Final = {"tn": 0.86, "nn": 0.79, "nt": 0.49}
"""The same of TF32 by which operands are transposed. Tensor cores of Hopper read TF32 only along
the dimension that is summed over; in the products of weight gradients (nt) it is the outer one in
both operands. 200 GEMMs of nine models in training steps, each in both types (H200, PyTorch 2.11):
0.125, 0.137 and 0.22 times the time in single precision, all within 10 % on average."""

START_NS: Final = {"tf32": 10_000, "16bit": 4_000}
"""What each GEMM takes in these types beyond that: to fill the device and to drain it, and sums of
parts where there are few tiles; of the same GEMMs (6 us tn, 12 nn, 15 nt in TF32)."""

SHORT_NS = 100_000
"""Shorter GEMMs do not fill the quicker cores as they fill the slower ones."""

SPREAD: Final = 1.2
"""How far the achieved share is from :data:`ACHIEVED`, either way."""

_TRANSPOSED: Final = re.compile(r"_(tn|nn|nt)_(?:n(?:_|$)|align)|sgemm_\w*?_(tn|nn|nt)(?:_|$)")
_BATCHED: Final = frozenset({"aten::bmm", "aten::baddbmm"})
_ALIGNED: Final = 4
"""Elements of single precision in sixteen bytes: GEMMs of batches whose rows are no multiple of
that stay on the CUDA cores (49 columns: the same kernels with TF32 allowed)."""

_FASTER = 1.5
_LEAST_NS = 2_000.0
_ITEM_BYTES: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "16bit": 2, "8bit": 1, "tensor": 2}


@dataclass(frozen=True)
class LowPrecision:
    """Single-precision GEMMs of the steady window.

    Attributes:
        repair: the kernels, and TF32 (or BF16) instead.
        total_ns: their time.
        ratio: how many times faster they are assumed to be then.
        peaks: the device's datasheet.
        after: the type, a key of ``categories.MATHS``.
    """

    repair: Repair
    total_ns: int
    ratio: float
    peaks: Peaks
    after: str


def in_precision(kernels: Kernels, rows: IntArray, after: str) -> FloatArray:
    """What GEMMs take in another type, ns.

    The time that they take, over the ratio of what is achieved of both types' peaks; not less than
    the achieved rate and the memory allow where their shapes are known. Of GEMMs that run at the
    same time (the layers of a recurrent network, on several streams) it is the part that each has
    the device to itself: quicker ones leave it to the others.

    Args:
        kernels: the device's kernels.
        rows: GEMMs whose type is known (``Kernels.math``), on a device whose peaks are.
        after: the type, a key of ``categories.MATHS``.
    """
    peaks = kernels.peaks
    old = kernels.duration_ns[rows].astype(np.float64)
    if peaks is None or not peaks.of(after):
        return old
    sizes = np.array([_ITEM_BYTES[name] for name in MATH_NAMES])
    before = _reached(kernels, rows, peaks)
    achieved = np.full(len(rows), ACHIEVED[after])
    if after == "tf32":
        achieved = _achieved_in_tf32(kernels, rows)
    rate = peaks.of(after) * achieved
    flop, moved = product_work(kernels)
    arithmetic = flop[rows] / rate * 1e9
    smaller = _ITEM_BYTES[after] / sizes[kernels.math[rows]]
    moved[rows] += _by_tiles(kernels, rows, flop[rows], peaks, after)
    traffic = moved[rows] * smaller / (kernels.attainable_bandwidth or np.inf) * 1e9
    own = kernels.own_ns[rows]
    new = np.maximum(np.maximum(own * before / rate, arithmetic), traffic)
    new = np.maximum(new + START_NS.get(after, 0), _LEAST_NS)
    if after == "tf32":
        new = np.where(_unaligned(kernels, rows), old, new)
    return np.minimum(np.where(np.isfinite(before), new, old), old)


def _by_tiles(
    kernels: Kernels, rows: IntArray, flop: FloatArray, peaks: Peaks, after: str
) -> FloatArray:
    """Bytes that GEMMs on the CUDA cores move beyond those that their shapes tell, by tiles."""
    found = np.zeros(len(rows))
    at = np.flatnonzero(kernels.math[rows] == MATH_NAMES.index("fp32"))
    known = rows[at], flop[at], peaks.fp32
    found[at] = np.where(flop[at] > 0, 0.0, traffic_bytes(kernels, *known))
    if after == "tf32":
        layouts = np.array([_layout(text) == "nn" for text in kernels.gpu.ops.texts["name"]])
        again = layouts[kernels.gpu.ops["name"][rows[at]]]
        found[at] += np.where(again, read_again_bytes(kernels, *known), 0.0)
    return found


def _reached(kernels: Kernels, rows: IntArray, peaks: Peaks) -> FloatArray:
    """FLOP/s that GEMMs reach in the type that they have; infinite where it is not known."""
    reached = np.array([peaks.of(name) * ACHIEVED.get(name, 0.0) for name in MATH_NAMES])
    found: FloatArray = np.where(reached > 0, reached, np.inf)[kernels.math[rows]]
    part = _achieved_in_tf32(kernels, rows) / ACHIEVED["tf32"]
    return np.where(kernels.math[rows] == MATH_NAMES.index("tf32"), found * part, found)


def _achieved_in_tf32(kernels: Kernels, rows: IntArray) -> FloatArray:
    """Share of the peak of TF32 that GEMMs reach, by what their names say of their operands."""
    by_name = np.array([_share_in_tf32(text) for text in kernels.gpu.ops.texts["name"]])
    found: FloatArray = by_name[kernels.gpu.ops["name"][rows]]
    return found


def _share_in_tf32(name: str) -> float:
    return TF32_ACHIEVED.get(_layout(name), ACHIEVED["tf32"])


def _layout(name: str) -> str:
    """Which operands of a GEMM are transposed; empty where its name does not tell."""
    named = _TRANSPOSED.search(name)
    return named.group(1) or named.group(2) if named else ""


def _unaligned(kernels: Kernels, rows: IntArray) -> BoolArray:
    """GEMMs of batches whose operands or results have rows that tensor cores cannot read."""
    table, operator = kernels.attribution.operators, kernels.attribution.operator[rows]
    found = np.zeros(len(rows), bool)
    if not len(table) or "input_shapes" not in table:
        return found
    batched = [code for code, text in enumerate(table.texts["name"]) if text in _BATCHED]
    at = np.maximum(operator, 0)
    mine = np.flatnonzero((operator >= 0) & among(table["name"][at], np.array(batched, np.int64)))
    codes = table["input_shapes"][operator[mine]]
    texts = table.texts["input_shapes"]
    unaligned = {
        code: any(shape[-1] % _ALIGNED for shape in matrices_of(texts[code])[-2:])
        for code in set(codes.tolist())
        if code >= 0
    }
    found[mine] = [unaligned.get(code, False) for code in codes.tolist()]
    return found


def low_precision(kernels: Kernels) -> LowPrecision | None:
    """GEMMs on the CUDA cores of a device that has tensor cores for them.

    Returns:
        None where there are none, the device has no tensor cores for TF32 or BF16, or its rates
        are not in the table.
    """
    peaks = kernels.peaks
    if peaks is None or not peaks.half:
        return None
    # on some GPUs TF32 is no faster than the CUDA cores, only BF16 is
    after = "tf32" if peaks.tf32 > _FASTER * peaks.fp32 else "16bit"
    convolved = on_tensor_cores(kernels, after, kernels.steady)
    single = kernels.in_category("matmul") & kernels.steady
    single &= kernels.math == MATH_NAMES.index("fp32")
    single[convolved.rows] = False
    single &= ~small_products(kernels).found  # their tiles are mostly padding in any type
    gemms = np.flatnonzero(single)
    rows = np.concatenate((gemms, convolved.rows))
    if not len(rows):
        return None
    in_order = np.argsort(rows)
    plain = in_precision(kernels, gemms, after)
    spread = np.where(kernels.duration_ns[gemms] >= SHORT_NS, SPREAD, 2.0)
    bounds = (
        (plain / SPREAD, convolved.least_ns),
        (plain, convolved.new_ns),
        (plain * spread, convolved.most_ns),
    )
    rows, old = rows[in_order], kernels.duration_ns[rows[in_order]]
    least, new, most = (
        np.minimum(np.rint(np.concatenate(both)[in_order]), old).astype(np.int64) for both in bounds
    )
    total, usual = int(old.sum()), int(new.sum())
    gone = np.concatenate((np.zeros(len(gemms), bool), convolved.gone))[in_order]
    repair = replace(
        changed(rows, old, new, float(least.sum()), float(most.sum()), stay=True), merged=gone
    )
    return LowPrecision(repair, total, total / max(usual, 1), peaks, after)
