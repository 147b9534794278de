"""A step as CUDA graphs: as one, or as graphs of the model beside an update that stays outside."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.activity.names import OPTIMIZER_KERNEL
from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import with_first
from stepscope.simulation.changes import Bound
from stepscope.simulation.program import LAUNCH, MARK, C, Program, own_work
from stepscope.simulation.settings.graphs import capturable
from stepscope.simulation.subject import Subject, launching_ns
from stepscope.simulation.without_causes import gap_in_graph_ns, launches_free
from stepscope.trace.frame import BoolArray

COMPILED_MODEL: Final = {"low": (15, 0.10), "expected": (24, 0.13), "high": (35, 0.18)}
"""What graphs of the model cost the host in a step, in launches of the program as it is: so many,
and so many for each that is captured. The model is called, arguments are wrapped for autograd, the
loss is launched as before, and each parameter's gradient is handed over one by one. Least where
graphs replace the model's call (``make_graphed_callables``: 28, 71 and 125 launches' worth for
perceptrons of 88, 300 and 724 operations), most where a compiler checks its guards and looks for
the graph (``reduce-overhead``: 42, 89 and 137 for these, 55 and 78 for a GPT and a vision
transformer of 206 and 387; H200, torch 2.11)."""

COMPILED_INFERENCE: Final = {"low": (5, 0.0), "expected": (40, 0.0), "high": (80, 0.0)}
"""The same without a backward pass: 8 launches' worth for a GPT, 76 for a decoder whose cache is
written in each step (``reduce-overhead``)."""


def updates(e: Explanation) -> BoolArray:
    """Operations that update parameters, by their names or by where they are launched."""
    return e.gpu.ops.matches("name", OPTIMIZER_KERNEL) | e.kernels.in_phase("optimizer")


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
    subject: Subject, updates: BoolArray, bound: Bound, unrecorded: Subject | None = None
) -> Subject:
    """Forward and backward pass are graphs; the update, and the way into the model, are as today.

    The host also pays for the graphs themselves, once a step and at its own pace: a host on which a
    launch takes long takes as much longer for that.

    Args:
        subject: the program.
        updates: the operations of the update, a mask over ``GPU.ops``; none of a program that
            infers.
        bound: which of the uncertainties to assume.
        unrecorded: the program without what recording costs, which shows the pace; None where
            recording costs nothing.
    """
    program = subject.program
    inside = capturable(subject) & ~_of_update(subject, updates)
    within = inside & np.append(False, inside[:-1])
    work = own_work(program)
    work[within, C["launch_bound"]] = 0
    if bound == "low":
        work[within, C["host_compute"]] = 0
    # nobody recorded this: it is no launching that would be quicker without the recording
    first = _first_of_steps(subject, inside)
    work[first, C["host_compute"]] += _cost_ns(
        (unrecorded or subject).program, within, int(first.sum()), bound, trains=bool(updates.any())
    )
    graphed = within if bound != "high" else np.zeros_like(within)
    return subject.becomes(
        work_ns=work,
        call_ns=np.where(within, 0, program.call_ns),
        recording_ns=np.where(within, 0, program.recording_ns),
        recording_untraced_ns=np.where(within, 0, program.recording_untraced_ns),
        kernel_gap_ns=np.where(graphed, gap_in_graph_ns(subject), program.kernel_gap_ns),
        delay_ns=np.where(graphed, 0, program.delay_ns),
    )


def _cost_ns(program: Program, within: BoolArray, steps: int, bound: Bound, *, trains: bool) -> int:
    """What graphs of the model cost the host in a step.

    Args:
        program: the program as nobody records it.
        within: the launches that go.
        steps: its steps.
        bound: which of the uncertainties to assume.
        trains: whether there is a backward pass.
    """
    launches = int(within.sum())
    if not launches:
        return 0
    whole, part = (COMPILED_MODEL if trains else COMPILED_INFERENCE)[bound]
    each = float(launching_ns(program)[within].mean())
    return round(each * (whole + part * launches / max(steps, 1)))


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
