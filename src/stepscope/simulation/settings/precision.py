"""Another precision of GEMMs, convolutions and attention, and what autocast does around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.kernels.efficiency import CUDA_CORE_ACHIEVED, TENSOR_ACHIEVED
from stepscope.kernels.view import MATH_NAMES
from stepscope.operators.bounds import kernel_bounds
from stepscope.simulation.changes import Bound, Subject
from stepscope.simulation.program import C
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import (
    Edit,
    Facts,
    Setting,
    launch_cost_ns,
    of_items,
    rescaled,
)
from stepscope.simulation.settings.shapes import input_elements, names_with, on_parameters
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]

ORDER: Final = ("fp32", "tf32", "16bit", "8bit")
"""Types of products, from the slowest to the quickest."""

_TARGETS: Final = {"tf32": "tf32", "bf16": "16bit", "fp16": "16bit", "fp8": "8bit"}
_NAMES: Final = {"fp32": "FP32", "tf32": "TF32", "16bit": "16 bits", "8bit": "FP8"}

EIGHT_PART: Final = 0.5
"""Part of what the ratio of the peaks promises that FP8 keeps after the scaling of its operands."""
EIGHT_NS: Final = 100_000
"""Shorter GEMMs gain nothing in FP8: the scaling costs as much."""

NEWER_ATTENTION: Final = (1.3, 2.0, 3.5)
"""Fused attention in half precision uses kernels of a newer design than in single precision: so
many times as fast beyond the types' ratio, least, usual and most (Dao, FlashAttention-2, figures 4
to 7: 1.3 to 2 times xFormers' cutlass kernels; FlashAttention-3 and cuDNN on Hopper as much again).
"""

SPREAD: Final = (0.75, 1.25)
"""Libraries achieve another share of the peak in another type: so much of the ratio."""

POINTWISE: Final = (1.0, 0.75, 0.5)
"""Time of pointwise kernels in half precision over single: of those between two GEMMs half of the
bytes go, residual additions and what autocast keeps in FP32 stay. Most, usual, least."""

CASTS_A_GEMM: Final = 3
"""Kernels that cast for a linear layer: weight, bias and input; as many in the backward pass."""

CAST_BYTES: Final = 6
"""Bytes that a cast between single and half precision moves for an element."""

_KEPT: Final = r"layer_?norm|rms_?norm|group_?norm|softmax|nll_loss|loss"
"""What autocast keeps in FP32 (PyTorch: autocast op reference)."""


@dataclass(frozen=True)
class Precision(Edit):
    """Products take place in another type.

    Attributes:
        target: ``tf32``, ``bf16``, ``fp16`` or ``fp8``.
    """

    target: str
    order = 2

    @property
    def text(self) -> str:  # type: ignore[override]
        """In words."""
        how = "autocast to " if _TARGETS[self.target] == "16bit" else ""
        return f"{how}{self.target.upper()} for GEMMs, convolutions and attention"

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs in the other type."""
        changed = []
        for subject, one in zip(subjects, facts, strict=True):
            after = rescaled(subject, one, lengths(one, self.target, bound))
            if _TARGETS[self.target] == "16bit":
                after = _with_casts(after, one, bound)
            changed.append(after)
        return changed

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        peaks = facts[0].kernels.peaks
        source = peaks.source if peaks else ""
        found = [
            f"products go faster by the ratio of the ceilings ({source}), as far as memory allows; "
            "whether the model's accuracy bears it only training tells"
        ]
        if _TARGETS[self.target] == "16bit":
            found.append(
                "autocast casts weights, their inputs and gradients, each cast a launch; "
                "normalisation of layers, softmax and loss stay in FP32"
            )
        return found

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """FP8 was not compared with measured runs."""
        return "extrapolated" if self.target == "fp8" else "modelled"


def products(facts: Facts, target: str) -> tuple[BoolArray, IntArray]:
    """Products in a slower type than the target, and the type of each as a place in ``ORDER``."""
    kernels = facts.kernels
    to = ORDER.index(_TARGETS[target])
    place = np.array([ORDER.index(name) if name in ORDER else -1 for name in MATH_NAMES] + [-1])
    now = place[kernels.math]
    now = np.where(names_with(kernels, r"fmha_cutlass[FB]_f32"), ORDER.index("tf32"), now)
    mine = kernels.in_category("matmul", "convolution", "attention") & (now >= 0) & (now < to)
    if target == "tf32":
        mine &= ~kernels.in_category("attention")
    if target == "fp8":
        mine &= kernels.in_category("matmul") & (now == ORDER.index("16bit"))
        mine &= kernels.duration_ns >= EIGHT_NS
    return mine, now


def lengths(facts: Facts, target: str, bound: Bound = "expected") -> IntArray:
    """What each row of ``GPU.ops`` takes, ns, without the casts.

    Raises:
        UsageError: nothing becomes faster, or the device is not known.
    """
    kernels = facts.kernels
    peaks = kernels.peaks
    if peaks is None:
        raise UsageError(
            f"precision={target}: the peaks of {kernels.device[0] or 'this device'} are not known; "
            "measure them with 'stepscope ceilings' and pass --ceilings"
        )
    mine, now = products(facts, target)
    after = _TARGETS[target]
    if not (mine & kernels.steady).any() or not peaks.of(after):
        raise UsageError(_nothing(target, bool(peaks.of(after))))
    ratios = np.array([_ratio(peaks.of(name), peaks.of(after), name, after) for name in ORDER])
    if after == "8bit":
        ratios = 1 + (ratios - 1) * EIGHT_PART
    ratio = np.maximum(ratios[np.maximum(now, 0)], 1.0)
    newer = dict(zip(("high", "expected", "low"), NEWER_ATTENTION, strict=True))[bound]
    old_design = names_with(kernels, r"fmha_cutlass[FB]_f32")
    ratio = np.where(old_design & (after == "16bit"), ratio * newer, ratio)
    ratio *= {"low": SPREAD[1], "high": SPREAD[0], "expected": 1.0}[bound]
    old = kernels.duration_ns.astype(np.float64)
    start = np.minimum(old, facts.start_ns)
    least = _memory_ns(facts, after)
    quicker = start + np.maximum((old - start) / np.maximum(ratio, 1.0), least)
    new = np.where(mine, np.minimum(quicker, old), old)
    if after == "16bit":
        share = dict(zip(("high", "expected", "low"), POINTWISE, strict=True))[bound]
        new = np.where(_pointwise(facts), old * share, new)
    return np.rint(new).astype(np.int64)


def _ratio(before: float, after: float, name: str, to: str) -> float:
    """How many times as fast products are, from what libraries achieve of either peak."""
    if not before or not after:
        return 1.0
    cores = CUDA_CORE_ACHIEVED if name == "fp32" else TENSOR_ACHIEVED
    return after * TENSOR_ACHIEVED / (before * cores)


def _memory_ns(facts: Facts, after: str) -> FloatArray:
    """Least time of products whose bytes are known, ns; 0 elsewhere."""
    if not facts.bandwidth:
        return np.zeros(len(facts.gpu.ops))
    bounds = kernel_bounds(facts.kernels, facts.read)
    item = {"tf32": 1.0, "16bit": 0.5, "8bit": 0.75}[after]  # FP8's results keep 16 bits
    known: FloatArray = np.where(bounds.flop > 0, bounds.moved_bytes * item / facts.bandwidth, 0.0)
    return known


def _pointwise(facts: Facts) -> BoolArray:
    """Kernels that go through activations of half the size."""
    kernels = facts.kernels
    light = kernels.in_category("elementwise", "copy", "dropout", "pooling", "normalisation")
    light &= ~kernels.in_phase("optimizer") & ~names_with(kernels, _KEPT)
    mask: BoolArray = light & ~on_parameters(kernels, facts.parameters)
    return mask


def _with_casts(subject: Subject, facts: Facts, bound: Bound) -> Subject:
    """What autocast's casts cost: bytes on the device, launches on the host.

    They are added to the products that they are for, half in either pass.
    """
    kernels = facts.kernels
    mine, _ = products(facts, "bf16")
    mine &= kernels.in_category("matmul", "convolution")
    steady = mine & kernels.steady
    forward = steady & kernels.in_phase("forward")
    count = max(kernels.per_step(int(steady.sum())), 1.0)
    rows = np.flatnonzero(forward)
    # half of the inputs come from an operation that autocast keeps in FP32
    inputs = kernels.per_step(float(input_elements(kernels, rows).sum()))
    share = {"low": 0.0, "expected": 0.5, "high": 1.0}[bound]
    numbers = 2 * facts.parameters.count + 2 * share * inputs
    each = numbers * CAST_BYTES / facts.bandwidth / count if facts.bandwidth else 0.0
    launches = 2 * CASTS_A_GEMM * kernels.per_step(int(forward.sum())) / count
    # cuBLAS runs several kernels for a product at times: what is added is for each of them
    extra = of_items(subject, np.where(mine, round(each), 0))
    hosted = of_items(subject, np.where(mine, round(launches * launch_cost_ns(subject)), 0))
    work = subject.program.work_ns.copy()
    work[:, C["launch_bound"]] += np.where(subject.program.hosted, hosted, 0)
    return subject.becomes(duration_ns=subject.program.duration_ns + extra, work_ns=work)


def _nothing(target: str, has: bool) -> str:
    if not has:
        return (
            f"precision={target}: the tensor cores of this device do not multiply {target.upper()}"
        )
    if target == "fp8":
        return (
            "precision=fp8: no GEMM in 16 bits takes 0.1 ms or more, so scaling would cost what "
            "FP8 gains"
        )
    return (
        f"precision={target}: no GEMM, convolution or attention kernel is known to be slower than "
        f"{_NAMES[_TARGETS[target]]}; nothing would change"
    )


_WRITTEN: Final = re.compile(r"tf32|bf16|fp16|fp8")


def read(text: str) -> Precision:
    """One of the types."""
    if not _WRITTEN.fullmatch(text):
        raise ValueError(text)
    return Precision(text)


SETTING = Setting(
    name="precision",
    title="Precision",
    values="tf32|bf16|fp16|fp8",
    example="bf16",
    help="the type in which GEMMs, convolutions and attention multiply",
    model=(
        "products take their time over the ratio of what libraries achieve in either type (the "
        "datasheet's peaks, or measured ceilings with --ceilings), but not less than their bytes "
        "take at memory speed; attention gets the newer kernels that half precision has. With "
        "16 bits, pointwise kernels between products move fewer bytes, and autocast's casts are "
        "added, on the device by their bytes and on the host as launches"
    ),
    assumes="autocast around forward and loss; accuracy is not looked at",
    checked="FP32 or TF32 to BF16, and FP32 to TF32; FP8 is extrapolated",
    refuses="where no product is in a slower type, or the device is not known",
    reads=read,
)
