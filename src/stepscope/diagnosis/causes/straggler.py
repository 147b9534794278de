"""The ranks wait for one that is late."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.breakdown.recurrence import Recurrence, of_idle_time
from stepscope.collectives.job import Collectives
from stepscope.collectives.late import Lateness
from stepscope.collectives.stages import slow_stage
from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, causes
from stepscope.diagnosis.collective_figures import (
    IMPOSED_SQL,
    late_figures,
    late_text,
    mostly_bubbles,
    position,
    recording_text,
    surplus_figure,
)
from stepscope.diagnosis.result import Location
from stepscope.simulation import Change, DeviceLike, RankLike

_ID = "straggler"
_WHY = {
    "input_starvation": "it needs longer to get the next batch",
    "host_compute": "its training thread works longer on the CPU",
    "host_sync": "its host waits for the GPU more often or longer",
    "launch_bound": "its host launches more slowly",
    "blocking_copy": "its copies block longer",
    "allocator_churn": "it allocates memory longer",
    "compilation_or_warmup": "it loads or compiles code longer",
    "small_kernels": "its GPU loses more time between kernels",
}


_MAIN: Final = 0.5
"""Share of the lateness from which on a part of the rank's time is its reason."""

_PART_OF_IT: Final = 0.1
"""Idle time of which the late rank has so much more than the others makes it late as well."""


_NAMED_THEMSELVES: Final = frozenset({"checkpoint_stall"})
"""What one rank does for all of them is a finding of its own: the rank is not slow."""


def detect(case: Case) -> Detection | None:
    """A rank that needs longer for the same work than the others, which wait inside collectives."""
    c = case.job.view.collectives
    late = c.lateness if c is not None else None
    me = position(case)
    if c is None or late is None or late.common or me not in late.devices:
        return None
    if late.mechanism == "work" or (late.mechanism != "idle" and not _slow_by_itself(c, late)):
        return None
    if late.mechanism == "idle" and late.idle_cause in _NAMED_THEMSELVES:
        return None
    if late.surplus_ns.get("idle unexplained", 0.0) >= _MAIN * late.imposed_ns:
        return None  # nothing that the rank does makes it late
    overhead = 0.0 if late.mechanism == "rate" else _more_recording(c, late)
    if overhead and late.imposed_ns - overhead < CAUSE.least_ns(case):
        return None
    root_cause = late.idle_cause
    own = causes()[root_cause].detect(case) if root_cause in causes() else None
    where = own.where if own is not None else Location()
    others = "another rank at a time is late" if late.in_turn else "the other ranks wait for {late}"
    message = f"{others} inside collectives, {{others_wait_ns}} exposed per step: {_reason(late)}"
    inside = " in {range}" if where.range else ""
    figures = late_figures()
    part = _part(late)
    if part is not None:
        message += f", by {{surplus_ns}} per step{inside}"
        figures.append(surplus_figure(part))
    if late.mechanism == "rate":
        message += (
            " ({compute_ratio} times as long, for as much work: {kernels} kernels per step, "
            "{others_kernels} on the others)"
        )
    message += recording_text(c, late)
    changes = _changes(c, late)
    return Detection(
        time_ns=late.imposed_ns,
        direct_ns=min(late.sure_ns - overhead, late.others_wait_ns),
        uncertain_ns=max(0.0, late.others_wait_ns - late.imposed_ns),
        chance=late.chance,
        rare=_rare(case, late),
        message=message,
        texts={"late": late_text(c, late)} | where.texts(),
        recommendations=_advice(late, own),
        figures=figures,
        where=where,
        next_capture=own.next_capture if own is not None else _next(late, c),
        change=next(iter(changes), None),
        also=changes[1:],
        root_cause=root_cause if root_cause in causes() else None,
        absorbs=_symptoms(c, late),
    )


def _rare(case: Case, late: Lateness) -> Recurrence | None:
    """How often what makes one rank late comes back, where few steps hold it."""
    if late.in_turn or late.idle_cause is None:
        return None
    return of_idle_time(case.explanation, late.idle_cause)


def _more_recording(c: Collectives, late: Lateness) -> float:
    """What the cost of recording would explain, were it twice what it is estimated at, ns per step.

    It is known to a factor of two. It slows the other hosts as well; where it slows them as much,
    it makes nobody late.
    """
    cost = np.array([pace.recording_ns for pace in c.paces])
    others = np.array([d not in late.devices for d in range(len(cost))])
    return max(0.0, float(cost[~others].max() - np.median(cost[others]))) if others.any() else 0.0


def _slow_by_itself(c: Collectives, late: Lateness) -> bool:
    """Whether it is no stage of a pipeline that only has more to do than the others."""
    if not mostly_bubbles(c):
        return True
    slow = slow_stage(c)
    return slow is not None and slow.by_rate and set(late.devices) <= set(slow.devices)


def _changes(c: Collectives, late: Lateness) -> tuple[Change, ...]:
    """The repair of the late ranks; none where another one is late from step to step."""
    if late.in_turn:
        return ()
    like = DeviceLike if late.mechanism == "rate" else RankLike
    return tuple(like(rank) for rank in sorted({c.participants[d].rank for d in late.devices}))


def _reason(late: Lateness) -> str:
    if late.mechanism == "rate":
        return "the same kernels take longer on it"
    if late.mechanism == "copy":
        return "its copies take longer"
    if late.mechanism == "idle" and late.idle_cause in _WHY:
        return _WHY[late.idle_cause]
    return "no single part of its time explains it"


def _part(late: Lateness) -> str | None:
    """The part of its time in which the late rank takes longer."""
    if late.mechanism == "idle":
        return f"idle {late.idle_cause}"
    return {"rate": "compute", "copy": "copy"}.get(late.mechanism)


def _symptoms(c: Collectives, late: Lateness) -> frozenset[tuple[str, int]]:
    """The late ranks' own findings of the cause behind it."""
    if late.idle_cause is None:
        return frozenset()
    causes_there = {late.idle_cause} | {
        part.removeprefix("idle ")
        for part, surplus in late.surplus_ns.items()
        if part.startswith("idle ") and surplus >= _PART_OF_IT * late.imposed_ns
    }
    return frozenset(
        (cause, c.participants[d].rank) for d in late.devices for cause in causes_there
    )


_SLOWER_HOST: Final = (
    "the other ranks launch as much in time, so look at the late rank's host first: other "
    "processes on its cores (top, pidstat), more threads than cores, what only this rank does "
    "(logging, metrics)"
)
_NEAR_ITS_GPU: Final = (
    "bind every rank to the CPU cores and memory next to its GPU (numactl, or the launcher's "
    "binding), and let nothing else run there"
)


def _advice(late: Lateness, own: Detection | None) -> list[str]:
    if own is not None:
        first = (
            "repair this on every rank, each is late in turn"
            if late.in_turn
            else "repair the late rank only, the others are in time:"
        )
        if late.idle_cause == "launch_bound" and not late.in_turn:
            # the same program launches in time on the others: this host is the slower one
            return [_SLOWER_HOST, _NEAR_ITS_GPU, *own.recommendations[:2]]
        return [first, *own.recommendations]
    if late.mechanism == "rate":
        return [
            "compare the GPUs while they train: nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,ECC "
            "(a lower clock, a throttle reason or another process shows there)",
            "exchange the late rank's GPU: when the lateness moves with it, take the GPU out of "
            "service; when it stays, look for what else runs on that rank",
        ]
    return [
        "compare the late rank with another one in the timeline, between two collectives",
        _NEAR_ITS_GPU,
    ]


def _next(late: Lateness, c: Collectives) -> str | None:
    if late.mechanism == "rate":
        return captures.PLAIN
    return None if c.matched.complete else "the same capture of the ranks that are missing"


CAUSE = Cause(
    id=_ID,
    title="Straggler",
    definition=(
        "One rank (or the ranks of one machine) needs longer for its part of the step than the "
        "others. These wait for it inside the next collective, where their GPUs look busy. The "
        "lateness counts until the next rank would be late, by what its device and host need "
        "without waiting."
    ),
    differential=(
        "exposed_communication is data that moves without compute beside it: waiting for a late "
        "rank is no part of it. load_imbalance is a rank that was given more work; a straggler "
        "takes longer for the same, whatever it multiplies. What all ranks suffer from "
        "(launch_bound, input_starvation) is "
        "reported as such, even where one of them happens to be last. A rank that only the "
        "recording slows is none."
    ),
    prediction=(
        "the step without the late ranks' surplus over what the next rank needs on its own account"
    ),
    reference="docs/how-it-works.md, several ranks",
    min_share=0.05,
    time_sql=IMPOSED_SQL,
    remedies=(
        "exchange the late rank's GPU or node: does the lateness move with it?",
        "compare clocks, temperature and errors while it trains: `nvidia-smi -q -d "
        "CLOCK,PERFORMANCE,TEMPERATURE,ECC`",
        "see what the late rank does instead: `stepscope diagnose` on its capture alone",
    ),
    detect=detect,
    less_recording=True,
)
