"""Find the training steps of a process, on the host, and cut the device's time at them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.analysis import vocabulary as words
from stepscope.analysis.lanes import HostSide, Lane
from stepscope.analysis.periodicity import find_period
from stepscope.trace.frame import Frame, IntArray

MIN_STEPS = 3
_NUMBERED = re.compile(r"^(.*?)[\s#:_=\-\[(/]*(\d+)[\])]?(?:/\d+)?$")
_COVERS_A_STEP = 0.5
_COVERS_A_CYCLE = 0.8


@dataclass(frozen=True)
class Steps:
    """Where the steps begin on the host.

    Attributes:
        begin_ns: begin of each step on the host, ascending.
        end_ns: the host's end of the last step.
        source: ``profiler_step``, ``numbered_range``, ``repeating_range``, ``kernel_sequence`` or
            ``whole_capture``.
        says: how the steps were found, in one sentence.
        label: range name or stem that marks them; empty where none does.
    """

    begin_ns: IntArray
    end_ns: int
    source: str
    says: str
    label: str = ""

    @property
    def open_end(self) -> bool:
        """Whether nothing marks the end of the last step."""
        return self.source == "kernel_sequence"

    def __len__(self) -> int:
        return len(self.begin_ns)


def find_steps(lane: Lane, window_start_ns: int, window_end_ns: int) -> Steps:
    """The training steps, from annotations where there are any, else from repeating GPU work.

    In this order: ``ProfilerStep#`` annotations; numbered ranges of one stem (``step_0``,
    ``iteration 7``); a range name that repeats and holds most of the time; a cycle of repeating
    phases; the repeating sequence of enqueued GPU operations; else the whole capture as one step.

    Args:
        lane: the device whose operations the steps must hold.
        window_start_ns: begin of the capture, ns.
        window_end_ns: end of the capture, ns.
    """
    found = _from_ranges(lane) or _from_kernels(lane, window_start_ns)
    if found is not None:
        return found
    begin = _first_begin(lane)
    return Steps(
        np.array([begin], np.int64),
        max(window_end_ns, int(lane.ops["end_ns"].max())),
        "whole_capture",
        "no repeating step was found, so the whole capture counts as one",
    )


def step_windows(lane: Lane, steps: Steps) -> IntArray:
    """Boundaries of the steps on the device's timeline, ns; one more than there are steps.

    Step i begins when the host has begun it *and* the device has finished what earlier steps
    enqueued. A device that runs behind the host is thus charged to the step whose work it does,
    and an idle wait for the next step's input to the step that waits.
    """
    enqueued = lane.enqueue_begin_ns
    step_of = np.searchsorted(steps.begin_ns, enqueued, side="right") - 1
    n = len(steps)
    last_end = np.full(n + 1, np.iinfo(np.int64).min)
    counted = enqueued <= steps.end_ns  # work enqueued after the last step belongs to none
    # slot i holds what step i-1 enqueued
    np.maximum.at(last_end, step_of[counted] + 1, lane.ops["end_ns"][counted])
    finished = np.maximum.accumulate(last_end)
    begin = np.maximum(steps.begin_ns, finished[:n])
    end = max(steps.end_ns, int(finished[n]))
    bounds = np.maximum.accumulate(np.append(begin, end))
    return bounds.astype(np.int64)


def steady_steps(duration_ns: IntArray, *, open_end: bool = False) -> tuple[int, int, str]:
    """First and last steady step, and what was set aside, in one sentence.

    Leading steps that take over 1.3 times the median of the second half are warm-up (allocation,
    compilation, autotuning, profiler start). A last step under half the median was cut by the end
    of the capture; last steps of no length at all were only enqueued in it. Odd steps in the middle
    stay: they are jitter, which is a finding of its own.

    Args:
        duration_ns: length of each step.
        open_end: nothing marks the end of the last step, so that it lacks what the host does
            between its last launch and the next step; it then counts only at nearly full length.
    """
    n = len(duration_ns)
    if n < MIN_STEPS:
        return 0, n - 1, "" if n > 1 else "only one step was found"
    unseen = n - 1 - int(np.flatnonzero(duration_ns > 0).max(initial=0))
    if unseen:
        first, last, said = steady_steps(duration_ns[: n - unseen], open_end=open_end)
        which = "the last step" if unseen == 1 else f"the last {unseen} steps"
        unseen_said = f"{which} set aside, because the capture ends before the GPU gets to them"
        return first, last, f"{said} and {unseen_said}" if said else unseen_said
    typical = float(np.median(duration_ns[n // 2 :]))
    first, last = 0, n - 1
    while first < n // 2 and duration_ns[first] > 1.3 * typical:
        first += 1
    # where long steps are frequent they may be half of the second half, but not of all
    typical = min(typical, float(np.median(duration_ns)))
    if first == 0 and duration_ns[0] < 0.7 * typical:
        first = 1  # the capture began inside it
    if duration_ns[last] < (0.8 if open_end else 0.5) * typical:
        last -= 1
    parts = []
    if first:
        which = "the first step" if first == 1 else f"the first {first} steps"
        parts.append(f"{which} set aside as warm-up")
    if last < n - 1:
        parts.append("the last step set aside as cut short")
    return first, last, " and ".join(parts)


def _capture_begin(host: HostSide, window_start_ns: int) -> int:
    """When the program could go on after the capture began; starting a capture takes a while."""
    started = host.api["end_ns"][host.api.matches("name", words.CAPTURE_START_CALL)]
    return int(started[0]) if len(started) else window_start_ns


def _first_begin(lane: Lane) -> int:
    return int(min(lane.enqueue_begin_ns.min(), lane.ops["start_ns"].min()))


@dataclass(frozen=True)
class _Candidate:
    begin: IntArray
    end: IntArray
    label: str
    numbered: bool
    coverage: float
    domain: str
    lost: IntArray
    """Rows after which the numbers leave one out although the host enqueued work."""

    @property
    def named_step(self) -> bool:
        return words.is_step_range(self.label)


def _from_ranges(lane: Lane) -> Steps | None:
    host = lane.host
    enqueued = np.sort(lane.enqueue_begin_ns)
    candidates = _candidates(host.ranges, enqueued)
    profiler = [c for c in candidates if c.label == "ProfilerStep"]
    if profiler:
        best = max(profiler, key=lambda c: len(c.begin))
        return _steps(best, "profiler_step", "steps are torch.profiler's ProfilerStep annotations")
    marked = [c for c in candidates if c.domain == words.OWN_DOMAIN and c.label == "step"]
    if marked:
        best = max(marked, key=lambda c: len(c.begin))
        return _steps(best, "numbered_range", "steps are those that stepscope marked")
    usable = [
        c
        for c in candidates
        if len(c.begin) >= MIN_STEPS
        and not words.EPOCH_RANGE.search(c.label)
        and c.coverage >= (_COVERS_A_STEP if c.named_step or c.numbered else _COVERS_A_CYCLE)
    ]
    if usable:
        # A range that calls itself a step, then the outermost (fewest) of those that cover most.
        best = min(usable, key=lambda c: (not c.named_step, -round(c.coverage, 1), len(c.begin)))
        if best.numbered:
            return _steps(
                best, "numbered_range", f"steps are the ranges {best.label!r} with a number"
            )
        return _steps(best, "repeating_range", f"steps are the {best.label!r} ranges")
    return _from_phases(candidates, enqueued)


def _steps(candidate: _Candidate, source: str, says: str) -> Steps:
    begin = np.insert(candidate.begin, candidate.lost + 1, candidate.end[candidate.lost])
    if len(candidate.lost):
        says += "; where a number is missing, its step begins at the end of the one before"
    return Steps(begin, int(candidate.end[-1]), source, says, candidate.label)


def _candidates(ranges: Frame, enqueued: IntArray) -> list[_Candidate]:
    """Groups of ranges of one thread and stem that follow one another without overlap."""
    if not len(ranges):
        return []
    names = ranges.texts["name"]
    stem_of: dict[tuple[bool, str], int] = {}
    stems: list[str] = []
    numbered: list[bool] = []
    code_of = np.empty(len(names), np.int64)
    number_of = np.full(len(names), -1, np.int64)
    for code, name in enumerate(names):
        match = _NUMBERED.match(name)
        stem, number = match.groups() if match else ("", "")
        key = (bool(stem), stem or name)
        known = stem_of.get(key)
        if known is None:
            known = stem_of[key] = len(stems)
            stems.append(key[1])
            numbered.append(key[0])
        code_of[code] = known
        if stem:
            number_of[code] = int(number[-15:])
    threads, thread_of = np.unique(ranges["thread_id"], return_inverse=True)
    # a program's own step_N and those of stepscope run are two series, and cross
    domains, domain_of = np.unique(ranges["domain"], return_inverse=True)
    group = (code_of[ranges["name"]] * len(threads) + thread_of) * len(domains) + domain_of
    order = np.argsort(group, kind="stable")
    bounds = np.flatnonzero(np.diff(group[order])) + 1
    found = []
    for rows in np.split(order, bounds):
        if len(rows) < 2:
            continue
        begin, end = ranges["start_ns"][rows], ranges["end_ns"][rows]
        if (begin[1:] < end[:-1]).any():
            continue  # nested or concurrent: not one step after another
        stem = int(code_of[ranges["name"][rows[0]]])
        inside = np.searchsorted(enqueued, end) - np.searchsorted(enqueued, begin)
        coverage = float(inside.sum()) / max(len(enqueued), 1)
        left_out = np.diff(number_of[ranges["name"][rows]]) == 2
        left_out &= np.searchsorted(enqueued, begin[1:]) > np.searchsorted(enqueued, end[:-1])
        lost = np.flatnonzero(left_out & numbered[stem])
        code = int(ranges["domain"][rows[0]])
        domain = ranges.texts["domain"][code] if code >= 0 else ""
        found.append(_Candidate(begin, end, stems[stem], numbered[stem], coverage, domain, lost))
    return found


def _from_phases(candidates: list[_Candidate], enqueued: IntArray) -> Steps | None:
    """Steps from phases that repeat together (forward, backward, optimizer)."""
    phases = [c for c in candidates if len(c.begin) >= MIN_STEPS and c.coverage > 0.02]
    if not phases:
        return None
    counts = np.array([len(c.begin) for c in phases])
    # Micro-batches repeat forward and backward within a step: the rarest big phase sets the pace.
    weight = {n: sum(c.coverage for c in phases if len(c.begin) == n) for n in set(counts.tolist())}
    pace = min((n for n, w in weight.items() if w > 0.05), default=0)
    chosen = [c for c in phases if len(c.begin) == pace]
    together = sum(c.coverage for c in phases)
    if not chosen or together < _COVERS_A_STEP:
        return None
    first = min(chosen, key=lambda c: int(c.begin[0]))
    end = max(int(c.end[-1]) for c in phases)
    says = f"no range holds a whole step; steps begin at each {first.label!r} range"
    return Steps(first.begin, end, "repeating_range", says, first.label)


def _from_kernels(lane: Lane, window_start_ns: int) -> Steps | None:
    """Steps from the repeating sequence of enqueued operations, when nothing is annotated."""
    if len(lane.ops) < 2 * MIN_STEPS:
        return None
    enqueued = lane.enqueue_begin_ns
    order = np.lexsort((np.arange(len(enqueued)), enqueued))
    ops = lane.ops
    # A token is what an operation looks like from outside: its name; for copies also the size.
    token = ops["name"].astype(np.int64) * 64
    size = np.log2(np.maximum(ops["bytes"], 1)).astype(np.int64)
    token = np.where(ops.equals("kind", "memcpy"), token + size, token)
    optimizer = ops.matches("name", words.OPTIMIZER_KERNEL) & lane.is_kernel
    upload = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD")
    # What is read back does not make the pattern: a checkpoint every few steps reads every tensor,
    # and would make those few steps look like one.
    steady = np.flatnonzero(
        ~(ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH"))[order]
    )
    # What was enqueued before the capture began has no time of its own; where nothing repeats in
    # what came later, its order still tells.
    later = steady[int(np.argmax(lane.call[order[steady]] >= 0)) :] if len(steady) else steady
    anchors = None
    for steady in (later, steady) if len(later) < len(steady) else (steady,):  # noqa: B020
        kept = order[steady]
        anchors = find_period(token[kept], optimizer[kept], upload[kept]) if len(kept) else None
        if anchors is not None and len(anchors) >= MIN_STEPS - 1:
            break
    else:
        return None
    anchors = steady[anchors]
    # The step begins when the one before has enqueued its last work: what the host does before
    # its own first call, getting a batch, belongs to it.
    first = min(_capture_begin(lane.host, window_start_ns), int(enqueued[kept[0]]))
    begin = np.where(anchors > steady[0], lane.enqueue_end_ns[order][anchors - 1], first)
    begin = np.maximum.accumulate(begin)  # calls of several threads may overlap
    end = int(max(enqueued.max(), ops["end_ns"].max()))
    says = (
        f"no annotations hold the steps; they were found as {len(begin)} repetitions of the "
        "sequence of GPU operations"
    )
    return Steps(begin, end, "kernel_sequence", says)
