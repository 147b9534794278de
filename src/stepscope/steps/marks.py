"""Steps from what the program says: annotations that hold an iteration, or phases of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity import shapes
from stepscope.activity.device import Lane
from stepscope.intervals.distinct import with_inverse
from stepscope.steps.model import Source, Steps
from stepscope.steps.windows import MIN_STEPS
from stepscope.trace.frame import Frame, IntArray

_NUMBERED = re.compile(r"^(.*?)[\s#:_=\-\[(/]*(\d+)[\])]?(?:/\d+)?$")
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


def from_marks(lane: Lane, optimizer_runs: int) -> Steps | None:
    """Steps that annotations hold; None where none does.

    In this order: ``ProfilerStep#`` annotations, also a single one; ranges that repeat and hold
    the work, those named as an iteration first; one or two ranges that are named as an iteration;
    phases that repeat together.

    Args:
        lane: the device whose operations the steps must hold.
        optimizer_runs: how often the optimizer ran, as far as is known; 0 where it is not seen.
    """
    enqueued = np.sort(lane.enqueue_begin_ns)
    candidates = find_candidates(lane.host.ranges, enqueued)
    profiler = [c for c in candidates if c.label == "ProfilerStep" and c.coverage > 0]
    if profiler:
        best = max(profiler, key=lambda c: (len(c.begin), c.coverage))
        return _steps(best, "profiler_step", "steps are torch.profiler's ProfilerStep annotations")
    candidates = [c for c in candidates if c.label != "ProfilerStep"]
    usable = [c for c in candidates if len(c.begin) >= MIN_STEPS and _holds_steps(c)]
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
            return _steps(
                best, "numbered_range", f"steps are the ranges {best.label!r} with a number"
            )
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
    return _from_phases(candidates)


def _holds_steps(candidate: Candidate) -> bool:
    if words.EPOCH_RANGE.search(candidate.label) or words.NEVER_A_STEP.search(candidate.first):
        return candidate.named_step and candidate.coverage >= _COVERS_A_STEP
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
    for code, name in enumerate(names):
        family = words.engine_family(name)
        match = None if family or len(name) > _LONGEST_STEP else _NUMBERED.match(name)
        stem, number = match.groups() if match else (family, "")
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
    may_be_single = shapes.judged(names, words.holds_a_step)
    found = []
    for rows in np.split(order, bounds):
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
        found.append(
            Candidate(begin, end, stems[stem], first, numbered[stem], coverage, domain, lost)
        )
    return found


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
    end = max(int(c.end[-1]) for c in phases)
    message = f"no range holds a whole step; steps begin at each {first.label!r} range"
    return Steps(first.begin, end, "repeating_range", message, first.label)
