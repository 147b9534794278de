"""Another batch size: kernels by their grids and shapes; what is a parameter's size stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import host
from stepscope.collectives import kinds
from stepscope.intervals.distinct import among
from stepscope.kernels.kernels import MATH_NAMES
from stepscope.simulation.changes import Bound
from stepscope.simulation.program import C
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import L2_BYTES, Edit, Facts, Setting, number, rescaled
from stepscope.simulation.settings.shapes import names_with, of_weight_gradients, on_parameters
from stepscope.simulation.subject import Subject
from stepscope.trace.frame import BoolArray, FloatArray, IntArray

CHECKED: Final = (0.25, 4.0)
"""Factors of the batch that were compared with measured runs."""

CAST_BYTES: Final = 12
"""Bytes moved for each parameter by autocast in a step: six to cast the weight to half precision,
six to cast its gradient back."""

_OVER_BATCH: Final = r"GammaBeta|batch_norm_(backward|collect)|bn_bw|bn_fw|reduce_kernel.*sum"
"""Kernels that sum over the batch: their result, and with it their grid, does not grow."""

FULL_HALF: Final = (0.96, 1.0, 1.04)
FULL_SINGLE: Final = (0.88, 1.0, 1.12)
FULL_CONVOLUTION: Final = (0.80, 0.93, 1.0)
"""What products that fill the device take for twice the batch, over twice what they took: least,
usual, most. Other kernels are chosen, waves end otherwise, the clock yields to power. Of 170 GEMMs
from 0.06 ms on nine in ten lie between the ends (in half precision, and in TF32, of which those of
a whole step lie at the upper end), and so do 20 convolutions, in either layout (H100)."""

FILLING: Final = 0.75
"""Growth over that of the batch from which on a product counts as one that fills the device."""


@dataclass(frozen=True)
class Batch(Edit):
    """The batch of each rank grows or shrinks.

    Attributes:
        factor: new batch over captured batch.
        before: samples of a captured step of one rank, where stated; 0 else.
    """

    factor: float
    before: int = 0
    order = 1
    paces_input = True

    @property
    def text(self) -> str:  # type: ignore[override]
        """In words."""
        if self.before:
            return f"a batch of {round(self.before * self.factor)} instead of {self.before}"
        return f"{self.factor:g} times the batch"

    def samples(self, devices: int) -> float:
        """Samples of a step over those before."""
        return self.factor

    @property
    def batches(self) -> float:
        """What workers make for a step over that before."""
        return self.factor

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs with another batch."""
        grows = ["input_starvation"]
        if bound == "high" and self.factor > 1:
            # nothing tells whether what the host computes is for the step or for each sample
            grows += ["host_compute", "cpu_offload"]
        return [
            _with_work(rescaled(s, f, lengths(f, self.factor, bound)), grows, self.factor)
            for s, f in zip(subjects, facts, strict=True)
        ]

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        found = [
            "kernels that fill the device take time in proportion to the batch, smaller ones as "
            "far as SMs are free; the optimizer, gradients, casts of weights and the host's work "
            "for each launch stay as they are; getting input takes time in proportion; what the "
            "host computes beside stays, and at the range's upper end grows in proportion, too",
        ]
        if not facts[0].parameters.shapes:
            found.append(
                "without recorded shapes (record_shapes=True) it is not known which kernels work "
                "on weights: casts of weights are estimated from the optimizer's time"
            )
        return found

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """Modelled in the range that was compared with measured runs."""
        low, high = CHECKED
        return "modelled" if low <= self.factor <= high else "extrapolated"


def lengths(facts: Facts, factor: float, bound: Bound = "expected") -> IntArray:
    """What each row of ``GPU.ops`` takes with another batch, ns."""
    kernels, ops = facts.kernels, facts.gpu.ops
    old = kernels.duration_ns.astype(np.float64)
    known = facts.parameters
    start = np.minimum(old, facts.start_ns)
    work = old - start
    new = start + work * _growth(facts, factor, bound)
    new = np.maximum(new, _from_memory_ns(facts, work, factor) + start) if factor > 1 else new
    # gradients of looked up rows grow with the batch, those of whole tensors do not
    update = kernels.in_phase("optimizer") & ~kernels.in_category("index", "sort")
    stays = update | on_parameters(kernels, known)
    new = np.where(kernels.gpu.is_compute & ~stays, new, old)
    if not known.shapes:
        new = _less_casts(facts, known.count, old, new, bound)
    crossing = ops.equals("kind", "memcpy") & (ops["bytes"] > host.SMALL_COPY_BYTES) & ~stays
    crossing |= ops.equals("kind", "memset") & ~stays
    new = np.where(crossing, old * factor, new)
    return np.rint(np.where(_of_activations(facts), old * factor, new)).astype(np.int64)


def _growth(facts: Facts, factor: float, bound: Bound) -> FloatArray:
    """Work of each compute kernel over that before, where it has the batch in its size."""
    kernels = facts.kernels
    sms = kernels.device[1]
    filled = kernels.blocks / max(sms, 1)
    small = (kernels.blocks > 0) & (sms > 0) & (filled < 1)
    # one wave holds them all: it takes as long until the blocks are more than the SMs
    by_grid = np.maximum(filled * factor, 1.0)
    if factor < 1:
        by_grid = np.ones(len(filled))
    weights, known = of_weight_gradients(kernels, facts.parameters)
    linear = weights | names_with(kernels, _OVER_BATCH)
    open_ = small & ~known & kernels.in_category("matmul", "convolution", "reduction")
    open_ &= kernels.in_phase("backward") & ~linear
    grown = np.where(small & ~linear, by_grid, factor)
    place = ("low", "expected", "high").index(bound)
    product = kernels.in_category("matmul", "convolution") & (grown >= FILLING * factor)
    half = kernels.math == MATH_NAMES.index("16bit")
    convolution = kernels.in_category("convolution")
    full = np.where(half, FULL_HALF[place], FULL_SINGLE[place])
    full = np.where(convolution, FULL_CONVOLUTION[place], full)
    grown = np.where(product, grown * full ** np.log2(factor), grown)
    if bound == "high":
        return np.where(open_, max(factor, 1.0), grown)
    if bound == "low":
        return grown
    # of the gradients' GEMMs half sum over the batch: those of the weights
    return np.where(open_, (by_grid + factor) / 2, grown)


def _from_memory_ns(facts: Facts, work_ns: FloatArray, factor: float) -> FloatArray:
    """Least time of kernels whose tensors no longer fit in the L2 cache, ns; 0 for others."""
    kernels = facts.kernels
    moved = kernels.moved_bytes.astype(np.float64) * factor
    large = kernels.gpu.is_compute & (moved > L2_BYTES) & (facts.bandwidth > 0)
    # what was slower than memory before stays as much slower: only the cache's help is lost
    least = moved / max(facts.bandwidth, 1e-9)
    return np.where(large & (work_ns > 0), least, 0.0)


def _less_casts(
    facts: Facts, count: int, old: FloatArray, new: FloatArray, bound: Bound
) -> FloatArray:
    """Casts of weights do not grow: a part of the copying kernels, where shapes do not tell."""
    kernels = facts.kernels
    copies = kernels.in_category("copy") & kernels.steady & ~kernels.in_phase("optimizer")
    spent = kernels.per_step(float(old[copies].sum()))
    if not spent or not facts.bandwidth or bound == "high":
        return new
    half = (
        kernels.in_category("matmul") & (kernels.math == MATH_NAMES.index("16bit")) & kernels.steady
    )
    casting = count * CAST_BYTES / facts.bandwidth if half.any() else 0.0
    share = min(casting / spent, 1.0)
    return np.where(copies, new * (1 - share) + old * share, new)


def _of_activations(facts: Facts) -> BoolArray:
    """Communication whose size has the batch in it: all-to-alls, and sends between stages.

    All-reduces of the forward pass (tensor parallelism) are; those of gradients are not.
    """
    gpu = facts.gpu
    texts = gpu.ops.texts["name"]
    kind = np.array([kinds.kind_of_kernel(text) for text in texts] + [kinds.UNKNOWN])
    mine = kind[gpu.ops["name"]]
    moved = among(mine, [kinds.CODE["all_to_all"], kinds.CODE["send_recv"]])
    reduces = (mine == kinds.CODE["all_reduce"]) & facts.kernels.in_phase("forward")
    found: BoolArray = gpu.is_communication & (moved | reduces)
    return found


def _with_work(subject: Subject, causes: Sequence[str], factor: float) -> Subject:
    """The host's work of some causes takes time in proportion to the samples."""
    work = subject.program.work_ns.copy()
    columns = [C[cause] for cause in causes]
    work[:, columns] = np.rint(work[:, columns] * factor)
    return subject.becomes(work_ns=work)


def read(text: str) -> Batch:
    """``2x``, ``0.5x`` or ``16:32``."""
    before, colon, after = text.partition(":")
    if colon:
        old, new = int(before), int(after)
        if not 0 < old <= 1 << 30 or not 0 < new <= 1 << 30:
            raise ValueError(text)
        return Batch(number(str(new / old), 1 / 64, 64), old)
    if text[-1] != "x":
        raise ValueError(text)
    return Batch(number(text[:-1], 1 / 64, 64))


SETTING = Setting(
    name="batch",
    title="Batch size",
    values="FACTORx or NOW:THEN",
    example="2x",
    help="the samples of a step of each rank",
    model=(
        "each kernel has a fixed cost and work; the work grows with the batch where the kernel "
        "fills the device, and while its blocks are fewer than the SMs it does not. GEMMs of "
        "weight gradients and sums over the batch grow in any case; tensors that leave the L2 "
        "cache go at memory speed. The optimizer, what is done to weights and gradients, and the "
        "host's cost of launching stay; copies, all-to-alls, sends and getting input grow. Where "
        "the capture holds allocations, the need of memory is predicted, too"
    ),
    assumes="the same kernels are chosen for the new shapes; the host computes nothing for each "
    "sample, but for the range's upper end",
    checked="factors from 0.5 to 4: kernels within 4 % for a transformer, 15 % for convolutions; "
    "beyond 0.25 to 4 it is extrapolated",
    refuses="never; up to 64 times either way",
    reads=read,
)
