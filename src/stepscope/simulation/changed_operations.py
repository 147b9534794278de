"""Programs in which certain GPU operations are scaled, removed, fused or compiled."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.intervals.distinct import among, with_first
from stepscope.simulation.changes import (
    Bound,
    CallCompiled,
    FuseOps,
    RemoveOps,
    ScaleKernels,
    ScaleOps,
)
from stepscope.simulation.program import MARK, C, own_work
from stepscope.simulation.subject import Part, Subject, without_items
from stepscope.trace.frame import BoolArray, FloatArray
from stepscope.trace.regex import regex

COMPILED_CALL_NS: Final = {"low": 50_000, "expected": 150_000, "high": 250_000}
"""What calling compiled code costs the host, once for each part of the model, forward and backward:
guards are checked, arguments are wrapped for autograd (torch 2.11)."""

COMPILED_WHOLE_NS: Final = {"low": 0, "expected": 800_000, "high": 1_500_000}
"""What it costs in a step at most: a whole model is two compiled functions. Operators that launch
nothing, as views and their gradients, go with their dispatch, which pays for part of the calls, or
all of them: between nothing and 1.5 ms remain in programs that their hosts limit afterwards (a GPT,
vision transformers, a ResNet, a U-Net; torch 2.11)."""


def scale_kernels(subject: Subject, change: ScaleKernels) -> tuple[Subject, int]:
    """Kernels of some names take another time; how many there are."""
    mask = subject.gpu.is_kernel & subject.gpu.ops.found("name", regex(change.regex))
    factors = np.where(mask, change.factor, 1.0)
    return _scaled(subject, subject.of_ops(mask), factors)


def _scaled(subject: Subject, items: BoolArray, factors: FloatArray) -> tuple[Subject, int]:
    """Some items take another time, by factors of the rows of ``GPU.ops``."""
    duration = subject.program.duration_ns.copy()
    duration[items] = np.round(duration[items] * factors[subject.program.op[items]])
    return subject.becomes(duration_ns=duration), int(items.sum())


def call_compiled(subject: Subject, change: CallCompiled, bound: Bound) -> tuple[Subject, int]:
    """The host calls compiled code before certain operations; how many there are."""
    items = subject.of_ids(change.ops, change.rank)
    if not items.any():
        return subject, 0
    count, steps = int(items.sum()), int((subject.program.kind == MARK).sum())
    a_step = count / max(steps, 1)
    each = min(COMPILED_CALL_NS[bound], COMPILED_WHOLE_NS[bound] / max(a_step, 1))
    work = own_work(subject.program)
    work[items, C["host_compute"]] += round(each)  # not recorded, and no quicker without
    return subject.becomes(work_ns=work), count


def change_ops(subject: Subject, change: ScaleOps | RemoveOps | FuseOps) -> tuple[Subject, int]:
    """Certain operations are scaled, removed or fused; how many there are."""
    items = subject.of_ids(change.ops, change.rank)
    if not items.any():
        return subject, 0
    count = int(items.sum())
    if isinstance(change, ScaleOps):
        ids, factors = subject.gpu.ops["id"], np.ones(len(subject.gpu.ops))
        changed, position = with_first(np.array(change.ops, np.int64))
        mine = among(ids, changed)
        factors[mine] = np.array(change.factors)[position[np.searchsorted(changed, ids[mine])]]
        return _scaled(subject, items, factors)
    if isinstance(change, RemoveOps):
        part: Part = "calls" if change.inside else "launching"
        return without_items(subject, items, part), count
    step = np.cumsum(subject.program.kind == MARK)
    rows = np.flatnonzero(items)
    _, first = with_first(step[rows])
    kept = rows[first]
    rest = items.copy()
    rest[kept] = False
    fused = without_items(subject, rest, "launching")
    duration = fused.program.duration_ns.copy()
    duration[kept] = change.duration_ns
    work = own_work(fused.program)
    work[kept, C["host_compute"]] += change.host_ns  # not recorded, and no quicker without
    return fused.becomes(duration_ns=duration, work_ns=work), count
