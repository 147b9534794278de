"""What stands beside the findings of a diagnosis, in the words of terminal and Markdown."""

from __future__ import annotations

from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.result import Combined, Diagnosis, Finding
from stepscope.render import budget
from stepscope.render.text import clean, figure, figure_title, milliseconds, percent, plural

_RANK_TIMES = ("compute", "waiting", "transfer", "copy", "idle")
_HEADINGS = {"waiting": "wait"}
_NOTABLE = 0.01
"""Share of a step under which copies have no column."""
_SAME = 0.1
"""Share of the step from which on it is said that two findings gain the same time."""
_SAME_STEP = 0.05
"""Steps that differ by less are as long as each other."""
_MOST_STEPS = 4
_TOLD = frozenset(
    {
        "step_ns",
        "time_ns_per_step",
        "share_of_step",
        "predicted_step_ns",
        "prediction_low_ns",
        "prediction_high_ns",
        "unrecorded_before_ns",
        "unrecorded_step_ns",
        "unaffected_step_ns",
        "observed_ns_per_step",
        "gaps_end_share",
    }
)
"""Figures of a finding that the lines above its evidence say."""


def _rank_times(diagnosis: Diagnosis) -> list[str]:
    copies = any(row.copy_ns >= _NOTABLE * row.step_ns for row in diagnosis.ranks)
    return [name for name in _RANK_TIMES if copies or name != "copy"]


def rank_headings(diagnosis: Diagnosis) -> list[str]:
    """What ``rank_cells`` shows of each rank; copies only where they take some of a step."""
    return [_HEADINGS.get(name, name) for name in _rank_times(diagnosis)]


def rank_cells(diagnosis: Diagnosis) -> dict[tuple[int, int], list[str]]:
    """Times of the mean step by (rank, device), under ``rank_headings``."""
    shown = _rank_times(diagnosis)
    return {
        (row.rank, row.device): [milliseconds(getattr(row, f"{name}_ns")) for name in shown]
        for row in diagnosis.ranks
    }


def rank_note(diagnosis: Diagnosis) -> str:
    """What ``rank_cells`` and the parts are of, where ranks' own steps are longer; else empty."""
    own = {
        (gpu.rank, gpu.device): gpu.wall_ns / budget.steps_of(gpu, diagnosis)
        for gpu in diagnosis.accounting
    }
    rows = [row for row in diagnosis.ranks if (row.rank, row.device) in own]
    if not any(row.step_ns < (1 - _SAME_STEP) * own[row.rank, row.device] for row in rows):
        return ""
    shared = milliseconds(max(row.step_ns for row in rows))
    every = budget.all_devices(diagnosis)
    mean = milliseconds(every.wall_ns / max(every.steps, 1))
    return (
        f"times of each rank: of the {shared} that the steps of all ranks have in common; parts: "
        f"of each rank's own steps, {mean} on average"
    )


def where_text(finding: Finding, diagnosis: Diagnosis) -> str:
    """Where in the program most of a finding's time lies; of a job on which ranks, too."""
    place = finding.where
    places = [
        ("range", place.range),
        ("operator", place.operator),
        ("source", place.source),
        ("function", place.function),
    ]
    found = [f"{kind} {clean(name)}" for kind, name in places if name]
    if diagnosis.trace.ranks > 1:
        found.insert(0, budget.ranks_text(finding.ranks))
    return " · ".join(filter(None, found))


def reliability_text(finding: Finding) -> str:
    """That a prediction is unreliable and what to take instead; empty where it holds."""
    if not finding.unreliable:
        return ""
    text = f"prediction unreliable: {finding.unreliable}"
    if finding.unaffected_step_ns is not None:
        text += (
            "; the steps that do not hold the cause take "
            f"{milliseconds(finding.unaffected_step_ns)} on average"
        )
        unrecorded = finding.value("unrecorded_step_ns")
        most = (1 - _SAME_STEP) * finding.unaffected_step_ns
        if unrecorded is not None and max(unrecorded, finding.predicted_step_ns) < most:
            text += (
                ", with what recording costs them; when nothing is recorded, a step without the "
                f"cause takes about {milliseconds(unrecorded)}"
            )
    return text


def ending_text(finding: Finding) -> str:
    """What ends most of the idle time of a cause; empty where nothing does."""
    if finding.gaps_end_at is None:
        return ""
    share = next(e.value for e in finding.evidence if e.figure == "gaps_end_share")
    what = clean(finding.gaps_end_at, 80)
    kind, _, name = what.partition(" ")
    shown = f"kernel {name!r}" if name else f"{'an' if kind == 'upload' else 'a'} {kind}"
    return f"{percent(share)} of its idle time ends at {shown}"


def evidence_text(finding: Finding) -> str:
    """The figures behind a finding that no other line says, with the rows of those of several."""
    figures = [
        f"{figure_title(e.figure)} {figure(e.value, e.unit)}"
        + (f" ({plural(e.rows, 'row')})" if e.rows != 1 else "")
        for e in finding.evidence
        if e.figure not in _TOLD
    ]
    return f"evidence: {' · '.join(figures)}" if figures else ""


def combined_text(diagnosis: Diagnosis) -> str:
    """The step with the first two findings repaired; empty where there are fewer."""
    both = diagnosis.combined
    if both is None:
        return ""
    names = " and ".join(_inside(causes()[cause].title) for cause in both.causes)
    how = "" if both.replayed else ", estimated from the two gains"
    return (
        f"1 and 2 together ({names}): the {budget.step_noun(diagnosis)} takes about "
        f"{milliseconds(both.predicted_step_ns)} ({milliseconds(both.prediction_low_ns)} to "
        f"{milliseconds(both.prediction_high_ns)}){how}{_same_time(diagnosis, both)}"
    )


def _inside(title: str) -> str:
    """A title inside a sentence."""
    return title if title.split(maxsplit=1)[0].isupper() else title[0].lower() + title[1:]


def _same_time(diagnosis: Diagnosis, both: Combined) -> str:
    """How much of what either of two findings gains alone is the same time."""
    step = diagnosis.findings[0].value("step_ns") or 0.0
    gains = sum(step - finding.predicted_step_ns for finding in diagnosis.findings[:2])
    same = gains - (step - both.predicted_step_ns)
    if same < _SAME * step:
        return ""
    return f"; {milliseconds(same)} of what either gains alone is the same time"


def outlier_text(diagnosis: Diagnosis) -> str:
    """The outlier steps by number; empty where there are none."""
    rows = diagnosis.outlier_steps
    if not rows:
        return ""
    alike: dict[str, list[str]] = {}
    for row in rows[:_MOST_STEPS]:
        mostly = f"{row.part} ({clean(row.name, 60)})"
        alike.setdefault(mostly, []).append(f"step {row.step} takes {milliseconds(row.wall_ns)}")
    steps = "; ".join(
        f"{', '.join(several)}, {'in each ' if several[1:] else ''}most of the excess {mostly}"
        for mostly, several in alike.items()
    )
    more = len(rows) - _MOST_STEPS
    gpu = budget.slowest_gpu(diagnosis)
    whose = f" of rank {gpu.rank}" if diagnosis.trace.ranks > 1 else ""
    return (
        f"{plural(len(rows), 'outlier step')}{whose}, where the normal one takes "
        f"{milliseconds(rows[0].normal_ns)}: {steps}" + (f"; and {more} more" if more > 0 else "")
    )
