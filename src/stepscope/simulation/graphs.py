"""A step as CUDA graphs: as one, or as graphs of the model beside an update that stays outside."""

from __future__ import annotations

import numpy as np

from stepscope.activity.names import OPTIMIZER_KERNEL
from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import with_first
from stepscope.simulation.changes import COMPILED_MODEL_NS, Bound, Subject, launches_free
from stepscope.simulation.program import GRAPH_NS, LAUNCH, MARK, C, own_work
from stepscope.simulation.settings.graphs import capturable
from stepscope.trace.frame import BoolArray


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


def model_alone(subject: Subject, updates: BoolArray, bound: Bound) -> Subject:
    """Forward and backward pass are graphs; the update, and the way into the model, are as today.

    The host also pays for the graphs themselves (``COMPILED_MODEL_NS``), once a step.

    Args:
        subject: the program.
        updates: the operations of the update, a mask over ``GPU.ops``.
        bound: which of the uncertainties to assume.
    """
    program = subject.program
    inside = capturable(subject) & ~_of_update(subject, updates)
    within = inside & np.append(False, inside[:-1])
    work = own_work(program)
    work[within, C["launch_bound"]] = 0
    if bound == "low":
        work[within, C["host_compute"]] = 0
    # nobody recorded this: it is no launching that would be quicker without the recording
    work[_first_of_steps(subject, inside), C["host_compute"]] += COMPILED_MODEL_NS[bound]
    quick = np.minimum(program.kernel_gap_ns, GRAPH_NS)
    graphed = within if bound != "high" else np.zeros_like(within)
    return subject.becomes(
        work_ns=work,
        call_ns=np.where(within, 0, program.call_ns),
        recording_ns=np.where(within, 0, program.recording_ns),
        recording_untraced_ns=np.where(within, 0, program.recording_untraced_ns),
        kernel_gap_ns=np.where(graphed, quick, program.kernel_gap_ns),
        delay_ns=np.where(graphed, 0, program.delay_ns),
    )


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
