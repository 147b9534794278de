"""Find the steps of a process: what the user says, what the program marks, what repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline
from stepscope.intervals.distinct import distinct_values, with_counts, with_inverse
from stepscope.steps.kinds import Workload, inner_of, kind_of, with_several
from stepscope.steps.model import (
    AUTOMATIC,
    INNER_PLURAL,
    MIN_STEPS,
    Inner,
    Source,
    StepChoice,
    Steps,
    step_windows,
)
from stepscope.steps.repetition import (
    IN_MOST,
    PART_OF_ONE,
    Launches,
    Repetition,
    find_repetition,
    from_graphs,
    from_kernels,
    from_optimizer_ranges,
    is_iteration,
    late_repetition,
    launches,
    optimizer_runs,
    outer_repetition,
)
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import Frame, IntArray
from stepscope.trace.regex import regex
from stepscope.trace.units import milliseconds

_NUMBERED = re.compile(r"^(.*?)[\s#:_=\-\[(/]*(\d+)[\])]?(?:/\d+)?$")
_NUMBER_INSIDE = re.compile(r"^(\D*[A-Za-z]\D*[\s#:_=\-\[(/])\d+([^\dA-Za-z]\D*)$")
_LONGEST_STEP: Final = 256  # the pattern takes time by the square of the length
_COVERS_A_STEP: Final = 0.5
_COVERS_A_CYCLE: Final = 0.8
_PHASE = re.compile(
    r"(?<![a-z])(forward|fwd|backward|bwd|optim\w*|zero_?grad|loss|update|train\w*|grad\w*|data\w*"
    r"|h2d|input|batch|sample|rollout|generate|env\w*|policy)(?![a-z])",
    re.IGNORECASE,
)
"""Names of the phases that one training step consists of."""
_PLURAL = re.compile(r"(?<![a-z])(iters|iterations)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class Candidate:
    """Ranges of one thread and stem that follow one another without overlap.

    Attributes:
        begin: their begins, ascending, ns.
        end: their ends, ns.
        label: the stem.
        first: the whole name of the first.
        numbered: whether the names are the stem and a number.
        coverage: share of the operations that are enqueued inside.
        domain: NVTX domain of the ranges; empty for the default one.
        lost: rows after which the numbers leave one out although the host enqueued work.
    """

    begin: IntArray
    end: IntArray
    label: str
    first: str
    numbered: bool
    coverage: float
    domain: str
    lost: IntArray

    @property
    def named_step(self) -> bool:
        """Whether the name says that it is an iteration."""
        return words.is_step_range(self.first)


def from_marks(gpu: GpuTimeline, optimizer_runs: int) -> Steps | None:
    """Steps that annotations hold; None where none does.

    In this order: ``ProfilerStep#`` annotations, also a single one; ranges that repeat and hold
    the work, those named as an iteration first; one or two ranges that are named as an iteration;
    phases that repeat together.

    Args:
        gpu: the device whose operations the steps must hold.
        optimizer_runs: how often the optimizer ran, as far as is known; 0 where it is not seen.
    """
    enqueued = np.sort(gpu.enqueue_begin_ns)
    candidates = find_candidates(gpu.host.ranges, enqueued)
    profiler = [c for c in candidates if c.label == "ProfilerStep" and c.coverage > 0]
    if profiler:
        best = _without_empty_end(max(profiler, key=lambda c: (len(c.begin), c.coverage)), enqueued)
        return _steps(best, "profiler_step", "steps are torch.profiler's ProfilerStep annotations")
    candidates = [c for c in candidates if c.label != "ProfilerStep"]
    usable = [c for c in candidates if len(c.begin) >= MIN_STEPS and _holds_steps(c, enqueued)]
    if usable:
        # A range that calls itself a step, then the outermost (fewest) of those that cover most.
        best = min(
            usable,
            key=lambda c: (
                not c.named_step,
                -round(c.coverage, 1),
                # the recorder begins and ends at a step, the program's own ranges may be cut there
                c.domain != words.OWN_DOMAIN,
                len(c.begin),
            ),
        )
        if best.domain == words.OWN_DOMAIN and best.label == "step":
            return _steps(best, "numbered_range", "steps are those that stepscope marked")
        if best.numbered:
            return _steps(best, "numbered_range", f"steps are the numbered ranges {best.label!r}")
        return _steps(best, "repeating_range", f"steps are the {best.label!r} ranges")
    few = [
        c
        for c in candidates
        if c.named_step
        and c.coverage >= _COVERS_A_STEP
        and not words.EPOCH_RANGE.search(c.label)
        and not _PLURAL.search(c.label)
        # a range around the whole loop may call itself a step, too
        and optimizer_runs < MIN_STEPS * len(c.begin)
    ]
    if few:
        best = min(few, key=lambda c: (-round(c.coverage, 1), len(c.begin)))
        which = "the range" if len(best.begin) == 1 else "the two ranges"
        verb = "the step is" if len(best.begin) == 1 else "steps are"
        return _steps(best, "single_range", f"{verb} {which} {best.first!r}")
    return _from_phases([c for c in candidates if _are_alike(c, enqueued)])


def _without_empty_end(marks: Candidate, enqueued_ns: IntArray) -> Candidate:
    """The marks without a last one in which nothing is enqueued.

    ``torch.profiler.profile.step()`` ends a mark and begins the next, also behind the last
    iteration of a loop; that mark lasts until the profiler stops and holds no step.
    """
    last = np.searchsorted(enqueued_ns, [marks.begin[-1], marks.end[-1]])
    if len(marks.begin) < 2 or last[0] < last[1]:
        return marks
    return replace(
        marks,
        begin=marks.begin[:-1],
        end=marks.end[:-1],
        lost=marks.lost[marks.lost < len(marks.begin) - 2],
    )


def _are_alike(candidate: Candidate, enqueued_ns: IntArray) -> bool:
    """Whether ranges launch as much as those of a loop: most of them half of the mean or more.

    The unlike parts of one pass may differ in a number only.
    """
    held = np.searchsorted(enqueued_ns, candidate.end)
    held = held - np.searchsorted(enqueued_ns, candidate.begin)
    return bool(np.median(held) >= PART_OF_ONE * held.mean())


def _holds_steps(candidate: Candidate, enqueued_ns: IntArray) -> bool:
    if words.EPOCH_RANGE.search(candidate.label) or words.NEVER_A_STEP.search(candidate.first):
        return candidate.named_step and candidate.coverage >= _COVERS_A_STEP
    if not candidate.named_step and not _are_alike(candidate, enqueued_ns):
        return False
    likely = candidate.named_step or candidate.numbered
    return candidate.coverage >= (_COVERS_A_STEP if likely else _COVERS_A_CYCLE)


def _steps(candidate: Candidate, source: Source, message: str) -> Steps:
    begin = np.insert(candidate.begin, candidate.lost + 1, candidate.end[candidate.lost])
    if len(candidate.lost):
        message += "; where a number is missing, its step begins at the end of the one before"
    return Steps(begin, int(candidate.end[-1]), source, message, candidate.label)


def find_candidates(ranges: Frame, enqueued_ns: IntArray) -> list[Candidate]:
    """Groups of ranges of one thread, domain and stem that follow one another without overlap.

    Args:
        ranges: the process's annotations, sorted by start.
        enqueued_ns: when the operations were enqueued, ascending.
    """
    if not len(ranges):
        return []
    names = ranges.texts["name"]
    stem_of: dict[tuple[str, str], int] = {}
    stems: list[str] = []
    numbered: list[bool] = []
    code_of = np.empty(len(names), np.int64)
    number_of = np.full(len(names), -1, np.int64)
    shapes = _numbered_inside(names)
    for code, name in enumerate(names):
        family = words.engine_family(name)
        match = None if family or len(name) > _LONGEST_STEP else _NUMBERED.match(name)
        stem, number = match.groups() if match else (family or shapes.get(name, ""), "")
        key = ("family" if family else "stem" if stem else "name", stem or name)
        known = stem_of.get(key)
        if known is None:
            known = stem_of[key] = len(stems)
            stems.append(key[1])
            numbered.append(key[0] == "stem")
        code_of[code] = known
        if number:
            number_of[code] = int(number[-15:])
    threads, thread_of = with_inverse(ranges["thread_id"])
    domains, domain_of = with_inverse(ranges["domain"])
    group = code_of[ranges["name"]] * len(threads) + thread_of
    group = group * len(domains) + domain_of
    order = np.argsort(group, kind="stable")
    bounds = np.flatnonzero(np.diff(group[order])) + 1
    may_be_single = words.judged(names, words.holds_a_step)
    found = []
    for rows, counted in _by_name_unless_counted(
        np.split(order, bounds), ranges, number_of, enqueued_ns
    ):
        name_codes = ranges["name"][rows]
        if len(rows) < MIN_STEPS and not may_be_single[name_codes[0]]:
            continue
        begin, end = ranges["start_ns"][rows], ranges["end_ns"][rows]
        if (begin[1:] < end[:-1]).any():
            continue  # nested or concurrent: not one step after another
        stem = int(code_of[name_codes[0]])
        inside = np.searchsorted(enqueued_ns, end) - np.searchsorted(enqueued_ns, begin)
        coverage = float(inside.sum()) / max(len(enqueued_ns), 1)
        left_out = np.diff(number_of[name_codes]) == 2
        left_out &= np.searchsorted(enqueued_ns, begin[1:]) > np.searchsorted(enqueued_ns, end[:-1])
        lost = np.flatnonzero(left_out & numbered[stem])
        first = names[int(name_codes[0])]
        domain = ranges.text("domain", int(rows[0]))
        is_numbered = numbered[stem] and counted
        label = stems[stem] if counted else first
        found.append(Candidate(begin, end, label, first, is_numbered, coverage, domain, lost))
    return found


def _by_name_unless_counted(
    groups: Sequence[IntArray], ranges: Frame, number_of: IntArray, enqueued_ns: IntArray
) -> list[tuple[IntArray, bool]]:
    """The rows of each group, and whether their numbers may count iterations.

    A number that names the place of a range in a program counts nothing: most ranges have that of
    the range before, or the numbers return and each stands for launches of its own. Such groups
    are split by name.
    """
    held = np.searchsorted(enqueued_ns, ranges["end_ns"])
    held -= np.searchsorted(enqueued_ns, ranges["start_ns"])
    split = []
    for rows in groups:
        codes = ranges["name"][rows]
        numbers = number_of[codes]
        several = len(rows) > 1 and bool((numbers >= 0).all())
        if several and ((np.diff(numbers) == 0).mean() > 0.5 or _are_parts(codes, held[rows])):
            split += [(rows[codes == code], False) for code in distinct_values(codes)]
        else:
            split.append((rows, True))
    return split


def _are_parts(codes: IntArray, held: IntArray) -> bool:
    """Whether names that return launch the same each time, and each something else than the next.

    Args:
        codes: the names, in the order of their ranges.
        held: how many operations each range launches.
    """
    names, which = with_inverse(codes)
    often = np.bincount(which)
    if len(names) < 2 or often.min() < MIN_STEPS:
        return False
    usual = np.array([np.median(held[which == one]) for one in range(len(names))])
    alike = [(held[which == one] == usual[one]).mean() > 0.5 for one in range(len(names))]
    differ = usual[which[1:]] != usual[which[:-1]]
    return bool(np.mean(alike) >= IN_MOST and differ.mean() >= IN_MOST)


def _numbered_inside(names: Sequence[str]) -> dict[str, str]:
    """By name its shape, with 0 for the only number: of names of which several differ in it alone.

    ``token_7_forward`` and ``token_8_forward`` are one family; ``fp8_gemm`` is no member of one.
    """
    shapes: dict[str, list[str]] = {}
    for name in names:
        match = _NUMBER_INSIDE.match(name) if len(name) <= _LONGEST_STEP else None
        if match and not words.engine_family(name):
            shapes.setdefault(f"{match[1]}0{match[2]}", []).append(name)
    return {
        name: shape for shape, group in shapes.items() if len(group) >= MIN_STEPS for name in group
    }


def _from_phases(candidates: list[Candidate]) -> Steps | None:
    """Steps from phases that repeat together (forward, backward, optimizer)."""
    phases = [
        c
        for c in candidates
        if len(c.begin) >= MIN_STEPS
        and c.coverage > 0.02
        and not words.NEVER_A_STEP.search(c.first)
    ]
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
    if not any(_PHASE.search(c.label) for c in chosen):
        return None  # parts of a model repeat as well, layer by layer
    first = min(chosen, key=lambda c: int(c.begin[0]))
    if any(_is_part_of(first, c) for c in candidates):
        return None  # each layer has its own
    end = max(int(c.end[-1]) for c in phases)
    message = f"no range holds a whole step; steps begin at each {first.label!r} range"
    return Steps(first.begin, end, "repeating_range", message, first.label)


def _is_part_of(phase: Candidate, layers: Candidate) -> bool:
    """Whether each of a phase's ranges lies in that of another layer of the model."""
    if not layers.numbered or not words.LAYER_NUMBER.search(layers.first):
        return False
    held = np.searchsorted(layers.begin, phase.begin, side="right") - 1
    inside = (held >= 0) & (phase.begin < layers.end[np.maximum(held, 0)])
    return bool(inside.all()) and len(distinct_values(held)) == len(held)


_NAMED = 6
"""So many names are offered where a choice of steps finds nothing."""


def find_steps(
    gpu: GpuTimeline,
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
        gpu: the device whose operations the steps must hold.
        does: whether the program trains.
        window_start_ns: begin of the capture, ns.
        choice: what the user says a step is.

    Returns:
        The steps with their kind, and their boundaries, ns; one more than there are steps.

    Raises:
        UsageError: the user's choice finds nothing, or is no regular expression.
    """
    enqueued = launches(gpu)
    if choice:
        steps = _chosen(gpu, enqueued, choice)
    else:
        steps = _found(gpu, enqueued, does, window_start_ns) or _whole(gpu)
    steps = replace(steps, kind=kind_of(steps, gpu, does))
    bounds = step_windows(gpu, steps)
    silent_ns = steps.end_ns - int(bounds[-1])
    if len(steps) >= MIN_STEPS and steps.marked and silent_ns > 0:
        message = (
            f"{steps.message}; the last one's mark lasts {milliseconds(silent_ns)} longer, without "
            "a launch, which counts to no step"
        )
        steps = replace(steps, end_ns=int(bounds[-1]), message=message)
    inner = inner_of(steps, enqueued, bounds, does)
    if inner:
        kind = with_several(steps.kind, inner)
        message = "; ".join([steps.message, *(_inner_message(steps, part) for part in inner)])
        steps = replace(steps, kind=kind, inner=inner, message=message)
    return steps, bounds


def _inner_message(steps: Steps, part: Inner) -> str:
    """What repeats inside a step; not that it holds what the device runs behind its end."""
    each = "the only one" if len(steps) == 1 else "each"
    what = f"{part.count} {INNER_PLURAL[part.kind]} of {milliseconds(part.median_ns)}"
    if part.within == part.count:
        return f"{each} holds {what}"
    return f"{each} launches {what}, of which the GPU runs {part.within} before the step ends"


def _found(
    gpu: GpuTimeline, enqueued: Launches, does: Workload, window_start_ns: int
) -> Steps | None:
    runs = optimizer_runs(gpu, enqueued)
    marked = from_marks(gpu, runs)
    around = marked is not None and marked.source == "profiler_step" and len(marked) == 1
    if marked is not None and not (around and runs >= MIN_STEPS):
        return marked
    repeated = find_repetition(enqueued)
    if marked is not None:
        if repeated is None or not _are_iterations_inside(enqueued, repeated, runs):
            return marked
        steps = from_kernels(enqueued, repeated, window_start_ns)
        why = "the only ProfilerStep annotation holds a loop of its own"
        return replace(steps, message=f"{why}: {len(steps)} repetitions of GPU operations")
    if repeated is not None and not runs:
        repeated = outer_repetition(enqueued, repeated) or repeated
    if repeated is not None and is_iteration(enqueued, repeated, runs, does.passes):
        return from_kernels(enqueued, repeated, window_start_ns)
    found = from_optimizer_ranges(gpu, window_start_ns) or from_graphs(enqueued, window_start_ns)
    if found is not None:
        return found
    late = late_repetition(enqueued, runs)
    return None if late is None else from_kernels(enqueued, late, window_start_ns)


def _are_iterations_inside(enqueued: Launches, repeated: Repetition, runs: int) -> bool:
    """Whether a single mark lies around a loop, each repetition of which updates parameters once.

    Not where an optimizer runs for each tensor or layer within one step: then what repeats is less
    than nearly all that is launched.
    """
    anchors = repeated.anchors
    length = int(np.median(np.diff(anchors)))
    held = min(int(anchors[-1]) + length, len(enqueued)) - int(anchors[0])
    return (
        abs(runs - len(repeated)) <= 1
        and held >= _COVERS_A_CYCLE * len(enqueued)
        and is_iteration(enqueued, repeated, runs)
    )


def _whole(gpu: GpuTimeline, why: str = "") -> Steps:
    """The whole capture as one step."""
    begin = int(min(gpu.enqueue_begin_ns.min(), gpu.ops["start_ns"].min()))
    return Steps(
        np.array([begin], np.int64),
        int(gpu.ops["end_ns"].max()),
        "whole_capture",
        why or "no repeating step was found, so the whole capture counts as one",
    )


def _chosen(gpu: GpuTimeline, enqueued: Launches, choice: StepChoice) -> Steps:
    if choice.mark and choice.kernel:
        raise UsageError("--step and --step-kernel both say what a step is; give one of them")
    if choice.mark.lower() == "none":
        return _whole(gpu, "the whole capture counts as one step (--step none)")
    if choice.kernel:
        return _chosen_kernel(gpu, enqueued, choice)
    return _chosen_range(gpu, choice)


def _chosen_range(gpu: GpuTimeline, choice: StepChoice) -> Steps:
    """Steps that begin at each of the ranges that the user names, the outermost of nested ones."""
    ranges = gpu.host.ranges
    names = ranges.texts.get("name", [])
    wanted = {name for name in names if name == choice.mark}
    if not wanted:
        found = regex(choice.mark, "--step").search(names)
        wanted = {names[code] for code in np.flatnonzero(found)}
    if not wanted:
        raise UsageError(
            f"--step {choice.mark!r} names no range of process {gpu.process_id}; "
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


def _chosen_kernel(gpu: GpuTimeline, enqueued: Launches, choice: StepChoice) -> Steps:
    """Steps that begin where a kernel is enqueued; of several in a row, at the first."""
    pattern = regex(choice.kernel, "--step-kernel")
    hit = (gpu.ops.found("name", pattern) & gpu.is_kernel)[enqueued.op]
    first = hit & ~np.concatenate(([False], hit[:-1]))
    if not first.any():
        names = gpu.ops.texts["name"]
        codes, counts = with_counts(gpu.ops["name"][gpu.is_kernel])
        often = [names[int(code)] for code in codes[np.argsort(counts)]]
        raise UsageError(
            f"--step-kernel {choice.kernel!r} finds no kernel of device {gpu.device}; "
            + _offered("kernels", often)
        )
    begin = gpu.enqueue_begin_ns[enqueued.op[first]]
    message = (
        f"each of {len(begin)} steps begins at a kernel that --step-kernel {choice.kernel!r} finds"
    )
    return Steps(begin, int(gpu.enqueue_begin_ns.max()), "user", message)


def _step_like(names: Sequence[str]) -> list[str]:
    """Names of ranges, those that may hold a step first, without what only differs in a number."""
    never = words.judged(names, lambda name: bool(words.NEVER_A_STEP.search(name)))
    likely = words.judged(names, words.is_step_range)
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
