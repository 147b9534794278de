"""Neighbouring pointwise kernels and reductions that a compiler would make one of."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.frameworks import is_jax
from stepscope.diagnosis.lever import Found, Lever, of_lever
from stepscope.intervals.distinct import among
from stepscope.kernels.fusion import COMPILED, LAYOUT_CHANGE
from stepscope.kernels.merging import merged
from stepscope.kernels.view import CATEGORY_NAMES, Kernels, Repair
from stepscope.trace.frame import BoolArray, IntArray

_ID: Final = "compile"
_LEAST_KERNELS = 2
_SAME_SIZE = 0.02  # grids are rounded up to whole blocks


def find(case: Case, taken: BoolArray) -> Found | None:
    """Runs of kernels that wait for memory, launched one after the other by one thread."""
    kernels = case.explanation.kernels
    if is_jax(case.explanation.gpu):
        return None  # XLA has merged what it could
    ops = kernels.gpu.ops
    order = kernels.order[(kernels.gpu.is_compute & kernels.steady)[kernels.order]]
    category = kernels.category[order]
    can = among(category, [CATEGORY_NAMES.index(name) for name in COMPILED])
    can &= ~taken[order] & ~kernels.in_phase("optimizer")[order]
    can &= ~ops.matches("name", LAYOUT_CHANGE)[order]
    thread, phase = kernels.attribution.thread[order], kernels.phase[order]
    starts = np.ones(len(order), bool)
    starts[1:] = ~(can[1:] & can[:-1] & (thread[1:] == thread[:-1]) & (phase[1:] == phase[:-1]))
    run = np.cumsum(starts) - 1
    length = np.bincount(run[can], minlength=int(run[-1]) + 1 if len(run) else 0)
    inside = can & (length[run] >= _LEAST_KERNELS) if len(run) else can
    rows, run = order[inside], run[inside]
    elements = _elements(kernels, rows)
    # casts of one weight after the other stand in a row and have nothing to do with each other
    joined = np.zeros(len(rows) + 1, bool)
    joined[1:-1] = (run[1:] == run[:-1]) & _may_hand_on(elements[:-1], elements[1:])
    part_of = joined[:-1] | joined[1:]
    rows, run, elements = rows[part_of], run[part_of], elements[part_of]
    if not len(rows):
        return None
    linked = np.zeros(len(rows), bool)
    linked[1:] = (run[1:] == run[:-1]) & _may_hand_on(elements[:-1], elements[1:])
    found = merged(kernels, rows, np.cumsum(~linked) - 1)
    by_row = np.argsort(rows, kind="stable")
    repair = Repair(
        rows=rows[by_row],
        old_ns=kernels.duration_ns[rows[by_row]],
        new_ns=found.new_ns[by_row],
        merged=found.goes[by_row],
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=found.low_ns,
        high_ns=found.high_ns,
    )
    return Found(
        repair=repair,
        message=(
            "{kernels_per_step} pointwise kernels, reductions and normalisations a step stand "
            "next to each other and take {kernels_ns_per_step}; merged, what one hands to the "
            "next need not go through memory, which leaves some {changed_ns_per_step} at the "
            "bandwidth that they achieve"
        ),
        recommendations=[
            "torch.compile(model); begin with the part of the model that holds most of them",
            "torch.compile only the function that spells an operation out, where the whole model "
            "does not compile",
        ],
        figures=[
            Figure(
                "achieved_bytes_per_s",
                "bytes_per_s",
                "SELECT coalesce(sum(moved_bytes) * 1e9 / sum(end_ns - start_ns), 0) FROM "
                f"kernel_category WHERE moved_bytes IS NOT NULL AND {of_lever(_ID)} AND {{gpu}}",
            )
        ],
        next_capture=None if len(kernels.attribution.operators) else captures.STACKS,
    )


def _elements(kernels: Kernels, rows: IntArray) -> IntArray:
    """Elements of the result of contiguous elementwise kernels, by their launch; 0 for others."""
    each = np.array([c.thread_elements for c in kernels.classes] + [0])
    found: IntArray = (kernels.blocks * kernels.threads * each[kernels.gpu.ops["name"]])[rows]
    return found


def _may_hand_on(before: IntArray, after: IntArray) -> BoolArray:
    """Whether one kernel's result may be the next one's operand: of one size, if that is known."""
    unknown = (before == 0) | (after == 0)
    found: BoolArray = unknown | (np.abs(before - after) <= _SAME_SIZE * np.maximum(before, after))
    return found


LEVER = Lever(
    id=_ID,
    title="Compile",
    definition=(
        "Pointwise operations, casts, reductions and normalisations that follow one another each "
        "read their input from memory and write their result to it. A compiler makes one kernel "
        "of a run of them, which keeps what lies between on the chip."
    ),
    differential=(
        "the cause fusion_opportunity is about long chains that make up a tenth of the step: a "
        "function spelled out in primitives. These are the short runs that every model has."
    ),
    prediction=(
        "each kernel's time, less the share of its tensors that the next or the previous kernel "
        "of the run would take from the chip; at the speed at which it moves them here. The range "
        "goes from each run as long as its longest kernel to runs whose results are all written "
        "for the backward pass. GEMMs are left as they are, and so is the host's time"
    ),
    reference="PyTorch: torch.compile; TorchInductor",
    find=find,
    order=3,
)
