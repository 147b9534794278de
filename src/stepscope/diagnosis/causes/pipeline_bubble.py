"""The stages of a pipeline wait for each other."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.collectives.job import Collectives, stages_of
from stepscope.collectives.kinds import POINT_TO_POINT
from stepscope.collectives.late import recording_idle
from stepscope.collectives.stages import slow_stage
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure
from stepscope.diagnosis.collective_figures import position

_ID = "pipeline_bubble"

_RECORDING = "(SELECT max(recording_ns) FROM rank_pace)"
_BUBBLE = f"greatest(bubble_ns + recording_ns - {_RECORDING}, 0)"
_TIME_SQL = f"SELECT round(avg({_BUBBLE}))::BIGINT FROM rank_pace"
_SLOW = "SELECT max(compute_ns) FROM rank_pace"
_SHARE_SQL = (
    f"SELECT round(max({_BUBBLE} / (step_ns - {_RECORDING})::DOUBLE), 4) FROM rank_pace "
    f"WHERE compute_ns >= 0.99 * ({_SLOW})"
)
_FILL_SQL = f"SELECT max({_BUBBLE}) FROM rank_pace WHERE compute_ns = ({_SLOW})"
LAUNCH_NS: Final = 50_000
"""What an eager framework takes from one launch to the next at most, where nothing else is done: a
host that takes longer has time to spare, or other work."""

_HOST_SQL = f"SELECT min(least(host_need_ns, {LAUNCH_NS} * kernels)) FROM rank_pace"
_STAGES_SQL = "SELECT max(stage) + 1 FROM rank_pace"
# Of the stage that computes longest, filling and draining is what all other stages compute for one
# micro-batch, forward and backward.
_MICRO_BATCHES = (
    "SELECT greatest(1, round({} * (sum(compute_ns) - max(compute_ns)) / (SELECT "
    f"greatest(max({_BUBBLE}), 1) FROM rank_pace WHERE compute_ns >= 0.99 * ({_SLOW}))))::BIGINT "
    "FROM (SELECT avg(compute_ns) AS compute_ns FROM rank_pace WHERE stage >= 0 GROUP BY stage)"
)
_SENT_SQL = (
    "SELECT round(count(*) / 2.0 / count(DISTINCT (rank, process_id, device)) / (SELECT max(steps) "
    "FROM rank_pace))::BIGINT FROM collective_wait WHERE name = 'send_recv' AND step IS NOT NULL "
    "AND (rank, process_id, device) IN (SELECT (rank, process_id, device) FROM rank_pace WHERE "
    "stage = 0)"
)
_FEWER: Final = 2.0
"""Micro-batches are not under way at once where filling takes so many times what it would."""

_FIGURES: Final = (
    Figure("stages", "count", _STAGES_SQL),
    Figure("mean_bubble_ns", "ns_per_step", _TIME_SQL),
    Figure("bubble_share", "share", _SHARE_SQL),
    Figure("micro_batches", "count", _MICRO_BATCHES.format(1)),
)


def detect(case: Case) -> Detection | None:
    """Waiting in sends and receives between neighbours."""
    c = case.job.view.collectives
    if c is None or c.alone or not len(c.parts):
        return None
    me = position(case)
    # the host that recording slows most keeps the others waiting by as much
    tool = recording_idle(c.parts).mean(axis=0)
    bubbles = np.maximum(c.parts.bubble.mean(axis=0) + tool - tool.max(), 0.0)
    step = float(c.step_ns - tool.max())
    stages = stages_of(c)
    if me not in {device for stage in stages for device in stage} or not bubbles[me]:
        return None
    slow = slow_stage(c)
    # what the others wait for a slow stage is its doing; it waits itself while the pipeline fills
    fill = round(float(bubbles.mean()))
    if slow is not None:
        compute = c.parts.compute.mean(axis=0)
        fill = round(float(bubbles[max(slow.devices, key=lambda d: float(compute[d]))]))
    message = (
        "{stages} pipeline stages wait for each other inside sends and receives, "
        "{mean_bubble_ns} per step in the mean; "
    )
    time_sql = None if slow is None else _FILL_SQL
    apart = _apart_ns(c, stages, fill)
    if apart is not None:
        return _one_by_one(c, message, fill, apart, time_sql)
    halved = step - fill / 2
    host = 2 * _host_ns(c)
    limited = host > halved
    longer = host >= step
    message += (
        "filling and draining takes {bubble_share} of the step, which some "
        "{micro_batches_to_halve} micro-batches instead of some {micro_batches} would halve"
    )
    recommendations = [
        "use more and smaller micro-batches: filling and draining the pipeline takes "
        "(stages - 1) of (micro-batches + stages - 1)",
        "use a schedule with less of it: interleaved stages, zero-bubble, or DualPipe",
    ]
    host_figures = []
    if limited:
        message += (
            "; but each micro-batch is launched by itself, which takes the quickest host "
            "{launching_ns} of the step already: twice as many would make "
        ) + ("the step longer" if longer else "the hosts the limit")
        recommendations.insert(
            0,
            "launch less first: torch.compile or a CUDA graph of each stage; more micro-batches "
            "gain only after that",
        )
        host_figures = [Figure("launching_ns", "ns_per_step", _HOST_SQL)]
    return Detection(
        time_ns=fill,
        # twice the micro-batches gain half of it, where they are as efficient; another schedule all
        direct_ns=0 if limited else fill / 4,
        message=message,
        recommendations=recommendations,
        figures=[
            *_FIGURES,
            Figure("micro_batches_to_halve", "count", _MICRO_BATCHES.format(2)),
            *host_figures,
        ],
        floor_ns=max(halved, min(host, step), 0.0),
        least_floor_ns=max(step - fill, 0.0),
        # what launching less makes of the hosts, the capture does not say
        at_least=longer,
        next_capture=_next(c),
        time_sql=time_sql,
    )


def _next(c: Collectives) -> str | None:
    return None if c.matched.complete else "the same capture of the ranks not there"


def _apart_ns(c: Collectives, stages: list[list[int]], fill_ns: float) -> float | None:
    """What filling and draining takes where all micro-batches are under way at once, ns a step.

    None where they are: the stages wait no longer than for as many as are sent. The first stage
    sends each of them forth and gets its gradient back.
    """
    compute = c.parts.compute.mean(axis=0)
    each = [float(compute[stage].mean()) for stage in stages]
    device = stages[0][0]
    begin, end = c.own_windows[device]
    sent = c.matched.instances.kind[c.facts.instance] == POINT_TO_POINT
    sent &= (c.facts.device == device) & (c.facts.start >= begin[0]) & (c.facts.start < end[-1])
    micro_batches = float(sent.sum()) / 2 / len(begin)
    apart = (sum(each) - max(each)) / max(micro_batches, 1.0)
    return apart if _FEWER * apart <= fill_ns else None


def _one_by_one(
    c: Collectives, message: str, fill: float, apart: float, time_sql: str | None
) -> Detection:
    """Micro-batches of which each is done before the next one is begun."""
    step = float(c.step_ns)
    return Detection(
        time_ns=fill,
        direct_ns=(fill - apart) / 2,
        message=message
        + (
            "each step sends some {micro_batches_sent} micro-batches, but the stages overlap as "
            "with some {micro_batches} of them: as if each came back before the next one is sent; "
            "the prediction is for all of them under way at once"
        ),
        recommendations=[
            "send the next micro-batch before the gradient of the last one is waited for: all "
            "forward passes first, or one forward, one backward "
            "(torch.distributed.pipelining: ScheduleGPipe, Schedule1F1B)",
            "then use more and smaller micro-batches, or a schedule with less bubble: interleaved "
            "stages, zero-bubble, or DualPipe",
        ],
        figures=[*_FIGURES, Figure("micro_batches_sent", "count", _SENT_SQL)],
        floor_ns=max(step - (fill - apart), min(_host_ns(c), step)),
        least_floor_ns=max(step - fill, 0.0),
        next_capture=_next(c),
        time_sql=time_sql,
    )


def _host_ns(c: Collectives) -> float:
    """What the quickest host needs at least to launch as many kernels, unrecorded, ns."""
    kernels = c.work.kernels.mean(axis=0)
    return min(
        min(max(pace.need_ns - pace.recording_ns, 0.0), LAUNCH_NS * float(launched))
        for pace, launched in zip(c.paces, kernels, strict=True)
    )


CAUSE = Cause(
    id=_ID,
    title="Pipeline bubble",
    definition=(
        "The model is split over ranks that work one after the other (pipeline parallelism). While "
        "the pipeline fills and drains, stages wait inside sends and receives for their "
        "neighbours."
    ),
    differential=(
        "exposed_communication is data that moves; a bubble is waiting for work. An all-to-all is "
        "sent as sends and receives as well, but among all ranks at once: uneven ones are "
        "load_imbalance, as is a stage with more layers than the others: what they wait for it is "
        "no bubble. A stage that is late for a reason of its own (its host, its input, its GPU) is "
        "a straggler."
    ),
    prediction=(
        "the step with twice the micro-batches, which fill and drain the pipeline in half the "
        "time, but not shorter than the hosts need to launch twice as often; at best without any "
        "filling and draining, which a schedule without bubbles reaches; where more micro-batches "
        "are sent than overlap, the step with all of them under way at once"
    ),
    reference="GPipe (arXiv:1811.06965), Megatron-LM (arXiv:2104.04473)",
    min_share=0.05,
    time_sql=_TIME_SQL,
    remedies=(
        "more micro-batches for each step",
        "an interleaved or zero-bubble schedule",
        "stages of equal time",
    ),
    detect=detect,
)
