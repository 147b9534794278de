"""CUDA graphs: what can be captured is launched at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.simulation.changes import Bound
from stepscope.simulation.program import MARK, WAIT, C
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import Edit, Facts, Setting, launch_cost_ns
from stepscope.simulation.subject import Subject
from stepscope.simulation.without_causes import gap_in_graph_ns
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, IntArray

GRAPH_LAUNCH_NS: Final = 20_000
"""What the launch of a graph with some hundred nodes costs the host (NVIDIA: "Constant-time launch
for straight-line CUDA graphs", 2024: 2.5 us plus 1 ns a node where it is a chain; more with
branches, and the copy of the input before it)."""

ALREADY: Final = 0.5
"""Share of the kernels that run in graphs already from which on there is nothing to do."""


@dataclass(frozen=True)
class Graphs(Edit):
    """Kernels are launched as CUDA graphs, between one wait of the host and the next."""

    order = 8
    text = "CUDA graphs of what lies between the host's waits"

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs with graphs."""
        for one in facts:
            _refuse(one)
        return [graphed(s, bound) for s in subjects]

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        return [
            "shapes and control flow are the same in every step, and the optimizer is capturable; "
            "what the host does between launches in the captured part is not done any more, but "
            "for input, checkpoints and waits"
        ]

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """Modelled."""
        return "modelled"


def _refuse(facts: Facts) -> None:
    kernel = facts.gpu.is_kernel & facts.kernels.steady
    graphed_ = kernel & (facts.gpu.ops["graph_id"] >= 0)
    graphed_ |= facts.gpu.ops.equals("kind", "graph") & facts.kernels.steady
    if graphed_.sum() > ALREADY * max(int(kernel.sum()), 1):
        raise UsageError("graphs=on: the kernels are launched by CUDA graphs already")


def capturable(subject: Subject) -> BoolArray:
    """Items that a graph can hold: launches that nothing waits for, and no copies from the host."""
    program, ops = subject.program, subject.gpu.ops
    row = np.maximum(program.op, 0)
    crossing = ops.equals("copy_kind", "HtoD", "DtoH")[row] & (program.op >= 0)
    found: BoolArray = subject.is_op & ~program.blocks & ~crossing & program.hosted
    return found


def segments(subject: Subject, inside: BoolArray) -> IntArray:
    """Number of the graph that each item would be in; a wait or a step's begin ends one."""
    program = subject.program
    ends = (program.kind == MARK) | (program.kind == WAIT) | program.blocks
    return np.cumsum(ends).astype(np.int64) * 2 + inside


def graphed(subject: Subject, bound: Bound) -> Subject:
    """One launch for each captured part."""
    program = subject.program
    inside = capturable(subject)
    part = segments(subject, inside)
    rows = np.flatnonzero(inside)
    first = np.zeros(len(program), bool)
    first[rows[np.diff(part[rows], prepend=-1) != 0]] = True
    size = np.bincount(part[rows], minlength=int(part.max(initial=0)) + 1)[part]
    # a graph of a few nodes costs no more than they do
    launch = np.minimum(GRAPH_LAUNCH_NS, size * max(launch_cost_ns(subject), 1))
    work = program.work_ns.copy()
    for cause in ("launch_bound", "profiler_overhead"):
        work[inside, C[cause]] = 0
    if bound == "low":
        work[inside, C["host_compute"]] = 0
    gap = np.where(inside, gap_in_graph_ns(subject, bound), program.kernel_gap_ns)
    changed = replace(
        program,
        work_ns=work,
        call_ns=np.where(inside, np.where(first, launch, 0), program.call_ns),
        recording_ns=np.where(inside, 0, program.recording_ns),
        recording_untraced_ns=np.where(inside, 0, program.recording_untraced_ns),
        kernel_gap_ns=gap,
        delay_ns=np.where(inside & (bound != "high"), 0, program.delay_ns),
    )
    return replace(subject, program=changed)


def read(text: str) -> Graphs:
    """``on``."""
    if text != "on":
        raise ValueError(text)
    return Graphs()


SETTING = Setting(
    name="graphs",
    title="CUDA graphs",
    values="on",
    example="on",
    help="kernels are launched as CUDA graphs",
    model=(
        "between one wait of the host and the next, all launches become one; their cost on the "
        "host goes, kernels follow one another within 1 us, and each graph costs one launch. "
        "Copies from and to the host and everything that waits stay outside"
    ),
    assumes="static shapes and control flow, a capturable optimizer, NCCL inside the graph",
    checked="whole training steps of small and large models; parts of a step were not measured",
    refuses="where most kernels run in graphs already",
    reads=read,
)
