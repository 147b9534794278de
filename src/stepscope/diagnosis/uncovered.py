"""Exposed communication that no finding explains: what forbids to call a job healthy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from stepscope.diagnosis.cause import Case, Figure

ABOUT_COMMUNICATION: Final = frozenset(
    {
        "exposed_communication",
        "straggler",
        "load_imbalance",
        "pipeline_bubble",
        "insufficient_data",
    }
)
"""Causes whose findings explain exposed communication, on every rank: the late ones and those that
wait for them."""

LARGE: Final = 0.1
"""From this share of the step on, exposed communication that nothing explains is not healthy."""

SHARE_SQL: Final = (
    "SELECT max(share) FROM (SELECT sum(exposed_communication_ns) / sum(wall_ns) AS share "
    "FROM step WHERE steady GROUP BY rank, process_id, device)"
)

_ALL_RANKS: Final = "give the captures of all ranks of the job together, taken at the same time"
_SLOWED: Final = (
    "record with less that slows hosts (stepscope run --steps N, no stacks, shapes or samples), "
    "each rank bound to cores of its own; where unrecorded steps are paced by hosts, too, launch "
    "less: CUDA graphs, torch.compile, a fused optimizer"
)


@dataclass(frozen=True)
class Uncovered:
    """Exposed communication that no finding explains, on the device with most of it.

    Attributes:
        rank: rank of the device.
        share: its part of the steady steps.
        message: why nothing is named, a sentence; a template for ``figures``.
        advice: what would tell.
        figures: the evidence.
    """

    rank: int
    share: float
    message: str
    advice: str
    figures: list[Figure]


def uncovered_communication(cases: Sequence[Case], found: Iterable[str]) -> Uncovered | None:
    """What the verdict must say instead of "healthy"; None where nothing forbids that word.

    Args:
        cases: one a device; at least one.
        found: ids of the causes that the diagnosis names.
    """
    if ABOUT_COMMUNICATION & set(found):
        return None

    def share(case: Case) -> float:
        e = case.explanation
        return e.steady_total("exposed_communication_ns") / max(e.end_ns - e.begin_ns, 1)

    worst = max(cases, key=share)
    if share(worst) < LARGE:
        return None
    c = worst.job.view.collectives
    late = c.lateness if c is not None else None
    message = (
        "communication runs with no compute beside it for {uncovered_share} of the step of rank "
        f"{worst.rank}, and no cause of it is named: "
    )
    if c is None or c.alone:
        message += (
            "the capture of one rank cannot tell moving data from waiting for a late rank; give "
            "the captures of all ranks together"
        )
        advice = _ALL_RANKS
    elif not c.matched.complete:
        message += "ranks are missing that the others may have waited for"
        advice = _ALL_RANKS
    elif late is not None and late.common:
        message += "all ranks suffer alike from what makes one of them late"
        advice = "diagnose one rank's capture alone: it names what all of them suffer from"
    elif any(pace.recording_ns for pace in c.paces):
        message += "recording slows the hosts, and not all of them alike, which may be all of it"
        advice = _SLOWED
    else:
        message += "neither a late rank nor a transfer that other work waited for explains it"
        advice = (
            "see which rank joins last at which collective (stepscope comm CAPTURES), and what it "
            "did before (stepscope ui)"
        )
    return Uncovered(
        worst.rank, share(worst), message, advice, [Figure("uncovered_share", "share", SHARE_SQL)]
    )
