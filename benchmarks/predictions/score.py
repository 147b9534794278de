"""Scores what ``stepscope diagnose`` predicts against the measured pairs of the exam.

usage: python benchmarks/predictions/score.py [--half development|unseen|both] [--reveal] [--docs]
       [--source own|kineto] [NAME...]

The measured ratio is the repaired program's mean step over the faulty one's, both untraced, by the
medians of turns; the predicted one is the predicted step over the recorded step. Pairs whose turns
differ by more than 5 % are summed up apart. ``--half development`` prints each pair;
the unseen half prints its summary only, unless ``--reveal`` is given. ``--docs`` keeps the scores,
of which ``dev.py docs`` makes ``docs/reference/predictions.md``.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import first_seen
from program import half
from store import CAPTURES, unpack_capture
from timing import NOISY, disagreement, ratio

if TYPE_CHECKING:
    from stepscope.diagnosis.result import Diagnosis, Finding

SOURCES = ("own", "kineto")
SCORES = Path(__file__).parent / "scores.json"

SAME = {
    "low_precision_unused": "lower_precision",
    "unfused_attention": "fused_attention",
    "unfused_optimizer": "fused_optimizer",
    "fusion_opportunity": "compile",
}
"""Causes, and the levers that name the same repair."""


@dataclass(frozen=True)
class Row:
    """One pair and source.

    Attributes:
        name: the pair.
        source: ``own`` or ``kineto``.
        half: half of the exam.
        cause: what was planted.
        verdict: what is named first.
        rank: place of the planted cause among the findings, from 1; 0 for a lever, -1 for nowhere.
        measured: repaired step over faulty step, untraced.
        spread: how far the turns of the faulty and of the repaired program differ, the larger.
        predicted: predicted step over recorded step; None where nothing is predicted.
        low: lower bound of that.
        high: upper bound of that.
        at_least: whether the prediction only says that something is gained.
        replay_error: of the unchanged replay.
        slowed: recorded step over untraced step.
        paced: unrecorded step of the recorded process over the untraced step; None where the
            capture knows no such step.
        wrong: contradictions of the prediction with itself.
    """

    name: str
    source: str
    half: str
    cause: str
    verdict: str
    rank: int
    measured: float
    spread: float
    predicted: float | None
    low: float | None
    high: float | None
    at_least: bool
    replay_error: float | None
    slowed: float
    paced: float | None
    wrong: list[str]

    @property
    def noisy(self) -> bool:
        """Whether turns of the same program differ by so much that the truth is not known."""
        return self.spread > NOISY

    @property
    def at_one_pace(self) -> bool:
        """Whether the recorded process is known to have taken what the timed one took."""
        return self.paced is not None and abs(self.paced - 1) <= NOISY

    @property
    def error(self) -> float | None:
        """Predicted over measured ratio, less one; None where no value is predicted."""
        if self.predicted is None or self.at_least:
            return None
        return self.predicted / self.measured - 1

    @property
    def holds(self) -> bool | None:
        """Whether the measured ratio is in the range, to half a percent; None as with the error."""
        if self.at_least or self.low is None or self.high is None:
            return None
        return first_seen.within(self.low, self.measured, self.high)

    @property
    def width(self) -> float | None:
        """Width of the range over its middle; None as with the error."""
        if self.at_least or self.low is None or self.high is None or self.low + self.high <= 0:
            return None
        return 2 * (self.high - self.low) / (self.low + self.high)


def measured_ratio(truth: dict[str, Any]) -> tuple[float, float]:
    """The repaired over the faulty step for the same samples, and the larger spread of turns."""
    return ratio(truth) / truth.get("samples", 1.0), disagreement(truth)


def named(diagnosis: Diagnosis, cause: str) -> tuple[Finding | None, int]:
    """The finding or lever about the planted cause, and its place (see ``Row.rank``)."""
    for place, finding in enumerate(diagnosis.findings, 1):
        if finding.cause == cause:
            return finding, place
    for wanted in (cause, SAME.get(cause)):
        for lever in diagnosis.levers:
            if lever.cause == wanted:
                return lever, 0
    for place, finding in enumerate(diagnosis.findings, 1):
        if SAME.get(finding.cause) == cause:
            return finding, place
    return None, -1


def step_of(finding: Finding, diagnosis: Diagnosis) -> float:
    """The step that a finding's times are parts of, ns."""
    own = [e.value for e in finding.evidence if e.figure == "step_ns"]
    return float(own[0] if own else diagnosis.step_ns.mean)


def contradictions(finding: Finding, step: float) -> list[str]:
    """What cannot be true of a prediction whatever the program does."""
    low, middle, high = (
        finding.prediction_low_ns,
        finding.predicted_step_ns,
        finding.prediction_high_ns,
    )
    found = []
    if middle > 1.001 * step:
        found.append("longer than the step")
    if not low <= middle <= high or low < 0:
        found.append("outside its own range")
    if step - middle > 1.25 * finding.time_ns_per_step + 0.01 * step:
        found.append("gains more than it costs")
    return found


FURTHER = re.compile(
    r"\bone (replayed )?CUDA graph\b|\bbf16\b|\b(block of autocast|the autocast block)\b",
    re.IGNORECASE,
)
"""What the repair of a pair says where it is the further one (``Finding.further``)."""

LIBRARY = re.compile(r"\b(torch\.nn\.functional|fn|F|nn)\.\w|\blibrary\b|\bformula\b")
"""The same of functions that are spelled out, which the library's take the place of."""


def predicted(finding: Finding | None, repair: str) -> tuple[int, int, int] | None:
    """The prediction for the repair that was made, with its bounds, ns."""
    if finding is None:
        return None
    words = LIBRARY if finding.cause == "fusion_opportunity" else FURTHER
    further = getattr(finding, "further", None)
    made, told = (bool(words.search(text)) for text in (repair, further.repair if further else ""))
    own = further if further is not None and made == told else finding
    return own.predicted_step_ns, own.prediction_low_ns, own.prediction_high_ns


def scored(truth: dict[str, Any], source: str, diagnosis: Diagnosis, replay: float | None) -> Row:
    """One pair and source as its row."""
    measured, spread = measured_ratio(truth)
    finding, place = named(diagnosis, truth["cause"])
    step = step_of(finding, diagnosis) if finding is not None else float(diagnosis.step_ns.mean)
    before = statistics.median(truth["before"]["mean_ms"])
    cost = diagnosis.profiler_overhead
    middle, low, high = predicted(finding, truth.get("repair", "")) or (None, None, None)

    def over(value: float | None) -> float | None:
        return None if value is None else round(value / step, 4)

    return Row(
        name=truth["name"],
        source=source,
        half=half(truth["written_after"]),
        cause=truth["cause"],
        verdict=diagnosis.verdict,
        rank=place,
        measured=round(measured, 4),
        spread=round(spread, 4),
        predicted=over(middle),
        low=over(low),
        high=over(high),
        at_least=bool(finding is not None and getattr(finding, "at_least", False)),
        replay_error=None if replay is None else round(replay, 4),
        slowed=round(diagnosis.step_ns.mean / 1e6 / before, 3),
        paced=None
        if cost is None or cost.how != "unrecorded steps"
        else round((diagnosis.step_ns.mean - cost.measured_ns) / 1e6 / before, 3),
        wrong=contradictions(finding, step) if finding is not None else [],
    )


def score(name: str, source: str) -> Row:
    """Diagnose a stored capture and score it."""
    from stepscope.api import Job

    truth = json.loads((CAPTURES / f"{name}.json").read_text())
    with tempfile.TemporaryDirectory(prefix="stepscope-exam-") as scratch:
        paths = unpack_capture(CAPTURES / f"{name}.{source}.tar.xz", Path(scratch))
        job = Job([str(path) for path in paths])
        diagnosis = job.diagnose()
        try:
            replay: float | None = float(job.simulation.replay_error)
        except Exception:  # nothing to replay: no step was found
            replay = None
    return scored(truth, source, diagnosis, replay)


def half_of_pair(name: str) -> str:
    """The half that a stored pair belongs to."""
    return half(json.loads((CAPTURES / f"{name}.json").read_text())["written_after"])


def stored(half_of: str, sources: Sequence[str], names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs and sources that are asked for and stored."""
    found = []
    for file in sorted(CAPTURES.glob("*.json")):
        name = file.stem
        if (names and name not in names) or half_of not in ("both", half_of_pair(name)):
            continue
        found += [(name, s) for s in sources if (CAPTURES / f"{name}.{s}.tar.xz").exists()]
    return found


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def line(row: Row) -> str:
    """A row as text."""
    ratio = "-" if row.predicted is None else f"{'<' * row.at_least}{row.predicted:.3f}"
    bounds = "" if row.low is None else f"[{row.low:.3f}, {row.high:.3f}]"
    place = {-1: "not named", 0: "lever", 1: "first"}.get(row.rank, f"no. {row.rank}")
    holds = {None: "", True: "holds", False: "MISSES"}[row.holds]
    return (
        f"{row.name:30} {row.source:6} {row.cause:20} measured {row.measured:.3f} "
        f"({'NOISY ' * row.noisy}+-{row.spread:.0%}) predicted {ratio:>6} {bounds:16} "
        f"{percent(row.error):>8} {holds:6} "
        f"{place:9} {row.verdict if row.rank != 1 else '':20} replay {percent(row.replay_error)} "
        f"slowed {row.slowed:.2f} paced {row.paced or 0:.2f} {'; '.join(row.wrong)}"
    )


def summary(rows: Sequence[Row]) -> dict[str, float | int]:
    """What the exam is about, over some rows."""
    errors = sorted(abs(r.error) for r in rows if r.error is not None)
    holds = [r.holds for r in rows if r.holds is not None]
    widths = [r.width for r in rows if r.width is not None]
    replays = [abs(r.replay_error) for r in rows if r.replay_error is not None]
    return {
        "captures": len(rows),
        "predicted": len(errors),
        "at least": sum(r.at_least for r in rows),
        "not named": sum(r.rank == -1 for r in rows),
        "named first": sum(r.rank == 1 for r in rows),
        "median error": round(float(statistics.median(errors)), 4) if errors else 1.0,
        "within 10 %": round(sum(e <= first_seen.NEAR for e in errors) / max(len(errors), 1), 4),
        "ranges that hold": round(sum(holds) / max(len(holds), 1), 4),
        "median width of ranges": round(statistics.median(widths), 4) if widths else 0.0,
        "median replay error": round(statistics.median(replays), 4) if replays else 1.0,
        "replay errors over 2 %": sum(r > 0.02 for r in replays),
        "contradictions": sum(bool(r.wrong) for r in rows),
    }


def summaries(rows: Sequence[Row]) -> dict[str, dict[str, float | int]]:
    """The summary of each half and source that has rows; of those with noisy turns apart.

    Where captures know unrecorded steps, that of those whose recorded process took what the timed
    one took follows: of the others two runs of one program differ by more than the turns tell.
    """
    found = {}
    for noisy in (False, True):
        for half_of in ("development", "unseen"):
            for source in SOURCES:
                kind = (half_of, source, noisy)
                chosen = [r for r in rows if (r.half, r.source, r.noisy) == kind]
                title = f"{half_of}, {source}" + ", turns differ" * noisy
                alike = [r for r in chosen if r.at_one_pace]
                if chosen:
                    found[title] = summary(chosen)
                if alike and not noisy:
                    found[f"{title}, at one pace"] = summary(alike)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=("development", "unseen", "both"), default="development")
    parser.add_argument("--source", choices=SOURCES)
    parser.add_argument("--reveal", action="store_true", help="print the unseen rows, too")
    parser.add_argument("--docs", action="store_true", help="write the page of the reference")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    sources = [given.source] if given.source else SOURCES
    rows: list[Row] = []
    for name, source in stored("both" if given.docs else given.half, sources, given.names):
        shown = half_of_pair(name) == "development" or given.reveal
        try:
            rows.append(score(name, source))
        except Exception as error:
            print(f"{name if shown else 'a pair'} {source}: {error!r}", flush=True)
            if shown:
                traceback.print_exc(limit=-3)
            continue
        if shown:
            print(line(rows[-1]), flush=True)
    found = summaries(rows)
    for title, figures in found.items():
        print(f"{title}: " + ", ".join(f"{k} {v}" for k, v in figures.items()))
    if given.docs:
        told = [asdict(r) for r in rows if r.half == "development" or given.reveal]
        kept = {"summaries": found, "first seen": first_seen.by_set(), "rows": told}
        SCORES.write_text(json.dumps(kept, indent=1) + "\n")
        print("now: python3 dev.py docs")


if __name__ == "__main__":
    main()
