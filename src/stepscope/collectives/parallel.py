"""How the job is parallel, as far as its communication tells: likely, with the reasons."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.collectives import kinds
from stepscope.collectives.match import Matched
from stepscope.intervals import coverage, overlap_per_window
from stepscope.kernels.categories import classify
from stepscope.trace.frame import IntArray

_AFTER_FORWARD: Final = 0.2
"""The forward pass is a third of forward and backward (two of three GEMMs are in the
backward pass). Gradients are communicated after it, activations from the first layer on."""

_HIDDEN: Final = 0.25
"""Work on the compute path cannot run under compute that needs its result: of it, hardly any is
hidden."""

_ATTENTION: Final = 0.2
"""Three all-to-alls (queries, keys, values) may go before one attention and one behind it."""

_EMBEDDING_BAG: Final = re.compile(
    r"embedding_?bag|split_embedding|batched_embedding|bounds_check_indices", re.IGNORECASE
)
"""Kernels of pooled embedding tables (PyTorch's EmbeddingBag, FBGEMM), as recommenders have."""

_SMALL_BYTES: Final = 1 << 16
_SMALL_NS: Final = 100_000
_MANY: Final = 4


@dataclass(frozen=True)
class Guess:
    """What a communicator is likely for.

    Attributes:
        channel: number of the communicator.
        id: ``data_parallel``, ``sharded_data_parallel``, ``tensor_parallel``,
            ``pipeline_parallel``, ``expert_parallel``, ``sequence_parallel``,
            ``embedding_parallel``, ``context_parallel``, ``scalars`` or ``unknown``.
        message: the evidence, in one sentence.
    """

    channel: int
    id: str
    message: str


LABELS: Final = {
    "data_parallel": "data parallel (DDP)",
    "sharded_data_parallel": "sharded data parallel (FSDP, ZeRO)",
    "tensor_parallel": "tensor parallel",
    "pipeline_parallel": "pipeline parallel",
    "expert_parallel": "expert parallel",
    "sequence_parallel": "sequence parallel (Ulysses)",
    "embedding_parallel": "embedding tables sharded over ranks (DLRM)",
    "context_parallel": "context parallel (ring attention or another ring)",
    "scalars": "single numbers (loss, gradient norm)",
    "unknown": "unknown",
}
"""What the ids mean."""


def guesses(
    explained: list[Explanation], matched: Matched, begin_ns: IntArray, end_ns: IntArray
) -> list[Guess]:
    """One for each communicator that is used in the given windows of the job's clock."""
    return [
        guess
        for number in range(len(matched.channels))
        if (guess := _guess(number, explained, matched, begin_ns, end_ns)) is not None
    ]


def _guess(
    number: int,
    explained: list[Explanation],
    matched: Matched,
    begin_ns: IntArray,
    end_ns: IntArray,
) -> Guess | None:
    device = matched.channels[number].members[0][0]
    e, rank = explained[device], matched.ranks[device]
    begin, end = rank.clock.back(begin_ns), rank.clock.back(end_ns)
    instances = matched.instances
    start = e.gpu.ops["start_ns"][rank.op]
    window = np.searchsorted(begin, start, side="right") - 1
    inside = (window >= 0) & (start < end[np.maximum(window, 0)]) if len(begin) else window < 0
    mine = inside & (instances.channel[rank.instance] == number)
    if not mine.any():
        return None
    kind = instances.kind[rank.instance[mine]]
    share = np.bincount(kind, minlength=len(kinds.KINDS)) / len(begin)
    stop = e.gpu.ops["end_ns"][rank.op][mine]
    compute = e.gpu.union_of(e.gpu.is_compute)
    length = np.maximum(stop - start[mine], 1)
    hidden = float(overlap_per_window(compute, start[mine], stop).sum() / length.sum())
    moving = stop - start[mine] - rank.waiting_ns[mine]
    done = coverage(compute, start[mine]) - coverage(compute, begin[window[mine]])
    whole = coverage(compute, end) - coverage(compute, begin)
    place = done / np.maximum(whole[window[mine]], 1)

    def first(code: str) -> float:
        """Median over the windows of how much of the compute is done before the first of a kind."""
        rows = kind == kinds.CODE[code]
        if not rows.any():
            return 1.0
        earliest = np.full(len(begin), np.inf)
        np.minimum.at(earliest, window[mine][rows], place[rows])
        return float(np.median(earliest[np.isfinite(earliest)]))

    per_step = {name: float(share[kinds.CODE[name]]) for name in kinds.KINDS}
    size = instances.bytes[rank.instance[mine]]
    tiny = (size >= 0) & (size <= _SMALL_BYTES) | (size < 0) & (moving <= _SMALL_NS)
    point_to_point = matched.channels[number].point_to_point
    id_, message = _reading(per_step, first, hidden, bool(tiny.all()), point_to_point)
    if id_ == "expert_parallel":
        sends = kind == kinds.CODE["all_to_all"]
        part = _attention_between(e, start[mine][sends], stop[sends])
        if part >= _ATTENTION:
            id_ = "sequence_parallel"
            message += (
                f", {100 * part:.0f} % of them with attention and nothing else up to the next"
            )
    # tables split by tables or columns are exchanged, those split by rows summed up
    if id_ in ("expert_parallel", "tensor_parallel") and any(
        _EMBEDDING_BAG.search(text) for text in e.gpu.ops.texts["name"]
    ):
        id_ = "embedding_parallel"
        message += ", between lookups of embedding tables"
    return Guess(number, id_, f"{message}; {100 * hidden:.0f} % of its time is under compute")


def _attention_between(e: Explanation, start: IntArray, stop: IntArray) -> float:
    """Share of the stretches from one all-to-all to the next with attention and no projection.

    An all-to-all before attention turns a part of the sequence into a part of the heads, and one
    behind it turns it back. Between those around experts stand experts, or a whole attention block
    with its projections.
    """
    if len(start) < _MANY:
        return 0.0
    order = np.argsort(start, kind="stable")
    begin, end = stop[order][:-1], start[order][1:]
    ops = e.gpu.ops
    categories = [classify(text).category for text in ops.texts["name"]] + [""]

    def count(*names: str) -> IntArray:
        hit = (
            np.array([category in names for category in categories])[ops["name"]] & e.gpu.is_compute
        )
        done = np.concatenate(([0], np.cumsum(hit)))
        low, high = (np.searchsorted(ops["start_ns"], edge) for edge in (begin, end))
        found: IntArray = done[np.maximum(high, low)] - done[low]
        return found

    only = (count("attention") > 0) & (count("matmul") == 0)
    return float(only.mean())


def _reading(
    per_step: dict[str, float],
    first: Callable[[str], float],
    hidden: float,
    tiny: bool,
    point_to_point: bool,
) -> tuple[str, str]:
    """(what it is likely for, why).

    Args:
        per_step: operations per step by kind.
        first: how much of a step's compute is done before the first operation of a kind.
        hidden: share of the transfer under compute.
        tiny: whether all messages are small.
        point_to_point: whether it connects two ranks for sends and receives.
    """
    reductions = per_step["all_reduce"]
    if point_to_point:
        count = f"{_a_step(per_step['send_recv'])} sends and receives a step between two ranks"
        return "pipeline_parallel", count
    for name, use, words in (
        ("exchange", "context_parallel", "sends and receives a step, on all ranks at once"),
        ("all_to_all", "expert_parallel", "all-to-alls a step"),
    ):
        if per_step[name] >= 1:
            return use, f"{_a_step(per_step[name])} {words}"
    if per_step["reduce_scatter"] >= 1 and per_step["all_gather"] >= 1:
        at = first("reduce_scatter")
        gathers, scatters = (_a_step(per_step[n]) for n in ("all_gather", "reduce_scatter"))
        counts = (
            f"{gathers} all-gathers and {scatters} reduce-scatters a step, the first of these "
            f"after {100 * at:.0f} % of the compute"
        )
        return ("sharded_data_parallel" if at >= _AFTER_FORWARD else "tensor_parallel"), counts
    if reductions:
        at = first("all_reduce")
        counts = (
            f"{_a_step(reductions)} all-reduces a step, the first after {100 * at:.0f} % of the "
            "compute"
        )
        if tiny and reductions <= _MANY:
            return "scalars", counts
        early = at < _AFTER_FORWARD and hidden < _HIDDEN and reductions >= _MANY
        return ("tensor_parallel" if early else "data_parallel"), counts
    used = ", ".join(f"{_a_step(n)} {name} per step" for name, n in per_step.items() if n)
    return "unknown", used


def _a_step(count: float) -> str:
    """A number of operations per step: with a decimal only where it is no whole one."""
    return f"{count:.1f}".removesuffix(".0")
