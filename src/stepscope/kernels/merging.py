"""What a run of kernels takes once a compiler has made one kernel of it.

A merged kernel moves what enters and leaves the run, at the speed at which the run's own kernels
move it, and still does all their arithmetic. Both are counted; the longer one is what it takes.

*Passes.* One pass is one tensor of the run's size read or written once. How long that takes is
read from the run: the time of a kernel over the tensors that it touches, by the kernel that has the
least: autocast widens tensors inside a run, and narrows them again. Of a run in
the forward pass, one tensor enters (two, where a kernel takes two: a residual or a gate) and one
leaves. In the backward pass the gradient and the run's saved input enter, and a gradient leaves:
intermediate results are computed again (PyTorch's min-cut partitioner saves what is not
pointwise). A result that every kernel hands on to the next one is the other limit: two passes less
for each pair.

A run that is linear (sums, multiples, copies) saves nothing, and has no cause to add a tensor to
itself: the second operand of each of its sums enters as well.

*Reductions.* A reduction over rows (the mean of a norm) is made in the same kernel. One over
columns, or over all of a tensor, needs what blocks on other SMs have found: it stays a kernel.

*Arithmetic.* An SM issues 128 instructions for one element each a clock, and 16 special functions
(CUDA C++ Programming Guide, throughput of arithmetic instructions); the busier of the two pipes
counts. A kernel that only moves memory hides its instructions; one that does forty operations in
one pass does not. Where tensors are put side by side at the end, each element of the result is
computed as one of all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.kernels.kernels import PHASES, SCATTERED_COPY, Kernels
from stepscope.trace.frame import BoolArray, FloatArray, IntArray

_CONCATENATION: Final = re.compile("CatArrayBatchedCopy")

SCAN: Final = re.compile(r"tensor_kernel_scan_\w+_dim")
"""Sums and products along a dimension (``cumsum``). TorchInductor makes them inside of a block as
fast as the memory is; PyTorch's kernel takes 33, 9, 1.6 and 1.9 times as long for rows of 64, 256,
1024 and 4096, so that it tells nothing of what a pass takes (an H100, PyTorch 2.11)."""

WINDOWS: Final = re.compile(r"avg_pool2d_(?:backward_)?out_cuda_frame|reflection_pad\dd")
"""Means over windows and reflections at the edges, which TorchInductor computes as elementwise, and
PyTorch by kernels that take up to eleven times as long as what they move (``avg_pool2d`` of 3 x 3
with channels first and its gradient, an H100, PyTorch 2.11)."""
UNLIKE_PASSES: Final = re.compile(f"{SCAN.pattern}|{WINDOWS.pattern}")
"""Kernels that tell nothing of what a pass takes."""

_CONCATENATED: Final = 2
"""Tensors at least that lie side by side in the result of a concatenation. A compiled kernel
selects one of them for each element, having computed all (TorchInductor masks the loads, not the
arithmetic): 0.26 ms where the halves alone are 0.10 ms of arithmetic, and the memory 0.11 ms (the
gradients of a gate's two halves, H100, PyTorch 2.11)."""

_SCATTERED: Final = (
    (_CONCATENATION, 0.25),
    (SCATTERED_COPY, 0.35),
    (re.compile(r"batch_norm_(?:backward|collect_statistics)_kernel<"), 0.3),
)
"""Copies between layouts, and the part of their time that a compiled kernel takes for the same
tensors: PyTorch's kernels achieve a quarter to a third of the bandwidth of contiguous ones (five
models on an H200, PyTorch 2.11, by kernel, before and after torch.compile). Batch normalisation
with channels first, whose kernels read each channel in one block: 740 us become 190 with what is
merged into it (one model, an H100)."""

STAYS: Final = (0.45, 0.6, 1.0)
"""Part of their time that reductions over columns take once compiled: least, usual, most. They are
made in two stages, and read what the run reads instead of what it has written (0.51 to 0.65 of all
of them in the same five models)."""

LIKE_THE_LONGEST: Final = 0.4
"""Kernels of a run that take this part of its longest one move tensors of the same size: they touch
two to four of them. Shorter ones work on a value a row, or on a parameter."""

_COMPARES: Final = re.compile("compare", re.IGNORECASE)
_OF_TRUTHS: Final = 0.75
"""What a comparison writes is a byte an element, less than a pass by so much."""

_SUMS: Final = frozenset(
    {"add", "OnSelf_add", "neg", "copy", "direct_copy", "bfloat16_copy", "float16_copy"}
)
_OF_A_NUMBER: Final = 2  # tensors that the product with a number touches: it reads and writes one

LIKE_THE_LARGEST: Final = 0.5
"""The same of elements: blocks are whole, and a run may go on with half of its channels."""

ISSUED: Final = (0.85, 0.65, 0.45)
"""Share of the busier pipe that merged kernels use: most, usual, least. Instructions that depend on
each other and the latency of loads take the rest."""

_PASSES: Final = {
    "elementwise": 2, "copy": 2, "random": 1, "dropout": 3, "reduction": 1, "softmax": 2,
    "normalisation": 2, "loss": 2, "index": 2, "pooling": 2,
}  # fmt: skip
"""Tensors of full size that kernels touch whose name does not tell."""

_WORK: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), plain, special)
    for pattern, plain, special in (
        # the first that is found counts; gradients of functions use the function's saved result
        (r"(tanh|sigmoid|relu|threshold)_?backward", 4, 0),
        (r"mish_?backward", 70, 4),
        (r"gelu_?backward", 45, 2),
        (r"(silu|softplus|elu)_?backward", 14, 2),
        (r"mish", 60, 3),
        (r"gelu|erf", 26, 1),
        (r"softplus|log1p", 30, 1),
        (r"tanh|sinh|cosh", 20, 2),
        (r"silu|sigmoid|swish|glu|logit", 9, 2),
        (r"atan2?", 40, 1),
        (r"(?<!co)sin|cos", 25, 0),
        (r"log(?!ical)", 20, 0),
        (r"pow_tensor_tensor", 60, 2),
        (r"pow", 3, 0),
        (r"exp(?!and)", 3, 1),
        (r"rsqrt", 3, 1),
        (r"sqrt|div|reciprocal|fmod|remainder", 8, 1),
        (r"softmax", 6, 1),
        (r"norm", 8, 0),
        (r"dropout|bernoulli|uniform|random|distribution", 60, 0),
    )
)
"""Instructions of an operation for one element in single precision, and special functions among
them: by what CUDA's functions and the divisions of Triton compile to (``tanh`` is one ``ex2`` and
one ``rcp`` in some twenty instructions, Philox ten rounds of four)."""
_PLAIN: Final = (2, 0)
_OF_PASS: Final = 2  # loads or stores of four elements, their addresses and conversions
SPECIAL_SHARE: Final = 8
"""Special functions go through a pipe of their own with an eighth of the CUDA cores."""

_WHOLE: Final = re.compile(r"GammaBeta|reduce_kernel<(?:\(int\))?\d+, ?(?:\(int\))?[248],")
"""Reductions over columns: of the parameters of a normalisation, or with several results a thread
(``ReduceOp`` with a vector of results, which PyTorch takes where results are contiguous)."""


@dataclass(frozen=True)
class Merged:
    """Runs as a compiler merges them.

    Attributes:
        new_ns: time of each row afterwards; 0 for one that goes.
        goes: rows that are not launched any more.
        low_ns: the least that all runs together may take.
        high_ns: the most.
    """

    new_ns: IntArray
    goes: BoolArray
    low_ns: int
    high_ns: int


@dataclass(frozen=True)
class _Runs:
    """Figures of each run; arrays have one value a run.

    Attributes:
        pass_ns: what one pass takes.
        elements: elements of its tensors.
        plain: instructions for one element, recomputation included.
        special: special functions among them.
        passes: (least, usual, most) passes that remain.
        shortest_ns: its shortest kernel of full size.
        spent_ns: time of the kernels that are merged.
    """

    pass_ns: FloatArray
    elements: FloatArray
    plain: FloatArray
    special: FloatArray
    passes: tuple[FloatArray, FloatArray, FloatArray]
    shortest_ns: FloatArray
    spent_ns: FloatArray


def merged(kernels: Kernels, rows: IntArray, run: IntArray) -> Merged:
    """What runs take as merged kernels.

    Args:
        kernels: the device's kernels.
        rows: rows of ``GPU.ops`` in the order of enqueueing.
        run: number of the run of each, ascending from 0.
    """
    old = kernels.duration_ns[rows]
    whole = whole_reductions(kernels)[rows]
    runs = _figures(kernels, rows, run, whole)
    ends = [_of_runs(runs, kernels, at) for at in range(3)]
    stays = longest_of_runs(old, run, ~whole)
    joined = np.bincount(run[~whole], minlength=len(runs.spent_ns))[run] > 0
    reduction = np.rint(STAYS[1] * old)
    new = np.where(whole, reduction, np.where(stays, np.rint(ends[1])[run], 0)).astype(np.int64)
    kept = int(old[whole].sum())
    # a reduction that does not compute the run again reads what that has to write for it
    written = int(np.where(joined, np.rint(runs.pass_ns[run]), 0)[whole].sum())
    before = int(old.sum())
    return Merged(
        new_ns=new,
        goes=~whole & ~stays,
        low_ns=min(int(ends[0].sum() + STAYS[0] * kept), int(new.sum())),
        high_ns=max(min(int(ends[2].sum() + STAYS[2] * kept) + written, before), int(new.sum())),
    )


def whole_reductions(kernels: Kernels) -> BoolArray:
    """Reductions over columns or over a whole tensor: no kernel of a row of blocks makes them.

    The name tells, or that several rows of blocks share each result.
    """
    reduction = kernels.in_category("reduction", "normalisation", "loss")
    several = kernels.grid["grid_y"] > 1
    named = kernels.gpu.ops.matches("name", _WHOLE)
    found: BoolArray = reduction & (named | (several & kernels.in_category("reduction")))
    return found


def _figures(kernels: Kernels, rows: IntArray, run: IntArray, whole: BoolArray) -> _Runs:
    count = int(run[-1]) + 1 if len(run) else 0
    spent = kernels.duration_ns[rows].astype(np.float64)
    old = spent.copy()
    for pattern, part in _SCATTERED:
        old[kernels.gpu.ops.matches("name", pattern)[rows]] *= part
    unlike = kernels.gpu.ops.matches("name", UNLIKE_PASSES)[rows]
    beside = np.zeros(count)
    np.maximum.at(beside, run[~whole & ~unlike], old[~whole & ~unlike])
    old = np.where(unlike & (beside[run] > 0), np.minimum(old, beside[run]), old)
    name = kernels.gpu.ops["name"][rows]
    named = np.array([c.tensors for c in kernels.classes] + [0])[name]
    usual = np.array([_PASSES.get(c.category, 2) for c in kernels.classes] + [2])[name]
    touched = np.where(named > 0, named, usual).astype(np.float64)
    backward = kernels.phase[rows] == PHASES.index("backward")
    grown = backward & kernels.in_category("softmax", "normalisation")[rows]
    touched += np.where(grown & (named == 0), 1, 0)  # the result or the input, too

    full = ~whole & _of_full_size(kernels, rows, run, whole, old)
    known = full & (named > 0)
    some_known = np.bincount(run[known], minlength=count) > 0
    measured = np.where(some_known[run], known, full)
    # what autocast widens inside the run does not leave it: the narrowest tensors count
    pass_ns = np.full(count, np.inf)
    compares = np.array([bool(_COMPARES.search(c.operation)) for c in kernels.classes] + [False])
    moved = np.maximum(touched - np.where(compares[name], _OF_TRUTHS, 0.0), 1.0)
    np.minimum.at(pass_ns, run[measured], (old / moved)[measured])
    pass_ns[~np.isfinite(pass_ns)] = 0.0
    kernels_of = np.bincount(run[full], minlength=count).astype(np.float64)
    before = _sums(run, touched, full, count)
    shortest = np.full(count, np.inf)
    np.minimum.at(shortest, run[full], old[full])
    in_backward = np.bincount(run[backward], minlength=count) > 0
    reduces = kernels.in_category("reduction", "loss")[rows]
    takes_two = np.bincount(run[full & (named >= 3)], minlength=count) > 0
    # what a reduction hands on is a value a row
    tensors_of = np.bincount(run[full & ~reduces], minlength=count)
    handed_on = np.maximum(before - 2 * (tensors_of - 1), 1)
    needed = np.where(in_backward, 3.0, np.where(takes_two, 3.0, 2.0))
    # what a linear run adds comes from outside of it, forward and backward, and nothing is saved
    linear = np.bincount(run[full & ~_linear(kernels, rows)], minlength=count) == 0
    needed = np.where(linear, np.maximum(handed_on, needed), needed)
    alone = kernels_of <= 1
    passes = (
        np.where(alone, before, np.minimum(handed_on, 2.0)),
        np.where(alone, before, np.minimum(handed_on, needed)),
        np.where(alone, before, np.minimum(handed_on, 2 * needed)),
    )
    elements = _elements(kernels, rows, run, full, pass_ns)
    inputs = np.where(_concatenated(kernels, rows, run, ~whole, count), _CONCATENATED, 1)
    of_name = np.array([work_of(c.operation or c.category) for c in kernels.classes] + [(0, 0)])
    work = of_name[name].astype(np.float64)
    plain, special = (
        _with_recomputation(_sums(run, work[:, at], full, count), elements,
                            kernels_of * in_backward, in_backward) * inputs
        for at in (0, 1)
    )  # fmt: skip
    return _Runs(
        pass_ns=pass_ns,
        elements=elements,
        plain=plain,
        special=special,
        passes=passes,
        shortest_ns=np.where(np.isfinite(shortest), shortest, 0),
        spent_ns=_sums(run, spent, ~whole, count),
    )


def _concatenated(
    kernels: Kernels, rows: IntArray, run: IntArray, mask: BoolArray, count: int
) -> BoolArray:
    """Runs whose result is several tensors side by side."""
    last = np.full(count, -1, np.int64)
    at = np.flatnonzero(mask)
    last[run[at]] = at  # the last of each counts
    joins = kernels.gpu.ops.matches("name", _CONCATENATION)[rows]
    found: BoolArray = (last >= 0) & joins[last]
    return found


def _linear(kernels: Kernels, rows: IntArray) -> BoolArray:
    """Sums of tensors, multiples by a number, and copies."""
    by_number = kernels.of_operation("Mul", tensors=_OF_A_NUMBER)
    found: BoolArray = (kernels.of_operation(*_SUMS) | by_number)[rows]
    return found


def launched_elements(kernels: Kernels, rows: IntArray) -> IntArray:
    """Elements that the launches of some rows are made for; 0 where a name does not tell."""
    each = np.array([c.thread_elements for c in kernels.classes] + [0])
    found: IntArray = (kernels.blocks * kernels.threads * each[kernels.gpu.ops["name"]])[rows]
    return found


def _of_full_size(
    kernels: Kernels, rows: IntArray, run: IntArray, whole: BoolArray, old: FloatArray
) -> BoolArray:
    """Kernels that move tensors of their run's size, and not a value a row or a parameter.

    What they were launched for tells: one that touches four tensors, or twice as large ones (a bias
    before its halves go separate ways), takes several times as long as one that touches two. Where
    a run's launches do not tell, the time does.
    """
    count = int(run[-1]) + 1 if len(run) else 0
    longest = np.zeros(count)
    np.maximum.at(longest, run[~whole], old[~whole])
    long_: BoolArray = old >= LIKE_THE_LONGEST * longest[run]
    elements = launched_elements(kernels, rows)
    # the size that most of the run's time is spent on
    size = np.zeros(count)
    known = ~whole & long_ & (elements > 0)
    np.maximum.at(size, run[known], elements[known].astype(np.float64))
    known_size = (elements > 0) & (size[run] > 0)
    full: BoolArray = np.where(known_size, elements >= LIKE_THE_LARGEST * size[run], long_)
    return full


def _elements(
    kernels: Kernels, rows: IntArray, run: IntArray, full: BoolArray, pass_ns: FloatArray
) -> FloatArray:
    """Elements of each run's tensors: by a launch of it, else by what a pass moves."""
    launched = launched_elements(kernels, rows)
    found = np.zeros(len(pass_ns))
    np.maximum.at(found, run[full], launched[full].astype(np.float64))
    by_traffic = pass_ns * 1e-9 * kernels.attainable_bandwidth / _FLOAT
    return np.where(found > 0, found, by_traffic)


_FLOAT: Final = 4.0  # bytes of an element where nothing tells: single precision


def _with_recomputation(
    own: FloatArray, elements: FloatArray, size: FloatArray, in_backward: BoolArray
) -> FloatArray:
    """Work for one element of each run; runs of the backward pass compute the forward ones again.

    Which run of the forward pass belongs to which is not known: each gets its part by the number
    of its kernels (``size``).
    """
    forward = float((own * elements)[~in_backward].sum())
    share = size / max(float(size.sum()), 1.0)
    return own + np.where(elements > 0, forward * share / np.maximum(elements, 1), 0)


def work_of(operation: str) -> tuple[int, int]:
    """Instructions of an operation for one element, and special functions among them."""
    found = ((plain, special) for pattern, plain, special in _WORK if pattern.search(operation))
    return next(found, _PLAIN)


def _of_runs(runs: _Runs, kernels: Kernels, at: int) -> FloatArray:
    """Time of each run's merged kernel: 0 for the least, 1 for the usual, 2 for the most."""
    passes = runs.passes[at]
    memory = passes * runs.pass_ns
    arithmetic = np.zeros(len(memory))
    if kernels.peaks is not None and kernels.peaks.fp32:
        cores = kernels.peaks.fp32 / 2  # a multiply-add is two
        busier = np.maximum(runs.plain + _OF_PASS * passes, SPECIAL_SHARE * runs.special)
        arithmetic = runs.elements * busier / (cores * ISSUED[at]) * 1e9
    least = np.maximum(np.maximum(memory, arithmetic), runs.shortest_ns)
    return np.minimum(least, runs.spent_ns)


def _sums(run: IntArray, values: FloatArray, mask: BoolArray, count: int) -> FloatArray:
    found: FloatArray = np.bincount(run[mask], values[mask], count).astype(np.float64)
    return found


def longest_of_runs(old: IntArray, run: IntArray, mask: BoolArray) -> BoolArray:
    """The longest row of each run among some rows; the first of several."""
    found = np.zeros(len(old), bool)
    rows = np.flatnonzero(mask)
    order = rows[np.lexsort((rows, -old[rows], run[rows]))]
    first = np.ones(len(order), bool)
    first[1:] = run[order[1:]] != run[order[:-1]]
    found[order[first]] = True
    return found
