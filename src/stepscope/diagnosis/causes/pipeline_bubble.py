"""The stages of a pipeline wait for each other."""

from __future__ import annotations

from stepscope.collectives.job import stages_of
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure
from stepscope.diagnosis.collective_figures import position

_ID = "pipeline_bubble"

_TIME_SQL = "SELECT round(avg(bubble_ns))::BIGINT FROM rank_pace"
_SLOW = "SELECT max(compute_ns) FROM rank_pace"
_SHARE_SQL = (
    "SELECT round(max(bubble_ns / step_ns::DOUBLE), 4) FROM rank_pace "
    f"WHERE compute_ns >= 0.99 * ({_SLOW})"
)
_STAGES_SQL = "SELECT max(stage) + 1 FROM rank_pace"
# Of the stage that computes longest, filling and draining is what all other stages compute for one
# micro-batch, forward and backward.
_MICRO_BATCHES = (
    "SELECT greatest(1, round({} * (sum(compute_ns) - max(compute_ns)) / (SELECT "
    f"greatest(max(bubble_ns), 1) FROM rank_pace WHERE compute_ns >= 0.99 * ({_SLOW}))))::BIGINT "
    "FROM (SELECT avg(compute_ns) AS compute_ns FROM rank_pace WHERE stage >= 0 GROUP BY stage)"
)
_UNEVEN: float = 1.1
"""Stages that differ by less are balanced: layers cannot be split."""


def detect(case: Case) -> Detection | None:
    """Waiting in sends and receives between neighbours."""
    c = case.job.view.collectives
    if c is None or c.alone or not len(c.parts):
        return None
    me = position(case)
    bubbles = c.parts.bubble.mean(axis=0)
    stages = stages_of(c)
    if me not in {device for stage in stages for device in stage} or not bubbles[me]:
        return None
    time = round(float(bubbles.mean()))
    compute = c.parts.compute.mean(axis=0)
    slow = max(range(len(stages)), key=lambda s: max(compute[d] for d in stages[s]))
    worst = max(float(compute[d]) for d in stages[slow])
    uneven = worst / max(float(compute.mean()), 1.0)
    ranks = [str(c.participants[d].rank) for d in stages[slow][:8]]
    named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
    message = (
        "{stages} pipeline stages wait for each other inside sends and receives, "
        "{mean_bubble_ns} a step in the mean"
    )
    recommendations = [
        "use more and smaller micro-batches: filling and draining the pipeline takes (stages - 1) "
        "of (micro-batches + stages - 1)",
        "use a schedule with less of it: interleaved stages, zero-bubble, or DualPipe",
    ]
    if uneven >= _UNEVEN:
        message += (
            "; {slow} is the slow stage, {slowest_compute_ns} of compute a step against "
            "{mean_compute_ns} in the mean"
        )
        recommendations.insert(
            0,
            f"move layers away from the stage of {named}: the slowest stage sets the pace; "
            "embedding, loss and output projection count as layers",
        )
    message += (
        "; filling and draining takes {bubble_share} of the step, which some "
        "{micro_batches_to_halve} micro-batches instead of some {micro_batches} would halve"
    )
    return Detection(
        time_ns=time,
        # more micro-batches halve it; an even split of the layers and another schedule end it
        direct_ns=time / 2,
        message=message,
        texts={"slow": named},
        recommendations=recommendations,
        figures=[
            Figure("stages", "count", _STAGES_SQL),
            Figure("mean_bubble_ns", "ns_per_step", _TIME_SQL),
            Figure("bubble_share", "share", _SHARE_SQL),
            Figure("micro_batches", "count", _MICRO_BATCHES.format(1)),
            Figure("micro_batches_to_halve", "count", _MICRO_BATCHES.format(2)),
            Figure("slowest_compute_ns", "ns_per_step", _SLOW),
            Figure(
                "mean_compute_ns",
                "ns_per_step",
                "SELECT round(avg(compute_ns))::BIGINT FROM rank_pace",
            ),
        ],
        floor_ns=max(float(c.step_ns) - time, 0.0),
        next_capture=None if c.matched.complete else "the same capture of the ranks not there",
    )


CAUSE = Cause(
    id=_ID,
    title="Pipeline bubble",
    definition=(
        "The model is split over ranks that work one after the other (pipeline parallelism). While "
        "the pipeline fills and drains, and wherever one stage takes longer than the others, "
        "stages wait inside sends and receives for their neighbours."
    ),
    differential=(
        "exposed_communication is data that moves; a bubble is waiting for work. An all-to-all is "
        "sent as sends and receives as well, but among all ranks at once: uneven ones are "
        "load_imbalance. A stage that is late for a reason of its own (its host, its input, its "
        "GPU) is a straggler."
    ),
    prediction=(
        "the step without any waiting of the stages, which an even split and a schedule without "
        "bubbles reach; at least half of it, which twice the micro-batches gain"
    ),
    reference="GPipe (arXiv:1811.06965), Megatron-LM (arXiv:2104.04473)",
    min_share=0.05,
    time_sql=_TIME_SQL,
    detect=detect,
)
