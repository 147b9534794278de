"""What a host does between the items of a run, by cause, and what recording costs of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.activity import host as h
from stepscope.activity.device import Reader
from stepscope.activity.host import HostTimeline, inside
from stepscope.breakdown.explain import Explanation
from stepscope.gaps.idle import CAUSE_OF_LABEL, CAUSES
from stepscope.gaps.profiler_overhead import NO_COST, RecordingOverhead, call_cost_ns
from stepscope.gaps.untraced_cpu import classified_timeline, explain_untraced_cpu, input_time
from stepscope.intervals import overlap_per_window, subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among, distinct_values
from stepscope.simulation.program import C
from stepscope.simulation.run import Run
from stepscope.trace.frame import IntArray


def host_work(
    e: Explanation, read: Reader, run: Run, at: IntArray, until: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Host time before each item, and what recording costs there, ns.

    Args:
        e: the explained device.
        read: gives its tables.
        run: the steps.
        at: begin of each item's call, ns.
        until: end of it, ns.

    Returns:
        The host's time before each item, one column a cause; the cost of recording in it and in the
        item's call; the part of that cost that was paid while the host did not launch.
    """
    gpu = e.gpu
    timeline = _host_timeline(e, read, run)
    cause = np.array([C[CAUSE_OF_LABEL[label]] for label in h.LABELS])[timeline.label]
    untraced = np.flatnonzero(timeline.label == h.LABELS.index(h.UNTRACED_CPU))
    if len(untraced):
        is_input, _ = explain_untraced_cpu(gpu, timeline.quiet, e.loop)
        which = np.searchsorted(timeline.quiet[1], timeline.start_ns[untraced], side="right")
        which = np.minimum(which, len(is_input) - 1)
        cause[untraced[is_input[which]]] = C["input_starvation"]
    # what comes before the first item is what the host does after the last one
    begin = np.append(until[-1], until[:-1])
    stop = np.append(run.end_ns, at[1:])
    # by column: those of causes that do not occur take no memory
    work = np.zeros((len(CAUSES), len(at)), np.int64).T
    attributed = _union_of(e.events.values())
    for column in distinct_values(cause).tolist():
        rows = cause == column
        labelled = timeline.start_ns[rows], timeline.end_ns[rows]
        work[:, column] = overlap_per_window(subtract(labelled, attributed), begin, stop)
    for name, intervals in e.events.items():
        work[:, C[name]] += overlap_per_window(intervals, begin, stop)
    recording = e.recording if len(e.recording.at_ns) else _of_calls(e)
    if not len(recording.at_ns):
        none = np.zeros(len(at), np.int64)
        return work, none, none
    total = recording.between(begin, np.append(run.end_ns, until[1:]))
    apart = inside(_apart(timeline, attributed), recording.at_ns)
    costs = np.diff(recording.total_ns, prepend=0)
    beside = RecordingOverhead(recording.at_ns[apart], np.cumsum(costs[apart]))
    return work, total, beside.between(begin, np.append(run.end_ns, until[1:]))


def _host_timeline(e: Explanation, read: Reader, run: Run) -> HostTimeline:
    """What the host did in a run of steps."""
    step_ns = (run.end_ns - run.begin_ns) // run.steps
    begins = e.steps.begin_ns[run.first : run.last + 1]
    window = run.begin_ns, run.end_ns
    return classified_timeline(e.gpu, window, step_ns, input_time(e.gpu, read), begins, e.loop)


def not_launching(e: Explanation, read: Reader, run: Run) -> Intervals:
    """When the host of a run does what is no launching.

    Those are long silences, getting input, and the events that own their time. What is recorded
    meanwhile (operators of a loader on the training thread, or of an optimizer on the CPU) is paid
    for there, and costs launching nothing.
    """
    return _apart(_host_timeline(e, read, run), _union_of(e.events.values()))


def _apart(timeline: HostTimeline, attributed: Intervals) -> Intervals:
    getting = timeline.label == h.LABELS.index(h.INPUT)
    sets = [timeline.quiet, attributed, (timeline.start_ns[getting], timeline.end_ns[getting])]
    return _union_of(sets)


def _of_calls(e: Explanation) -> RecordingOverhead:
    """What a tool that does not charge itself adds to the calls of the launching threads."""
    api, tool = e.gpu.host.api, e.tool
    if tool is None or not tool.calls:
        return NO_COST
    at = np.sort(api["start_ns"][among(api["thread_id"], e.gpu.host.launch_threads)])
    each = call_cost_ns(e.gpu, tool)
    return RecordingOverhead(at, np.floor(each * np.arange(1, len(at) + 1)).astype(np.int64))


def _union_of(sets: Iterable[Intervals]) -> Intervals:
    """The union of some sets of intervals."""
    known = list(sets) or [EMPTY]
    return union(*(np.concatenate(column) for column in zip(*known, strict=True)))
