"""A step as CUDA graphs: as one, or as graphs of the model beside an update that stays outside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.names import OPTIMIZER_KERNEL
from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import with_first
from stepscope.simulation.changes import Bound
from stepscope.simulation.program import LAUNCH, MARK, C, Program, own_work
from stepscope.simulation.settings.graphs import capturable
from stepscope.simulation.settings.shapes import accumulations
from stepscope.simulation.subject import Subject, launching_ns
from stepscope.simulation.without_causes import gap_in_graph_ns, launches_free
from stepscope.trace.frame import BoolArray

COMPILED_MODEL: Final = {"low": (12, 0.25), "expected": (22, 0.42), "high": (35, 0.6)}
"""What graphs of the model cost the host in a step, in launches of the program as it is: so many,
and so many for each gradient that the backward pass hands over. The model is called, its parameters
are passed to autograd as arguments, the loss is launched as before, and each parameter's gradient
is taken out of the graph and accumulated one by one; how many kernels a graph holds hardly matters.
Least where graphs replace the model's call (``make_graphed_callables``: 15 and 0.39 by five
programs of 25 to 237 gradients), most where a compiler checks its guards and looks for the graph
(``reduce-overhead``: 30 and 0.46 by six). Expected is the middle of both; the eleven took 0.9 to
2.5 times the low and 0.4 to 1.0 times the high end (H200, torch 2.11; gradients of three
perceptrons and of one GPT are counted by their launches, 3 and 4 each)."""

GRADIENT_LAUNCHES: Final = {"low": 20.0, "expected": 8.0, "high": 4.5}
"""Captured launches for each gradient, where the capture does not hold what autograd accumulates:
the middle and four of five of 112 training programs whose capture does."""

COMPILED_INFERENCE: Final = {"low": 3, "expected": 8, "high": 15}
"""What calling a compiled model that infers costs the host, in launches. A GPT took 8 and a decoder
7 of their own (``reduce-overhead``); the ends are those of ``COMPILED_CALL_NS``."""

ONE_GRAPH: Final = 0.05
"""Share by which a step that is one graph, and that the device paces, takes more or less than
predicted, in nine of ten. Seven such programs, timed as graphs and predicted from 13 captures of
their single launches, are 1 % off in the middle and 4.7 % at most: the capture holds every kernel
of them, and of the host nothing is left that could take another time."""

_WRITE: Final = re.compile(r"index_copy|index_put")


@dataclass(frozen=True)
class Outside:
    """What graphs of the model do not hold of a program.

    Attributes:
        updates: operations that update parameters, by their names or by where they are launched, a
            mask over ``GPU.ops``; none of a program that infers.
        gradients: those that autograd accumulates in a step, one each parameter; 0 where nothing
            tells.
        in_place: whether a program that does not train writes rows of a tensor, as into a cache of
            keys. Compiled code has no writes in place: where the compiler does not bring them back,
            each becomes a copy of the whole tensor, whose size no kernel tells. A decoder of
            0.40 ms of kernels took 1.27 ms on the device under ``reduce-overhead`` while its host
            was done after 0.12 ms (H200, torch 2.11): about what copying its cache of 100 MB for
            each of 16 writes would add.
    """

    updates: BoolArray
    gradients: float = 0.0
    in_place: bool = False


def outside(e: Explanation) -> Outside:
    """What graphs of the model would not hold of a device's program."""
    updates = e.gpu.ops.matches("name", OPTIMIZER_KERNEL) | e.kernels.in_phase("optimizer")
    trains = e.workload.kind == "training" or bool(updates.any())
    in_place = not trains and bool(e.gpu.ops.matches("name", _WRITE).any())
    return Outside(updates, _gradients(e), in_place)


def _gradients(e: Explanation) -> float:
    rows = accumulations(e.kernels)
    if not len(rows):
        return 0.0
    at = e.kernels.attribution.operators["start_ns"][rows]
    step = np.searchsorted(e.steps.begin_ns, at, side="right") - 1
    return int(((step >= e.first) & (step <= e.last)).sum()) / (e.last - e.first + 1)


def whole_step(subject: Subject, bound: Bound) -> Subject:
    """Each step is one graph, but for its waits and what crosses between host and device.

    Launches are gone, and with them what the host does from one captured launch to the next,
    whatever it was: a graph does not come back to Python. In the long end that work stays.
    """
    after = launches_free(subject, bound)
    if bound == "high":
        return after
    inside = capturable(subject)
    within = inside & np.append(False, inside[:-1])
    work = own_work(after.program)
    work[within, C["host_compute"]] = 0
    # what delayed single launches on their way to the device is gone with them
    return after.becomes(work_ns=work, delay_ns=np.where(within, 0, after.program.delay_ns))


def model_alone(
    subject: Subject, beside: Outside, bound: Bound, unrecorded: Subject | None = None
) -> Subject:
    """Forward and backward pass are graphs; the update, and the way into the model, are as today.

    The host also pays for the graphs themselves, once a step and at its own pace: a host on which a
    launch takes long takes as much longer for that. Where compiled code may copy what is written
    in place, nothing is gained in the long end.

    Args:
        subject: the program.
        beside: what the graphs do not hold.
        bound: which of the uncertainties to assume.
        unrecorded: the program without what recording costs, which shows the pace; None where
            recording costs nothing.
    """
    if bound == "high" and beside.in_place:
        return subject
    program = subject.program
    inside = capturable(subject) & ~_of_update(subject, beside.updates)
    within = inside & np.append(False, inside[:-1])
    work = own_work(program)
    work[within, C["launch_bound"]] = 0
    if bound == "low":
        work[within, C["host_compute"]] = 0
    # nobody recorded this: it is no launching that would be quicker without the recording
    first = _first_of_steps(subject, inside)
    work[first, C["host_compute"]] += _cost_ns(
        (unrecorded or subject).program,
        within,
        int(first.sum()),
        bound,
        beside.gradients if beside.updates.any() else None,
    )
    return subject.becomes(
        work_ns=work,
        call_ns=np.where(within, 0, program.call_ns),
        recording_ns=np.where(within, 0, program.recording_ns),
        recording_untraced_ns=np.where(within, 0, program.recording_untraced_ns),
        kernel_gap_ns=np.where(within, gap_in_graph_ns(subject, bound), program.kernel_gap_ns),
        delay_ns=np.where(within & (bound != "high"), 0, program.delay_ns),
    )


def _cost_ns(
    program: Program, within: BoolArray, steps: int, bound: Bound, accumulated: float | None
) -> int:
    """What graphs of the model cost the host in a step.

    Args:
        program: the program as nobody records it.
        within: the launches that go.
        steps: its steps.
        bound: which of the uncertainties to assume.
        accumulated: gradients that are accumulated in a step, 0 where that is not known; None
            where there is no backward pass.
    """
    launches = int(within.sum())
    if not launches:
        return 0
    each = float(launching_ns(program)[within].mean())
    if accumulated is None:
        return round(each * COMPILED_INFERENCE[bound])
    whole, part = COMPILED_MODEL[bound]
    known = accumulated or launches / max(steps, 1) / GRADIENT_LAUNCHES[bound]
    return round(each * (whole + part * known))


def _of_update(subject: Subject, updates: BoolArray) -> BoolArray:
    """Launches of the optimizer, and those from the first of them to the end of the step."""
    program = subject.program
    mine = subject.of_ops(updates)
    step = np.cumsum(program.kind == MARK)
    so_far = np.cumsum(mine)
    _, begin = with_first(step)
    before = (so_far - mine)[begin][step - step[0]] if len(step) else so_far
    found: BoolArray = (program.kind == LAUNCH) & (so_far > before)
    return found


def _first_of_steps(subject: Subject, inside: BoolArray) -> BoolArray:
    """The first captured launch of each step."""
    step = np.cumsum(subject.program.kind == MARK)
    rows = np.flatnonzero(inside)
    found = np.zeros(len(step), bool)
    found[rows[np.diff(step[rows], prepend=-1) != 0]] = True
    return found
