"""A rank is late because it was given more work."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure
from stepscope.diagnosis.collective_figures import (
    IMPOSED_SQL,
    PACE,
    busiest_use,
    late_figures,
    late_text,
    mostly_bubbles,
    position,
    recording_text,
    surplus_figure,
)

_ID = "load_imbalance"

_MEAN_SQL = "SELECT round(avg(compute_ns))::BIGINT FROM rank_pace"
_SHARED_OUT_SQL = f"SELECT least(imposed_ns, compute_ns - ({_MEAN_SQL})) FROM {PACE}"


def detect(case: Case) -> Detection | None:
    """A late rank that launches more kernels or threads than the others."""
    c = case.job.view.collectives
    late = c.lateness if c is not None else None
    me = position(case)
    if c is None or late is None or late.mechanism != "work" or me not in late.devices:
        return None
    if mostly_bubbles(c):  # stages that differ are the pipeline's own cause
        return None
    experts = busiest_use(c) == "expert_parallel"
    figures = [*late_figures(), surplus_figure("compute")]
    time, time_sql = late.imposed_ns, None
    if late.in_turn:
        message = (
            "the late rank changes from step to step with the work it was given; the others wait "
            "{others_wait_ns} a step for it inside collectives"
        )
        recommendations = [
            "give every rank as much work in the same step: sort or bucket samples by length, or "
            "fill batches up to a number of tokens rather than of samples",
            "pack short sequences together, or pad to the longest of all ranks only where that "
            "is cheaper than the waiting",
        ]
    elif experts:
        # tokens that one expert does not get, others do: the work stays
        time_sql = _SHARED_OUT_SQL
        compute = c.parts.compute.mean(axis=0)
        time = min(late.imposed_ns, round(compute[me]) - round(compute.mean()))
        message = (
            "uneven all-to-all: {late} has the experts that get most tokens and computes "
            "{compute_ns} a step between the all-to-alls, the others {others_compute_ns} "
            "({threads_ratio} times the threads, {kernels} kernels a step against "
            "{others_kernels}); the others wait {others_wait_ns} a step for it, most of it in the "
            "all-to-all that brings the tokens back; shared out evenly, every rank would compute "
            "{mean_compute_ns}"
        )
        figures.append(Figure("mean_compute_ns", "ns_per_step", _MEAN_SQL))
        recommendations = [
            "balance the router: an auxiliary balancing loss or a bias on the router's scores, and "
            "a capacity factor that limits the tokens of an expert",
            "copy the hot experts to several ranks, or place them again by the load that was "
            "measured (expert-parallel load balancing)",
        ]
    else:
        message = (
            "{late} computes more than the others, {compute_ns} a step against "
            "{others_compute_ns} ({threads_ratio} times the threads); the others wait "
            "{others_wait_ns} a step for it inside collectives"
        )
        recommendations = [
            "give every rank as much work: the same number of samples and tokens "
            "(DistributedSampler with drop_last=True), equal shards, equal pipeline stages, "
            "balanced experts",
            "move what only this rank does (evaluation, logging on the GPU, extra losses) out of "
            "the step or share it out",
        ]
    message += recording_text(c, late)
    if time <= 0:
        return None
    return Detection(
        time_ns=time,
        direct_ns=min(time, late.sure_ns, late.others_wait_ns),
        uncertain_ns=max(0.0, late.others_wait_ns - time),
        message=message,
        texts={"late": late_text(c, late)},
        recommendations=recommendations,
        figures=figures,
        floor_ns=0.0,
        next_capture=(
            None if c.matched.complete else "the same capture of the ranks that are missing"
        ),
        time_sql=time_sql,
    )


CAUSE = Cause(
    id=_ID,
    title="Load imbalance",
    definition=(
        "The ranks are given different amounts of work between two collectives: a larger batch, "
        "longer sequences, a heavier pipeline stage, more tokens for one expert. The others wait "
        "for the one with most."
    ),
    differential=(
        "straggler takes longer for the same work: told apart by what was launched, the number of "
        "kernels and of their threads. exposed_communication excludes waiting for late ranks."
    ),
    prediction=(
        "the step without the late ranks' surplus over what the next rank needs on its own "
        "account; where experts are uneven, with the mean work of all ranks on each"
    ),
    reference="docs/how-it-works.md, several ranks",
    min_share=0.05,
    time_sql=IMPOSED_SQL,
    detect=detect,
)
