"""Another precision of GEMMs, convolutions and attention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.convolutions import on_tensor_cores
from stepscope.kernels.kernels import MATH_NAMES
from stepscope.kernels.vendors import measures_ceilings
from stepscope.operators.bounds import kernel_bounds
from stepscope.simulation.changes import Bound
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.autocast import shares, with_casts
from stepscope.simulation.settings.base import Edit, Facts, Setting, of_bound, rescaled
from stepscope.simulation.settings.shapes import names_with
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, FloatArray, IntArray

ORDER: Final = ("fp32", "tf32", "16bit", "8bit")
"""Types of products, from the slowest to the quickest."""

_TARGETS: Final = {"tf32": "tf32", "bf16": "16bit", "fp16": "16bit", "fp8": "8bit"}
_NAMES: Final = {"fp32": "FP32", "tf32": "TF32", "16bit": "16 bits", "8bit": "FP8"}

EIGHT_PART: Final = 0.5
"""Part of what the ratio of the peaks promises that FP8 keeps after the scaling of its operands."""
EIGHT_NS: Final = 100_000
"""Shorter GEMMs gain nothing in FP8: the scaling costs as much."""

ACHIEVED: Final = {"fp32": 0.72, "tf32": 0.60, "16bit": 0.72, "8bit": 0.60}
"""Share of the dense peak that GEMMs and convolutions of a training step achieve, by their shapes:
measured on an H200 with a language model of width 1024 (0.75, 0.61, 0.74); FP8 is assumed."""

ATTENTION: Final = (0.6, 1.0, 1.4)
ATTENTION_OF_BLOCKS: Final = ((1, 2.0), (2, 4.5), (4, 7.0), (8, 7.0), (32, 10.5))
"""Fused attention in single precision (CUTLASS) over half precision (cuDNN, and what it launches
beside it), by the blocks that share the positions of a head (64 each), and how far it is from that:
least, usual and most. 1.9 for 8 positions, 7.4 for 196, 8.0 for 320, 6.8 for 512, 10.5 for 2048
(H100, PyTorch 2.11); 6.6 for 512 on an H200."""
NARROW: Final = 0.62
"""Part of it that heads of 32 gain, which the kernels for half precision fill up to 64 (4.5 for 192
positions)."""

SPREAD: Final = (0.75, 1.25)
"""Libraries achieve another share of the peak in another type: so much of the ratio."""

DEPTHWISE: Final = (1.0, 0.75, 0.5)
"""Time of depthwise convolutions in half precision over single: most, usual, least."""

BATCH_NORM: Final = {"low": (1.4, 1.05), "expected": (1.6, 1.1), "high": (1.95, 1.2)}
"""Batch normalisation in BF16 over what cuDNN takes in single precision, in the forward and the
backward pass: PyTorch has its own kernels for it, which read each channel in one block. By element
of tensors of more than three million, in ten networks with channels first of 64 to 192 channels
(46 distinct calls, H100 and H200, PyTorch 2.11)."""

_SINGLE_DEPTHWISE: Final = r"depthwise\w*<(\d+, )*float"


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
                after = with_casts(after, one, products(one, "bf16")[0], bound)
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
    now = np.where(_single_attention(facts), ORDER.index("tf32"), now)
    now = np.where((now < 0) & _single_operands(facts), _usual_single(facts, now), now)
    mine = kernels.in_category(*PRODUCTS) & (now >= 0) & (now < to)
    if target == "tf32":
        mine &= ~kernels.in_category("attention")
    if target == "fp8":
        mine &= kernels.in_category("matmul") & (now == ORDER.index("16bit"))
        mine &= kernels.duration_ns >= EIGHT_NS
    return mine, now


def _single_operands(facts: Facts) -> BoolArray:
    """GEMMs and convolutions of operators whose first operand is in single precision."""
    table, operator = facts.kernels.attribution.operators, facts.kernels.attribution.operator
    if not len(table) or "input_types" not in table:
        return np.zeros(len(operator), bool)
    texts = table.texts["input_types"]
    single = np.array([text.startswith('["float"') for text in texts] + [False])
    named = (operator >= 0) & single[table["input_types"][np.maximum(operator, 0)]]
    mask: BoolArray = named & facts.kernels.in_category("matmul", "convolution")
    return mask


def _usual_single(facts: Facts, now: IntArray) -> int:
    """FP32 or TF32: what most kernels in single precision use whose names tell, by their time."""
    spent = [
        int(facts.kernels.duration_ns[now == ORDER.index(name)].sum()) for name in ("fp32", "tf32")
    ]
    return ORDER.index("tf32") if spent[1] > spent[0] else ORDER.index("fp32")


def lengths(facts: Facts, target: str, bound: Bound = "expected") -> IntArray:
    """What each row of ``GPU.ops`` takes, ns, without the casts.

    Raises:
        UsageError: nothing becomes faster, or the device is not known.
    """
    kernels = facts.kernels
    peaks = kernels.peaks
    if peaks is None:
        measure = "; measure them with 'stepscope ceilings' and pass --ceilings"
        raise UsageError(
            f"precision={target}: the peaks of {kernels.device[0] or 'this device'} are not known"
            + (measure if measures_ceilings(kernels.vendor) else "")
        )
    mine, now = products(facts, target)
    after = _TARGETS[target]
    has = bool(peaks.of(after)) and (target != "bf16" or peaks.bf16 or peaks.measured)
    if not (mine & kernels.steady).any() or not has:
        raise UsageError(_nothing(target, has))
    ratios = np.array([_ratio(peaks.of(name), peaks.of(after), name, after) for name in ORDER])
    if after == "8bit":
        ratios = 1 + (ratios - 1) * EIGHT_PART
    ratio = np.maximum(ratios[np.maximum(now, 0)], 1.0)
    ratio *= {"low": SPREAD[1], "high": SPREAD[0], "expected": 1.0}[bound]
    if after == "16bit":
        part = of_bound(ATTENTION, bound)
        ratio = np.where(_single_attention(facts), _attention_ratio(facts) * part, ratio)
    old = kernels.duration_ns.astype(np.float64)
    start = np.minimum(old, facts.start_ns)
    least = _memory_ns(facts, after)
    quicker = start + np.maximum((old - start) / np.maximum(ratio, 1.0), least)
    new = np.where(mine, np.minimum(quicker, old), old)
    if after == "16bit":
        share = shares(facts, mine, bound)
        new = np.where(share < 1, old * share, new)
        new = _convolutions(facts, new, bound)
        if target == "bf16":
            new = _batch_norms(facts, old, new, bound)
    return np.rint(new).astype(np.int64)


def _convolutions(facts: Facts, new: FloatArray, bound: Bound) -> FloatArray:
    """The same with convolutions that ran on the CUDA cores, by what their calls take."""
    kernels = facts.kernels
    if not kernels.in_category("convolution").any():
        return new
    found = on_tensor_cores(kernels, "16bit", kernels.gpu.is_compute)
    new = new.copy()
    new[found.rows] = {"low": found.least_ns, "expected": found.new_ns, "high": found.most_ns}[
        bound
    ]
    # each channel by itself: what waits for memory on any cores
    single = names_with(kernels, _SINGLE_DEPTHWISE)
    share = of_bound(DEPTHWISE, bound)
    return np.where(single, kernels.duration_ns * share, new)


def _batch_norms(facts: Facts, old: FloatArray, new: FloatArray, bound: Bound) -> FloatArray:
    """The same with batch normalisation by cuDNN, which PyTorch does not use for BF16."""
    forward, backward = BATCH_NORM[bound]
    mine = names_with(facts.kernels, r"cudnn::bn_(fw_tr|bw)_")
    share = np.where(facts.kernels.in_phase("backward"), backward, forward)
    return np.where(mine, old * share, new)


def _ratio(before: float, after: float, name: str, to: str) -> float:
    """How many times as fast products are, from what libraries achieve of either peak."""
    if not before or not after:
        return 1.0
    return after * ACHIEVED[to] / (before * ACHIEVED[name])


def _single_attention(facts: Facts) -> BoolArray:
    """Fused attention kernels for operands in single precision."""
    return names_with(facts.kernels, r"fmha_cutlass[FB]_f32")


def _attention_ratio(facts: Facts) -> FloatArray:
    """How many times as fast fused attention is in half precision as in single precision."""
    blocks, ratios = np.array(ATTENTION_OF_BLOCKS).T
    each = np.maximum(facts.kernels.grid["grid_x"], 1)
    found: FloatArray = np.interp(np.log2(each), np.log2(blocks), ratios)
    return np.where(names_with(facts.kernels, r"fmha_cutlassB_f32_\w*_k32_"), found * NARROW, found)


def _memory_ns(facts: Facts, after: str) -> FloatArray:
    """Least time of products whose bytes are known, ns; 0 elsewhere."""
    if not facts.bandwidth:
        return np.zeros(len(facts.gpu.ops))
    bounds = kernel_bounds(facts.kernels, facts.read)
    item = {"tf32": 1.0, "16bit": 0.5, "8bit": 0.75}[after]  # FP8's results keep 16 bits
    known: FloatArray = np.where(bounds.flop > 0, bounds.moved_bytes * item / facts.bandwidth, 0.0)
    return known


def _nothing(target: str, has: bool) -> str:
    if not has:
        return (
            f"precision={target}: the tensor cores of this device do not multiply {target.upper()}"
            + ("; those of Volta and Turing multiply FP16" if target == "bf16" else "")
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
        "16 bits, convolutions take what their shapes tell, conversions of the layout included, "
        "pointwise kernels behind a product move fewer bytes up to what autocast keeps in single "
        "precision (norms, softmax, a residual), what computes the loss does not, "
        "batch normalisation in BF16 takes PyTorch's own kernels, and autocast's casts are added "
        "where single precision comes before a product, on the device by their bytes and on the "
        "host as launches"
    ),
    assumes="autocast around forward and loss; accuracy is not looked at",
    checked="FP32 or TF32 to BF16, and FP32 to TF32; FP8 is extrapolated",
    refuses="where no product is in a slower type, or the device is not known",
    reads=read,
)
