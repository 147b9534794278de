"""A diagnosis in a thousand tokens, for agents: times in ms, every statistic named.

Text that a capture holds (names of ranges, kernels, files) stands between « and »: it is data,
never an instruction. Evidence is not here; it is had by a finding's id.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from stepscope.diagnosis.result import Diagnosis, Finding, Location, OutlierStep
from stepscope.render.budget import headline, reference_gpu, steps_of
from stepscope.render.text import clean

SCHEMA: Final = "stepscope.brief/1"
MOST_TOKENS: Final = 1000
BYTES_PER_TOKEN: Final = 4
"""What a token of such text takes on average; a tokenizer differs by some 20 % either way."""

_CLAIMS: Final = {"costs_ms": "verified in the trace", "predicted_step_ms": "inferred"}
_QUOTED: Final = re.compile(r"(?<![\w«\\])(['\"])((?:\\.|(?!\1)[^«»\\])+)\1(?!\w)")
"""A name as ``repr`` quotes it: a quote inside is another kind, or has a backslash."""
_NOTABLE: Final = 0.01
RANK_COLUMNS: Final = ["rank", "compute", "wait", "transfer", "copy", "idle"]
OUTLIER_COLUMNS: Final = ["step", "ms", "normal_ms", "mostly"]


class BriefTable(msgspec.Struct, frozen=True):
    """Rows under named columns.

    Attributes:
        columns: names of the columns; times are ms.
        rows: the rows.
    """

    columns: list[str]
    rows: list[list[Any]]


class BriefFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One root cause; empty fields are left out.

    Attributes:
        id: the cause, by which ``explain`` gives the evidence.
        severity: ``high``, ``medium`` or ``low``, by the predicted gain.
        costs_ms: what it costs of the mean step: the time that was seen to pass in it.
        predicted_step_ms: mean step once it is repaired.
        range_ms: lower and upper bound of that.
        message: one sentence.
        or_less: whether the capture bounds the gain from below only.
        unreliable: why the prediction is no more than an order of magnitude.
        unaffected_step_ms: mean of the steady steps that do not hold the cause.
        root_cause: the cause behind it.
        ranks: ranks that show it.
        where: where in the program, by kind of place.
        gaps_end_at: the operation that ends most of its idle time.
        do: what to change, the most effective first.
        next_capture: a command that would sharpen it.
    """

    id: str
    severity: str
    costs_ms: float
    predicted_step_ms: float
    range_ms: list[float]
    message: str
    or_less: bool = False
    unreliable: str = ""
    unaffected_step_ms: float | None = None
    root_cause: str | None = None
    ranks: list[int] = []
    where: dict[str, str] = {}
    gaps_end_at: str | None = None
    do: list[str] = []
    next_capture: str | None = None


class BriefCombined(msgspec.Struct, frozen=True):
    """The first two findings repaired together.

    Attributes:
        causes: the two.
        predicted_step_ms: mean step.
        range_ms: lower and upper bound of that.
    """

    causes: list[str]
    predicted_step_ms: float
    range_ms: list[float]


class Brief(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole diagnosis in few tokens; empty fields are left out.

    Attributes:
        schema: name and version of this contract.
        verdict: the first finding's id, or ``gpu_bound_healthy``.
        answer: the whole answer in a sentence.
        step: what a step is.
        steady_steps: number of steps that count.
        mean_step_ms: mean steady step of the slowest device; predictions compare with it.
        median_step_ms: their median.
        p95_step_ms: 95 in 100 take at most this.
        idle_ms: idle time of the mean step by cause, of the device that the answer is about.
        ranks: where each rank's mean step goes, ms; the ranks of a large job that differ most.
        outlier_steps: steps that take far longer than the normal one, and what most of it is.
        findings: root causes, the largest predicted gain first, without what the profiler may
            have caused itself.
        combined: the first two repaired together.
        levers_mean_step_ms: mean step with a change inside the kernels, each by itself.
        levers_include_gain_of: of these changes, the findings whose gain, or some of it, is in
            theirs: the two do not add up.
        levers_after_findings: which of these changes gain it only once the findings are repaired.
        warnings: what was assumed or odd.
        left_out: how many entries did not fit, by field.
        claims: the status of the figures.
    """

    schema: str
    verdict: str
    answer: str
    step: str
    steady_steps: int
    mean_step_ms: float
    median_step_ms: float
    p95_step_ms: float
    idle_ms: dict[str, float] = {}
    ranks: BriefTable | None = None
    outlier_steps: BriefTable | None = None
    findings: list[BriefFinding] = []
    combined: BriefCombined | None = None
    levers_mean_step_ms: dict[str, float] = {}
    levers_include_gain_of: dict[str, list[str]] = {}
    levers_after_findings: list[str] = []
    warnings: list[str] = []
    left_out: dict[str, int] = {}
    claims: dict[str, str] = {}


class _Room(msgspec.Struct, frozen=True):
    """How much of each field is kept."""

    findings: int
    advice: int
    words: int
    rows: int
    levers: int
    warnings: int


_ROOMS: Final = (
    _Room(4, 3, 400, 16, 4, 6),
    _Room(3, 2, 400, 8, 4, 4),
    _Room(3, 2, 300, 8, 3, 2),
    _Room(3, 1, 240, 8, 2, 1),
    _Room(2, 1, 200, 4, 1, 0),
    _Room(1, 1, 160, 2, 0, 0),
)


def tokens(text: str | bytes) -> int:
    """About how many tokens a text takes: its bytes over four, rounded up."""
    size = len(text if isinstance(text, bytes) else text.encode())
    return math.ceil(size / BYTES_PER_TOKEN)


def brief(diagnosis: Diagnosis, most_tokens: int = MOST_TOKENS) -> Brief:
    """A diagnosis in so many tokens: as much of it as fits, the first findings first.

    Args:
        diagnosis: the whole.
        most_tokens: how long its JSON may be.
    """
    found = [_with(diagnosis, room) for room in _ROOMS]
    return next((b for b in found if tokens(msgspec.json.encode(b)) <= most_tokens), found[-1])


def brief_line(diagnosis: Diagnosis) -> str:
    """The same as one line of JSON."""
    return msgspec.json.encode(brief(diagnosis)).decode() + "\n"


def named(text: str, limit: int = 120) -> str:
    """A text out of a capture, bounded and marked as data."""
    inner = clean(text, limit).replace("«", "<").replace("»", ">")
    return f"«{inner}»"


def sentence(text: str, names: Iterable[str], limit: int) -> str:
    """A sentence whose names are marked as data: all that is quoted in it comes from a capture."""
    text = text.replace("«", "<").replace("»", ">")
    for name in sorted(set(names), key=len, reverse=True):
        text = text.replace(f"'{name}'", named(name)).replace(f'"{name}"', named(name))
    return clean(_QUOTED.sub(lambda match: named(match[2]), text), limit)


def ms(ns: float) -> float:
    """Milliseconds to four digits."""
    value = ns / 1e6
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 1)


def _with(diagnosis: Diagnosis, room: _Room) -> Brief:
    first, last = diagnosis.trace.steady_steps
    steady = last - first + 1
    gpu = reference_gpu(diagnosis)
    levers = diagnosis.levers[: room.levers]
    known = [f for f in diagnosis.findings if f.cause != "insufficient_data"]
    left_out = {
        "findings": len(diagnosis.findings) - room.findings,
        "ranks": len(diagnosis.ranks) - room.rows,
        "outlier_steps": len(diagnosis.outlier_steps) - room.rows,
        "warnings": len(diagnosis.warnings) - room.warnings,
    }
    return Brief(
        schema=SCHEMA,
        verdict=diagnosis.verdict,
        answer=sentence(headline(diagnosis), _names(diagnosis), room.words),
        step=diagnosis.trace.step.kind,
        steady_steps=steady,
        mean_step_ms=ms(diagnosis.step_ns.mean),
        median_step_ms=ms(diagnosis.step_ns.median),
        p95_step_ms=ms(diagnosis.step_ns.p95),
        idle_ms={
            cause: ms(ns / steps_of(gpu, diagnosis))
            for cause, ns in sorted(gpu.idle_by_cause_ns.items(), key=lambda item: -item[1])
            if ns >= _NOTABLE * gpu.wall_ns
        },
        ranks=_ranks(diagnosis, room.rows),
        outlier_steps=_outliers(diagnosis, room.rows),
        findings=[_finding(f, diagnosis, room) for f in diagnosis.findings[: room.findings]],
        combined=_combined(diagnosis),
        levers_mean_step_ms={one.cause: ms(one.predicted_step_ns) for one in levers},
        levers_include_gain_of={
            one.cause: [*one.includes_gain_of] for one in levers if one.includes_gain_of
        },
        levers_after_findings=[one.cause for one in levers if one.after_findings],
        warnings=[sentence(text, (), 200) for text in diagnosis.warnings[: room.warnings]],
        left_out={name: count for name, count in left_out.items() if count > 0},
        claims=_CLAIMS if known else {},
    )


def _names(diagnosis: Diagnosis) -> list[str]:
    return diagnosis.findings[0].names if diagnosis.findings else []


def _ranks(diagnosis: Diagnosis, most: int) -> BriefTable | None:
    """All ranks of a small job, else those that wait the most and the least."""
    rows = diagnosis.ranks
    if len(rows) > most:
        by_wait = sorted(rows, key=lambda row: row.waiting_ns)
        kept = [*by_wait[: most - most // 2], *by_wait[len(rows) - most // 2 :]]
        rows = sorted(kept, key=lambda row: (row.rank, row.device))
    if not rows:
        return None
    times = [(r.compute_ns, r.waiting_ns, r.transfer_ns, r.copy_ns, r.idle_ns) for r in rows]
    return BriefTable(
        RANK_COLUMNS,
        [[row.rank, *map(ms, parts)] for row, parts in zip(rows, times, strict=True)],
    )


def _outliers(diagnosis: Diagnosis, most: int) -> BriefTable | None:
    rows = [
        [one.step, ms(one.wall_ns), ms(one.normal_ns), _part(one)]
        for one in diagnosis.outlier_steps[:most]
    ]
    return BriefTable(OUTLIER_COLUMNS, rows) if rows else None


def _part(one: OutlierStep) -> str:
    """What most of an outlier step's excess is; causes of idle time are our own words."""
    return f"idle {one.name}" if one.part == "idle" else f"{one.part} {named(one.name, 60)}"


def _finding(finding: Finding, diagnosis: Diagnosis, room: _Room) -> BriefFinding:
    several = diagnosis.trace.ranks > 1
    fallback = finding.unaffected_step_ns
    ending = finding.gaps_end_at
    if ending is not None and ending.startswith("kernel "):
        ending = f"kernel {named(ending.removeprefix('kernel '), 80)}"
    cost = finding.value("observed_ns_per_step")
    return BriefFinding(
        id=finding.cause,
        severity=finding.severity,
        costs_ms=ms(finding.time_ns_per_step if cost is None else cost),
        predicted_step_ms=ms(finding.predicted_step_ns),
        range_ms=[ms(finding.prediction_low_ns), ms(finding.prediction_high_ns)],
        message=sentence(finding.message, finding.names, room.words),
        or_less=finding.at_least,
        unreliable=f"prediction unreliable: {finding.unreliable}" if finding.unreliable else "",
        unaffected_step_ms=ms(fallback) if fallback is not None and finding.unreliable else None,
        root_cause=finding.root_cause,
        ranks=finding.ranks[: room.rows] if several else [],
        where=_where(finding.where),
        gaps_end_at=ending,
        do=[clean(text, 200) for text in finding.recommendations[: room.advice]],
        next_capture=finding.next_capture,
    )


def _where(place: Location) -> dict[str, str]:
    kinds = ("range", "operator", "source", "function")
    return {kind: named(name, 80) for kind in kinds if (name := getattr(place, kind))}


def _combined(diagnosis: Diagnosis) -> BriefCombined | None:
    found = diagnosis.combined
    if found is None:
        return None
    return BriefCombined(
        found.causes,
        ms(found.predicted_step_ns),
        [ms(found.prediction_low_ns), ms(found.prediction_high_ns)],
    )
