"""A rank is late because it was given more work."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection
from stepscope.diagnosis.collective_figures import (
    IMPOSED_SQL,
    late_figures,
    late_text,
    position,
    recording_text,
    surplus_figure,
)

_ID = "load_imbalance"


def detect(case: Case) -> Detection | None:
    """A late rank that launches more kernels or threads than the others."""
    c = case.job.view.collectives
    late = c.lateness if c is not None else None
    me = position(case)
    if c is None or late is None or late.mechanism != "work" or me not in late.devices:
        return None
    if late.in_turn:
        says = (
            "the late rank changes from step to step with the work it was given; the others wait "
            "{others_wait_ns} a step for it inside collectives"
        )
        do = [
            "give every rank as much work in the same step: sort or bucket samples by length, or "
            "fill batches up to a number of tokens rather than of samples",
            "pack short sequences together, or pad to the longest of all ranks only where that "
            "is cheaper than the waiting",
        ]
    else:
        says = (
            "{late} computes more than the others, {compute_ns} a step against "
            "{others_compute_ns} ({threads_ratio} times the threads); the others wait "
            "{others_wait_ns} a step for it inside collectives"
        )
        do = [
            "give every rank as much work: the same number of samples and tokens "
            "(DistributedSampler with drop_last=True), equal shards, equal pipeline stages, "
            "balanced experts",
            "move what only this rank does (evaluation, logging on the GPU, extra losses) out of "
            "the step or share it out",
        ]
    says += recording_text(c, late)
    return Detection(
        time_ns=late.imposed_ns,
        direct_ns=min(late.imposed_ns, late.others_wait_ns),
        unsure_ns=max(0.0, late.others_wait_ns - late.imposed_ns),
        says=says,
        texts={"late": late_text(c, late)},
        do=do,
        figures=[*late_figures(), surplus_figure("compute")],
        floor_ns=0.0,
        next_capture=(
            None if c.matched.complete else "the same capture of the ranks that are missing"
        ),
        time_sql=IMPOSED_SQL,
    )


CAUSE = Cause(
    id=_ID,
    title="Load imbalance",
    definition=(
        "The ranks are given different amounts of work between two collectives: a larger batch, "
        "longer sequences, a heavier pipeline stage, more tokens for one expert. The others wait "
        "for the one with most."
    ),
    look_alikes=(
        "straggler takes longer for the same work: told apart by what was launched, the number of "
        "kernels and of their threads. exposed_communication excludes waiting for late ranks."
    ),
    prediction=(
        "the step without the late ranks' surplus over what the next rank needs on its own "
        "account; sharing the work out evenly costs the others a part of it"
    ),
    reference="docs/how-it-works.md, several ranks",
    min_share=0.05,
    detect=detect,
)
