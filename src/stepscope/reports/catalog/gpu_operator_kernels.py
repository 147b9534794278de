"""Which kernels operators launch, in which order, how often, and how long after they began."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.intervals.nesting import nest, stab_innermost
from stepscope.reports.arrays import FloatArray, dictionary, group, round_half_away
from stepscope.reports.gpu_work import WITHOUT_LAST_STEP, Work
from stepscope.reports.launches import thread_keys
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK, KERNELS, Need
from stepscope.reports.report import ROWS, Answer, Argument, Arguments, Column, Report, limit
from stepscope.reports.source import Rows, Source
from stepscope.trace.frame import IntArray

_ARROW = " -> "
_OPERATOR = Argument(
    "operator",
    "operators and annotations whose name holds this; by default all operators",
    text=True,
)
_LEAST = Argument("kernels", "only sequences of at least this many operations", 3, low=1)
_ANY = Argument("any", "operators of any name; by default those of ATen, aten::")


def innermost_calls(host: Rows, calls: Rows, call: IntArray) -> IntArray:
    """Row of the innermost host event of the same thread around each call; -1 where there is none.

    Args:
        host: operators or ranges.
        calls: calls.
        call: rows of calls.
    """
    found = np.full(len(call), -1, np.int64)
    if not len(host) or not len(call):
        return found
    of_host, of_call = thread_keys(host, calls)
    begin, end = calls["start_ns"][call], calls["end_ns"][call]
    for thread in distinct_values(of_call[call]).tolist():
        rows = np.flatnonzero(of_host == thread)
        mine = np.flatnonzero(of_call[call] == thread)
        if not len(rows):
            continue
        start, stop = host["start_ns"][rows], host["end_ns"][rows]
        order = np.lexsort((-stop, start))
        rows, start, stop = rows[order], start[order], stop[order]
        at = stab_innermost(start, stop, begin[mine])
        parent, _ = nest(start, stop, np.zeros(len(rows), np.int64))
        # one that ends inside the call does not launch it
        cut = np.flatnonzero((at >= 0) & (stop[at] < end[mine]))
        while len(cut):
            at[cut] = parent[at[cut]]
            cut = cut[(at[cut] >= 0)]
            cut = cut[stop[at[cut]] < end[mine][cut]]
        found[mine] = np.where(at >= 0, rows[at], -1)
    return found


@dataclass(frozen=True)
class _Sequences:
    """What equal sequences of operations have in common.

    Attributes:
        of: number of the sequence of each group of operations.
        text: each sequence.
    """

    of: IntArray
    text: list[str]


def _sequences(groups: IntArray, names: IntArray, texts: list[str], number: int) -> _Sequences:
    """Number the sequences of names, given group by group, in order."""
    edges = np.searchsorted(groups, np.arange(number + 1))
    raw = np.ascontiguousarray(names, np.int32)
    known: dict[bytes, int] = {}
    of = np.empty(number, np.int64)
    for row, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        of[row] = known.setdefault(raw[first:last].tobytes(), len(known))
    found = [_ARROW.join(texts[n] for n in np.frombuffer(key, np.int32).tolist()) for key in known]
    return _Sequences(of, found)


def _operators(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    kernel = work.ops.equals("kind", ("kernel",))
    pairs = work.launched
    alone = np.bincount(pairs.call, minlength=len(work.calls))[pairs.call] == 1
    keep = kernel[pairs.op] & alone
    op, call = pairs.op[keep], pairs.call[keep]
    calls = work.calls
    operators = source.rows("operator")
    if not arguments.get(_ANY.name):
        operators = operators.where(operators.that("name", lambda text: text.startswith("aten::")))
    inside = innermost_calls(operators, calls, call)
    order = np.lexsort((calls["start_ns"][call], inside))
    order = order[inside[order] >= 0]
    op, call, inside = op[order], call[order], inside[order]
    first = np.flatnonzero(np.diff(inside, prepend=-1))
    instance = inside[first]
    number = len(instance)
    groups = np.repeat(np.arange(number), np.diff(np.append(first, len(inside))))
    texts = work.ops.texts("name")
    sequences = _sequences(groups, work.ops["name"][op], texts, number)
    names = operators["name"][instance]
    launch_ns = calls["start_ns"][call[first]] - operators["start_ns"][instance]
    delay_ns = work.ops["start_ns"][op[first]] - calls["start_ns"][call[first]]
    gpu_ns = np.add.reduceat(work.ops.duration[op], first) if number else np.empty(0, np.int64)
    kinds, of_kind = group(names, sequences.of)
    count = np.bincount(kinds, minlength=len(of_kind))

    def mean(values: IntArray) -> FloatArray:
        return np.bincount(kinds, weights=values, minlength=len(of_kind)) / np.maximum(count, 1)

    ordered = np.lexsort((of_kind, -count))[limit(arguments)]
    at = of_kind[ordered]
    return [
        dictionary(names[at], operators.texts("name")),
        count[ordered],
        round_half_away(mean(launch_ns)[ordered]),
        round_half_away(mean(delay_ns)[ordered]),
        round_half_away(mean(gpu_ns)[ordered]),
        dictionary(sequences.of[at], sequences.text),
    ]


@dataclass(frozen=True)
class _Named:
    """Operators and annotations in one list, and the threads of calls in the same numbers."""

    thread: IntArray
    start_ns: IntArray
    end_ns: IntArray
    name: IntArray
    texts: list[str]
    of_call: IntArray


def _named(source: Source, calls: Rows, text: str) -> _Named:
    """Operators and annotations whose name holds a text; without text, all operators."""
    ranges = ("annotation", "pushpop") if text else ()
    tables = [source.rows("operator"), source.of_kind("range", "kind", *ranges)]
    chosen = [rows.where(rows.that("name", lambda name: text in name)) for rows in tables]
    *threads, of_call = thread_keys(*chosen, calls)
    texts = [rows.texts("name") for rows in chosen]
    return _Named(
        np.concatenate(threads),
        np.concatenate([rows["start_ns"] for rows in chosen]),
        np.concatenate([rows["end_ns"] for rows in chosen]),
        np.concatenate([chosen[0]["name"].astype(np.int64), chosen[1]["name"] + len(texts[0])]),
        texts[0] + texts[1],
        of_call,
    )


def _frequent(source: Source, arguments: Arguments) -> Answer:
    text = str(arguments[_OPERATOR.name])
    work = Work(source, arguments)
    op, call = work.launched.op, work.launched.call
    host = _named(source, work.calls, text)
    parent, _ = nest(host.start_ns, host.end_ns, host.thread)
    roots = np.flatnonzero(parent < 0)
    roots = roots[np.lexsort((host.start_ns[roots], host.thread[roots]))]
    inside = np.full(len(call), -1, np.int64)
    begin, end = work.calls["start_ns"][call], work.calls["end_ns"][call]
    thread = host.of_call[call]
    for number in distinct_values(host.thread[roots]).tolist():
        rows = roots[host.thread[roots] == number]
        mine = np.flatnonzero(thread == number)
        at = np.searchsorted(host.start_ns[rows], begin[mine], side="right") - 1
        held = (at >= 0) & (host.end_ns[rows[at]] >= end[mine])
        inside[mine] = np.where(held, rows[at], -1)
    order = np.lexsort((op, work.ops["start_ns"][op], inside))
    order = order[inside[order] >= 0]
    op, inside = op[order], inside[order]
    first = np.flatnonzero(np.diff(inside, prepend=-1))
    size = np.diff(np.append(first, len(inside)))
    groups = np.repeat(np.arange(len(first)), size)
    sequences = _sequences(groups, work.ops["name"][op], work.ops.texts("name"), len(first))
    gpu_ns = np.add.reduceat(work.ops.duration[op], first) if len(first) else first
    enough = np.flatnonzero(size >= int(arguments[_LEAST.name]))
    of_instance = inside[first][enough]
    sequence, gpu_ns, size = sequences.of[enough], gpu_ns[enough], size[enough]
    kinds, of_kind = group(host.name[of_instance], sequence)
    number = len(of_kind)
    count = np.bincount(kinds, minlength=number)
    gpu, cpu = np.zeros(number, np.int64), np.zeros(number, np.int64)
    np.add.at(gpu, kinds, gpu_ns)
    np.add.at(cpu, kinds, host.end_ns[of_instance] - host.start_ns[of_instance])
    ordered = np.lexsort((of_kind, -gpu, -count))[limit(arguments)]
    at = of_kind[ordered]
    return [
        dictionary(host.name[of_instance[at]], host.texts),
        count[ordered],
        size[at],
        gpu[ordered],
        cpu[ordered],
        dictionary(sequence[at], sequences.text),
    ]


_HELD = Need(
    "operators of the framework",
    "operator",
    "torch.profiler, or nsys profile with --pytorch=autograd-nvtx",
    "operator",
)


REPORTS = [
    Report(
        "gpu_operator_kernels",
        "Kernels by Operator",
        "The kernels that operators launch themselves (the innermost operator around the call "
        "launches it), by operator and sequence, most frequent first. The launch delay runs from "
        "the operator's begin to that of its first launching call, the queue delay from there to "
        "the begin of its first kernel. Kernels of CUDA graphs are left out.",
        (
            Column("Operator"),
            Column("Count", doc="operators that launched this sequence"),
            Column("Avg Launch Delay", "dur", "from the operator's begin to its first launch"),
            Column("Avg Queue Delay", "dur", "from that launch to the begin of its kernel"),
            Column("Avg GPU Time", "dur", "sum of the kernels' lengths"),
            Column("Kernels", doc="in the order of their launches"),
        ),
        _operators,
        arguments=(_ANY, ROWS, WITHOUT_LAST_STEP),
        aliases=("get_aten_op_kernels_and_delay",),
        needs=(KERNELS, CUDA_CALLS, _HELD),
    ),
    Report(
        "gpu_kernel_sequences",
        "Frequent Kernel Sequences",
        "The sequences of kernels, copies and memsets that operators or annotations launched, "
        "everything inside them counted, most frequent first. Of those whose names hold "
        "'operator', one inside another is part of the outer one.",
        (
            Column("Operator", doc="operator or annotation"),
            Column("Count", doc="how often it launched this sequence"),
            Column("Operations", doc="length of the sequence"),
            Column("GPU Time", "dur", "sum of the operations' lengths"),
            Column("CPU Time", "dur", "sum of the operators' lengths"),
            Column("Sequence", doc="in the order in which they began on the GPU"),
        ),
        _frequent,
        arguments=(_OPERATOR, _LEAST, ROWS, WITHOUT_LAST_STEP),
        aliases=("get_frequent_cuda_kernel_sequences",),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
]
