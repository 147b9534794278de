"""Forward passes that the backward pass computes again: activation checkpointing.

PyTorch runs the checkpointed part of the model again inside of the first node of the backward pass
that needs one of its tensors (``use_reentrant=False``), or inside of a node of its own
(``CheckpointFunctionBackward``), by the thread that computes gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.intervals import inside_any
from stepscope.intervals.distinct import among, distinct_rows
from stepscope.kernels.attribution import ENGINE
from stepscope.kernels.kernels import Kernels
from stepscope.trace.frame import BoolArray, Frame, IntArray

HEAVY: Final = ("matmul", "convolution", "attention")
"""Categories of kernels whose gradient is computed by at least one such kernel."""

TELLING: Final = (
    *("elementwise", "softmax", "normalisation", "dropout", "index", "loss", "pooling", "compiled"),
)
"""Categories of what a model computes between those; its gradient is computed by other kernels."""

RUN: Final = 6
"""So many kernels in a row that repeat a stretch of the forward pass are no coincidence. What one
GEMM or convolution launches with its casts, transposes and memory sets is alike in both passes: the
gradient of a transposed convolution is a convolution, and a second derivative passes the layers
forward again. In some 150 training programs without checkpointing such stretches have up to 5."""

_KINDS: Final = 3
"""Different kernels that a repeated stretch has: a product by a factor and a GEMM, again and again,
are the gradient of the same."""


@dataclass(frozen=True)
class Recomputed:
    """Operations of one device that compute forward passes again.

    Attributes:
        rows: rows of ``GPU.ops`` in the steady window, ascending; at least one.
        by_operators: whether operators tell it, rather than the order of the kernels.
    """

    rows: IntArray
    by_operators: bool


def recomputed(kernels: Kernels) -> Recomputed | None:
    """What the backward pass of the steady steps computes again; None for nothing.

    Args:
        kernels: the device's kernels.
    """
    backward = kernels.in_phase("backward")
    by_operators = bool((backward & (kernels.attribution.operator >= 0)).any())
    found = _by_operators(kernels) if by_operators else _by_kernels(kernels)
    rows = np.flatnonzero(found & kernels.steady)
    return Recomputed(rows, by_operators) if len(rows) else None


def _by_operators(kernels: Kernels) -> BoolArray:
    """Operations of forward operators inside of nodes of the backward pass.

    An operator that autograd records has a sequence number. The operators that compute a gradient
    have none, unless the gradient is to be derived again (``create_graph``); then all that a node
    computes has one. A node that computes a forward pass again has both: operators that are
    recorded and, behind them, those of the gradient, or nodes of its own. A function written in
    Python has a number even where nothing is recorded, so that it does not tell by itself.
    """
    who = kernels.attribution
    table, parent = who.operators, who.parents
    is_engine, is_node = _nodes(table, parent)
    recorded = (table["sequence_number"] >= 0) & ~is_engine & ~is_node
    node, outer = _climbed(who.operator, parent, is_engine, recorded)
    # one place more, for what lies in no node
    gradients = np.full(len(table) + 1, np.iinfo(np.int64).min)
    launched = kernels.gpu.enqueue_begin_ns
    own = outer < 0
    np.maximum.at(gradients, node[own], launched[own])
    inner = np.flatnonzero(is_engine)
    around, _ = _climbed(parent[inner], parent, is_engine, recorded)
    np.maximum.at(gradients, around, table["start_ns"][inner])
    records = np.zeros(len(table) + 1, bool)
    dispatched = np.flatnonzero(recorded & words.hits(table, "name", _is_dispatched))
    records[_climbed(dispatched, parent, is_engine, recorded)[0]] = True
    again: BoolArray = (outer >= 0) & (launched < gradients[node]) & records[node]
    again &= ~kernels.gpu.is_communication
    # for the most part the kernels of the forward pass
    twice = again & _in_forward(kernels)
    spent, same = (
        np.bincount(node[rows], kernels.duration_ns[rows], len(table) + 1)
        for rows in (again, twice)
    )
    return again & (2 * same >= spent)[node]


def _is_dispatched(text: str) -> bool:
    """Whether a name is that of an operator of PyTorch's dispatcher, as ``aten::mm``."""
    return "::" in text


def _nodes(table: Frame, parent: IntArray) -> tuple[BoolArray, BoolArray]:
    """Which operators are the engine's evaluation of a node, and which the node itself."""
    texts = table.texts["name"]
    code_of = {text: code for code, text in enumerate(texts)}
    no_engine = -2
    evaluates = [
        code_of.get(text.removeprefix(ENGINE), -1) if text.startswith(ENGINE) else no_engine
        for text in texts
    ]
    node_of = np.array([*evaluates, no_engine])[np.append(table["name"], -1)]
    name, node_of = table["name"], node_of[:-1]
    is_engine: BoolArray = np.not_equal(node_of, no_engine)
    is_node: BoolArray = (parent >= 0) & np.equal(node_of[parent], name) & (name >= 0)
    return is_engine, is_node


def _climbed(
    at: IntArray, parent: IntArray, is_engine: BoolArray, recorded: BoolArray
) -> tuple[IntArray, IntArray]:
    """The innermost evaluation of a node around each operator, and what is recorded below it.

    Args:
        at: rows of operators; -1 for none.
        parent: the row around each.
        is_engine: which rows are evaluations of nodes.
        recorded: which rows autograd recorded.

    Returns:
        The evaluation's row, and that of the outermost recorded operator inside; -1 for none.
    """
    at, outer = at.copy(), np.full(len(at), -1, np.int64)
    open_ = np.flatnonzero(at >= 0)
    while len(open_):
        open_ = open_[~is_engine[at[open_]]]
        here = at[open_]
        outer[open_] = np.where(recorded[here], here, outer[open_])
        at[open_] = parent[here]
        open_ = open_[at[open_] >= 0]
    return at, np.where(at >= 0, outer, -1)


def _launches(kernels: Kernels) -> IntArray:
    """Number of each operation's kernel, launch size and step: equal where a step repeats one."""
    grid, ops = kernels.grid, kernels.gpu.ops
    sizes = [grid[f"{kind}_{axis}"] for kind in ("grid", "block") for axis in "xyz"]
    return distinct_rows([ops["name"], kernels.step, *sizes])[1]


def _in_forward(kernels: Kernels) -> BoolArray:
    """Operations that the forward pass of the same step launches, too."""
    number = _launches(kernels)
    return among(number, number[kernels.in_phase("forward")])


def _by_kernels(kernels: Kernels) -> BoolArray:
    """Operations of the backward pass that repeat a stretch of the same step's forward pass.

    Such a stretch has :data:`RUN` kernels of one thread or more, among them a GEMM, convolution or
    attention and something between these. What a thread repeats counts only where it computes
    gradients as well: of each GEMM that is computed again at least one more, twice for checkpoints
    inside of checkpoints.
    """
    gpu, thread = kernels.gpu, kernels.attribution.thread
    again = np.zeros(len(gpu.ops), bool)
    order = np.lexsort((gpu.ops["start_ns"], gpu.enqueue_begin_ns, thread))
    order = order[(~gpu.is_communication & (thread >= 0))[order]]
    computes = gpu.is_compute[order]
    kernel = order[computes]
    if len(kernel) < RUN or not kernels.in_phase("backward").any():
        return again
    number = _launches(kernels)[kernel]
    part = distinct_rows([thread[kernel], kernels.step[kernel], kernels.phase[kernel]])[1]
    run = _runs(number)
    changes = np.cumsum(np.append(False, part[1:] != part[:-1]))
    whole = changes[: len(run)] == changes[RUN - 1 :]
    backward, forward = (
        whole & kernels.in_phase(phase)[kernel][: len(run)] for phase in ("backward", "forward")
    )
    begins = np.flatnonzero(backward)
    begins = begins[among(run[begins], run[forward])]
    repeats = inside_any(begins, begins + RUN, len(kernel))
    gradient = kernels.in_phase("backward")[kernel] & ~repeats
    alone = ~among(number, number[gradient])
    heavy, light = (kernels.in_category(*names)[kernel] for names in (HEAVY, TELLING))
    repeats = _telling(repeats, number, part, alone, (heavy, light))
    repeated, rest = (
        np.bincount(part[rows], minlength=int(part.max()) + 1)
        for rows in (heavy & repeats, heavy & ~repeats)
    )
    repeats &= (2 * rest >= repeated)[part]
    again[kernel[repeats]] = True
    # memory sets and copies between two of them
    before = np.cumsum(computes)[~computes]
    repeats, part = np.append(repeats, False), np.append(part, -1)
    inside = repeats[before - 1] & repeats[before] & (part[before - 1] == part[before])
    again[order[~computes][inside]] = True
    return again


def _runs(number: IntArray) -> IntArray:
    """The run of :data:`RUN` numbers that begins at each place, as a number of its own.

    By doubling: a run of 4 is a pair of runs of 2.
    """
    length = 1
    while length < RUN:
        step = min(length, RUN - length)
        number = distinct_rows([number[:-step], number[step:]])[1]
        length += step
    return number


def _telling(
    repeats: BoolArray,
    number: IntArray,
    part: IntArray,
    alone: BoolArray,
    both: tuple[BoolArray, BoolArray],
) -> BoolArray:
    """Of kernels that repeat others, those in stretches that are no coincidence.

    A stretch begins and ends with a kernel that computes no gradient elsewhere: a sum of gradients
    before it may look like the sum at the end of a layer.

    Args:
        repeats: which kernels repeat others.
        number: of each kernel, launch size and step.
        part: of each thread, step and phase.
        alone: kernels that occur nowhere else in the backward pass.
        both: kernels of each of two kinds that a stretch must have.
    """
    begins = repeats.copy()
    begins[1:] &= ~repeats[:-1] | (part[1:] != part[:-1])
    rows = np.flatnonzero(repeats)
    stretch = (np.cumsum(begins) - 1)[rows]
    many = int(begins.sum())
    first, last = np.full(many, len(repeats)), np.full(many, -1)
    np.minimum.at(first, stretch[alone[rows]], rows[alone[rows]])
    np.maximum.at(last, stretch[alone[rows]], rows[alone[rows]])
    within = (rows >= first[stretch]) & (rows <= last[stretch])
    rows, stretch = rows[within], stretch[within]
    kinds = np.bincount(stretch[distinct_rows([stretch, number[rows]])[0]], minlength=many)
    tells = (last - first >= RUN - 1) & (kinds >= _KINDS)
    for needed in both:
        tells &= np.bincount(stretch, needed[rows], many) > 0
    found = np.zeros(len(repeats), bool)
    found[rows[tells[stretch]]] = True
    return found
