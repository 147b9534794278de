"""What stands beside the findings of a diagnosis, in the words of terminal and Markdown."""

from __future__ import annotations

from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.result import Diagnosis, Finding
from stepscope.render.text import clean, milliseconds, percent, plural

RANK_HEADINGS = ("compute", "wait", "transfer", "idle")
_MOST_STEPS = 4


def rank_cells(diagnosis: Diagnosis) -> dict[tuple[int, int], tuple[str, ...]]:
    """Times of the mean step by (rank, device), under ``RANK_HEADINGS``."""
    return {
        (row.rank, row.device): tuple(
            milliseconds(ns)
            for ns in (row.compute_ns, row.waiting_ns, row.transfer_ns, row.idle_ns)
        )
        for row in diagnosis.ranks
    }


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


def combined_text(diagnosis: Diagnosis) -> str:
    """The step with the first two findings repaired; empty where there are fewer."""
    both = diagnosis.combined
    if both is None:
        return ""
    names = " and ".join(causes()[cause].title.lower() for cause in both.causes)
    how = "" if both.replayed else ", estimated from the two gains"
    return (
        f"1 and 2 together ({names}): the step takes about "
        f"{milliseconds(both.predicted_step_ns)} ({milliseconds(both.prediction_low_ns)} to "
        f"{milliseconds(both.prediction_high_ns)}){how}"
    )


def outlier_text(diagnosis: Diagnosis) -> str:
    """The outlier steps by number; empty where there are none."""
    rows = diagnosis.outlier_steps
    if not rows:
        return ""
    steps = "; ".join(
        f"step {row.step} takes {milliseconds(row.wall_ns)}, most of the excess "
        f"{row.part} ({clean(row.name, 60)})"
        for row in rows[:_MOST_STEPS]
    )
    more = len(rows) - _MOST_STEPS
    return (
        f"{plural(len(rows), 'outlier step')}, where the normal one takes "
        f"{milliseconds(rows[0].normal_ns)}: {steps}" + (f"; and {more} more" if more > 0 else "")
    )
