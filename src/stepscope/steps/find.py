"""Find the steps of a process: what the user says, what the program marks, what repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.activity import names as words
from stepscope.activity import shapes
from stepscope.activity.device import Lane
from stepscope.intervals.distinct import with_counts
from stepscope.steps.after_start import late_repetition
from stepscope.steps.kinds import inner_of, kind_of
from stepscope.steps.marks import from_marks
from stepscope.steps.model import AUTOMATIC, INNER_PLURAL, StepChoice, Steps
from stepscope.steps.repetition import (
    Launches,
    find_repetition,
    from_graphs,
    from_kernels,
    from_optimizer_ranges,
    is_iteration,
    launches,
    optimizer_runs,
    outer_repetition,
)
from stepscope.steps.windows import step_windows
from stepscope.steps.workload import Workload
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import IntArray
from stepscope.trace.regex import regex
from stepscope.trace.units import milliseconds

_NAMED = 6
"""So many names are offered where a choice of steps finds nothing."""


def find_steps(
    lane: Lane,
    does: Workload,
    window_start_ns: int,
    choice: StepChoice = AUTOMATIC,
) -> tuple[Steps, IntArray]:
    """The steps of the program's loop, and their boundaries on the device's timeline.

    In this order: what the user says; ``ProfilerStep#`` annotations; ranges that hold an
    iteration; phases that repeat together; repeating operations, where what repeats is an
    iteration; the runs of PyTorch's optimizer; a graph that is replayed; what repeats after the
    program's start; else the whole capture as one step.

    Args:
        lane: the device whose operations the steps must hold.
        does: whether the program trains.
        window_start_ns: begin of the capture, ns.
        choice: what the user says a step is.

    Returns:
        The steps with their kind, and their boundaries, ns; one more than there are steps.

    Raises:
        UsageError: the user's choice finds nothing, or is no regular expression.
    """
    enqueued = launches(lane)
    if choice:
        steps = _chosen(lane, enqueued, choice)
    else:
        steps = _found(lane, enqueued, does, window_start_ns) or _whole(lane)
    steps = replace(steps, kind=kind_of(steps, lane, does))
    bounds = step_windows(lane, steps)
    inner = inner_of(steps, enqueued, bounds, does)
    if inner:
        holds = "it holds" if len(steps) == 1 else "each holds"
        parts = ", ".join(
            f"{part.count} {INNER_PLURAL[part.kind]} of {milliseconds(part.median_ns)}"
            for part in inner
        )
        steps = replace(steps, inner=inner, message=f"{steps.message}; {holds} {parts}")
    return steps, bounds


def _found(lane: Lane, enqueued: Launches, does: Workload, window_start_ns: int) -> Steps | None:
    runs = optimizer_runs(lane, enqueued)
    marked = from_marks(lane, runs)
    if marked is not None:
        return marked
    repeated = find_repetition(enqueued)
    if repeated is not None and not runs:
        repeated = outer_repetition(enqueued, repeated) or repeated
    if repeated is not None and is_iteration(enqueued, repeated, runs, does.passes):
        return from_kernels(enqueued, repeated, window_start_ns)
    found = from_optimizer_ranges(lane, window_start_ns) or from_graphs(enqueued, window_start_ns)
    if found is not None:
        return found
    late = late_repetition(enqueued, runs)
    return None if late is None else from_kernels(enqueued, late, window_start_ns)


def _whole(lane: Lane, why: str = "") -> Steps:
    """The whole capture as one step."""
    begin = int(min(lane.enqueue_begin_ns.min(), lane.ops["start_ns"].min()))
    return Steps(
        np.array([begin], np.int64),
        int(lane.ops["end_ns"].max()),
        "whole_capture",
        why or "no repeating step was found, so the whole capture counts as one",
    )


def _chosen(lane: Lane, enqueued: Launches, choice: StepChoice) -> Steps:
    if choice.mark and choice.kernel:
        raise UsageError("--step and --step-kernel both say what a step is; give one of them")
    if choice.mark.lower() == "none":
        return _whole(lane, "the whole capture counts as one step (--step none)")
    if choice.kernel:
        return _chosen_kernel(lane, enqueued, choice)
    return _chosen_range(lane, choice)


def _chosen_range(lane: Lane, choice: StepChoice) -> Steps:
    """Steps that begin at each of the ranges that the user names, the outermost of nested ones."""
    ranges = lane.host.ranges
    names = ranges.texts.get("name", [])
    wanted = {name for name in names if name == choice.mark}
    if not wanted:
        found = regex(choice.mark, "--step").search(names)
        wanted = {names[code] for code in np.flatnonzero(found)}
    if not wanted:
        raise UsageError(
            f"--step {choice.mark!r} names no range of process {lane.process_id}; "
            + _offered("ranges", _step_like(names))
        )
    rows = np.flatnonzero(ranges.that("name", wanted.__contains__))
    begin, end = ranges["start_ns"][rows], ranges["end_ns"][rows]
    earlier_end = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], end[:-1])))
    outer = begin >= earlier_end
    begin = begin[outer]
    message = f"steps are the {len(begin)} ranges that --step {choice.mark!r} names"
    label = next(iter(wanted)) if len(wanted) == 1 else ""
    return Steps(begin, int(end.max()), "user", message, label)


def _chosen_kernel(lane: Lane, enqueued: Launches, choice: StepChoice) -> Steps:
    """Steps that begin where a kernel is enqueued; of several in a row, at the first."""
    pattern = regex(choice.kernel, "--step-kernel")
    hit = (lane.ops.found("name", pattern) & lane.is_kernel)[enqueued.op]
    first = hit & ~np.concatenate(([False], hit[:-1]))
    if not first.any():
        names = lane.ops.texts["name"]
        codes, counts = with_counts(lane.ops["name"][lane.is_kernel])
        often = [names[int(code)] for code in codes[np.argsort(counts)]]
        raise UsageError(
            f"--step-kernel {choice.kernel!r} finds no kernel of device {lane.device}; "
            + _offered("kernels", often)
        )
    begin = lane.enqueue_begin_ns[enqueued.op[first]]
    message = (
        f"each of {len(begin)} steps begins at a kernel that --step-kernel {choice.kernel!r} finds"
    )
    return Steps(begin, int(lane.enqueue_begin_ns.max()), "user", message)


def _step_like(names: Sequence[str]) -> list[str]:
    """Names of ranges, those that may hold a step first, without what only differs in a number."""
    never = shapes.judged(names, lambda name: bool(words.NEVER_A_STEP.search(name)))
    likely = shapes.judged(names, words.is_step_range)
    seen: dict[str, str] = {}
    for code in np.argsort(~likely, kind="stable"):
        if not never[code]:
            seen.setdefault(re.sub(r"\d+", "0", names[code]), names[code])
    return list(seen.values())


def _offered(what: str, names: Sequence[str]) -> str:
    if not names:
        return f"the capture has no {what} that could"
    some = ", ".join(repr(name[:60]) for name in names[:_NAMED])
    return f"{what} of the capture: {some}" + (", ..." if len(names) > _NAMED else "")
