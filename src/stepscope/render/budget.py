"""The step budget: where the mean steady step of a device goes, as parts that sum to it."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.diagnosis.result import Diagnosis, LaneAccounting

_SMALL = 0.01
_NOTABLE = 0.10


@dataclass(frozen=True)
class Part:
    """One part of the step: name, ns in the steady window, whether it is idle time."""

    name: str
    ns: int
    idle: bool


def parts(lane: LaneAccounting) -> list[Part]:
    """Parts of a device's steady window, busy first; idle causes under 1 % are one part."""
    busy = [
        Part("compute", lane.compute_ns, False),
        Part("exposed communication", lane.exposed_communication_ns, False),
        Part("exposed copy", lane.exposed_copy_ns, False),
        Part("memset", lane.memset_ns, False),
    ]
    causes = sorted(lane.idle_by_cause_ns.items(), key=lambda item: -item[1])
    large = [Part(name, ns, True) for name, ns in causes if ns >= _SMALL * lane.wall_ns]
    rest = sum(ns for _, ns in causes) - sum(part.ns for part in large)
    other = [Part("other idle", rest, True)] if rest else []
    return [part for part in [*busy, *large, *other] if part.ns]


def headline(diagnosis: Diagnosis) -> str:
    """The whole answer in one sentence."""
    from stepscope.diagnosis.cause import causes
    from stepscope.render.text import clean, milliseconds, percent

    if not diagnosis.findings:
        lane = reference_lane(diagnosis)
        waiting = lane.exposed_communication_ns / max(lane.wall_ns, 1)
        if waiting > _NOTABLE:
            return (
                f"No cause found outside communication, which nothing covers for "
                f"{percent(waiting)} of each {milliseconds(diagnosis.step_ns.median)} step: it may "
                "move data or wait for another rank."
            )
        share = 100 * (lane.wall_ns - lane.idle_ns) / max(lane.wall_ns, 1)
        return (
            f"Healthy: the GPU is busy {share:.0f} % of each "
            f"{milliseconds(diagnosis.step_ns.median)} step; no cause outside the kernels is "
            "worth fixing."
        )
    first = diagnosis.findings[0]
    if first.cause == "insufficient_data":
        return clean(first.says, 400) + "."
    step = first.time_ns_per_step / max(first.share_of_step, 1e-9)
    title = causes()[first.cause].title
    on_rank = f" on {ranks_text(first.ranks)}" if diagnosis.trace.ranks > 1 else ""
    return (
        f"{title}{on_rank} costs {milliseconds(first.time_ns_per_step)} of each "
        f"{milliseconds(step)} step; fixed, the step takes about "
        f"{milliseconds(first.predicted_step_ns)}."
    )


def reference_lane(diagnosis: Diagnosis) -> LaneAccounting:
    """The device that the headline speaks of: the first finding's first rank, else the first."""
    if diagnosis.findings:
        rank = diagnosis.findings[0].ranks[0]
        for lane in diagnosis.accounting:
            if lane.rank == rank:
                return lane
    return diagnosis.accounting[0]


def ranks_text(ranks: list[int]) -> str:
    """``rank 0``, ``ranks 0, 1``; eight at most are named."""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return (
        f"{noun} "
        + ", ".join(str(rank) for rank in ranks[:8])
        + (", ..." if len(ranks) > 8 else "")
    )
