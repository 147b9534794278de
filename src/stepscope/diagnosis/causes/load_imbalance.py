"""A rank is late because it was given more work."""

from __future__ import annotations

import numpy as np

from stepscope.collectives.job import Collectives
from stepscope.collectives.late import Lateness, beyond_mean_ns, chance_of, own_time
from stepscope.collectives.shares import larger_share
from stepscope.collectives.stages import slow_stage
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
from stepscope.kernels.accumulation import behind_backward_ns
from stepscope.simulation import Change, EvenWork, RankLike

_ID = "load_imbalance"

_MOSTLY = 0.8
"""Share of a surplus that lies in the update where it is what the surplus is of."""

_UNEVEN = {
    True: "of sizes that differ from step to step: the data is uneven",
    False: "a part of them, or all by no simple ratio, on larger operands: it has a larger share "
    "of a graph, a mesh or a table that the ranks divide",
}
"""What tells of work that others have less of, by whether it differs from step to step."""

_DIVIDE = (
    "divide graphs, meshes and tables by what each part takes to compute (edges, lookups), not by "
    "how many nodes or rows it has, or deal these out in turn"
)

_SLOWEST_SQL = "SELECT max(compute_ns) FROM rank_pace"

_MEAN_SQL = "SELECT round(avg(compute_ns))::BIGINT FROM rank_pace"
_SHARED_OUT_SQL = (
    "SELECT least(imposed_ns, (SELECT round(avg(more))::BIGINT FROM (SELECT max(time_ns) - "
    f"avg(time_ns) AS more FROM rank_time WHERE part = 'compute' GROUP BY step))) FROM {PACE}"
)


def detect(case: Case) -> Detection | None:
    """A late rank that launches more kernels or threads than the others."""
    c = case.job.view.collectives
    late = c.lateness if c is not None else None
    me = position(case)
    if c is not None and mostly_bubbles(c):
        return _stage(c, me)
    if c is None or late is None or late.mechanism != "work" or me not in late.devices:
        return None
    use = busiest_use(c)
    experts, tables = use == "expert_parallel", use == "embedding_parallel"
    figures = [*late_figures(), surplus_figure("compute")]
    # tokens that one expert does not get, lookups and samples that one rank does not, others do
    dealt = not (experts or tables or late.in_turn or late.varies) and _in_updates(c, late)
    uneven = (
        late.uneven_data
        or bool(late.longer)
        or dealt
        or ((experts or tables) and not late.in_turn)
        or _has_larger_share(c, late)
    )
    time, time_sql, chance = late.imposed_ns, None, late.chance
    if uneven:
        more = beyond_mean_ns(c.parts)
        time, chance = min(late.imposed_ns, float(more.mean())), chance_of(more)
        time_sql = _SHARED_OUT_SQL
        figures.append(Figure("mean_compute_ns", "ns_per_step", _MEAN_SQL))
    if late.in_turn:
        message = (
            "the late rank changes from step to step with the work it was given; the others wait "
            "{others_wait_ns} per step for it inside collectives"
        )
        recommendations = [
            "give every rank as much work in the same step: sort or bucket samples by length, or "
            "fill batches up to a number of tokens rather than of samples",
            "pack short sequences together, or pad to the longest of all ranks only where that "
            "is cheaper than the waiting",
        ]
    elif experts:
        message = (
            "uneven all-to-all: {late} has the experts that get most tokens and computes "
            "{compute_ns} per step between the all-to-alls, the others {others_compute_ns} "
            "({threads_ratio} times the threads, {kernels} kernels per step against "
            "{others_kernels}); the others wait {others_wait_ns} per step for it, most of it in "
            "the all-to-all that brings the tokens back; shared out evenly, every rank would "
            "compute {mean_compute_ns}"
        )
        recommendations = [
            "balance the router: an auxiliary balancing loss or a bias on the router's scores, and "
            "a capacity factor that limits the tokens of an expert",
            "copy the hot experts to several ranks, or place them again by the load that was "
            "measured (expert-parallel load balancing)",
        ]
    elif tables:
        message = (
            "{late} holds the embedding tables that are looked up most and computes {compute_ns} "
            "per step, the others {others_compute_ns} ({threads_ratio} times the threads); the "
            "others wait {others_wait_ns} per step for it inside collectives; shared out evenly, "
            "every rank would compute {mean_compute_ns}"
        )
        recommendations = [
            "place the tables by the lookups that each was measured to get, not by their number or "
            "size (torchrec: EmbeddingShardingPlanner)",
            "split a table that is looked up far more often than the others by rows or columns "
            "over several ranks",
            "deal the rows of a split table out in turn or by a hash, not in ranges: popular "
            "entries often have neighbouring numbers",
        ]
    elif dealt:
        message = (
            "{late} computes {compute_ns} per step, the others {others_compute_ns} "
            "({threads_ratio} times the threads), and what it has more of comes behind the "
            "backward pass: its share of the update is larger; the others wait {others_wait_ns} "
            "per step for it inside collectives; shared out evenly, every rank would compute "
            "{mean_compute_ns}"
        )
        recommendations = [
            "deal parameters to the ranks by what their update takes, the largest first to the "
            "rank that has least, not by their number or in the order of the model",
            "split the largest matrices, or update all of them on every rank where the update is "
            "quicker than the gather of its results",
        ]
    elif late.longer:
        message = (
            "{late} computes {compute_ns} per step, the others {others_compute_ns}, with as many "
            f"kernels and threads: its {late.longer} kernels take longer, while its other products "
            "take as long as on the others, so that the GPU is not slow: it has more to do in "
            "each; the others wait {others_wait_ns} per step for it inside collectives; shared "
            "out evenly, every rank would compute {mean_compute_ns}"
        )
        recommendations = [
            "fill batches and packs by the pairs of tokens that attention computes (the squares of "
            "the lengths), not by tokens alone: give each rank long sequences and short ones"
            if late.longer == "attention"
            else "give every rank as much work: operands of the same sizes on all of them",
            "sort or bucket samples by length over all ranks, so that a step's are alike",
        ]
    else:
        message = (
            "{late} computes more than the others, {compute_ns} per step against "
            "{others_compute_ns} ({threads_ratio} times the threads); the others wait "
            "{others_wait_ns} per step for it inside collectives"
        )
        give = (
            "give every rank as much work: the same number of samples and tokens "
            "(DistributedSampler with drop_last=True), equal shards, equal pipeline stages, "
            "balanced experts"
        )
        if uneven:
            message += (
                ". It launches about as many kernels ({kernels} per step, {others_kernels} on the "
                f"others), {_UNEVEN[late.uneven_data]}; shared out evenly, every rank would "
                "compute {mean_compute_ns}"
            )
        divided = uneven and not late.uneven_data
        recommendations = [_DIVIDE, give] if divided else [give]
        if not uneven:
            recommendations.append(
                "move what only this rank does (evaluation, logging on the GPU, extra losses) out "
                "of the step or share it out"
            )
    message += recording_text(c, late)
    if time <= 0:
        return None
    # what one rank alone does in each step can go
    shared_out = late.in_turn or uneven
    changes: list[Change] = (
        [EvenWork()]
        if shared_out
        else [RankLike(rank) for rank in sorted({c.participants[d].rank for d in late.devices})]
    )
    return Detection(
        time_ns=time,
        direct_ns=min(time, late.sure_ns, late.others_wait_ns),
        chance=chance,
        change=changes[0],
        also=tuple(changes[1:]),
        alternative=None if shared_out else EvenWork(),
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


def _has_larger_share(c: Collectives, late: Lateness) -> bool:
    """Whether late devices have a larger share of a whole than the others, in each step."""
    if not late.same_kernels or late.in_turn:
        return False
    mine = [each.kernels for at, each in enumerate(c.explained) if at in late.devices]
    others = [each.kernels for at, each in enumerate(c.explained) if at not in late.devices]
    return bool(others) and larger_share(mine, others)


def _in_updates(c: Collectives, late: Lateness) -> bool:
    """Whether late devices have more to do behind the backward pass, with as many kernels.

    There parameters are updated that are dealt out to the ranks: what one has less of, another has
    more.
    """
    if not late.same_kernels:
        return False
    update = np.array([behind_backward_ns(each.kernels) for each in c.explained])
    compute = c.parts.compute.mean(axis=0)
    mine = np.zeros(len(update), bool)
    mine[late.devices] = True
    if mine.all():
        return False
    more, of_all = (float(ns[mine].mean() - np.median(ns[~mine])) for ns in (update, compute))
    return more >= _MOSTLY * of_all > 0


def _stage(c: Collectives, me: int) -> Detection | None:
    """A stage of a pipeline that computes longer than the others, which wait for it."""
    slow = slow_stage(c)
    if slow is None or me not in slow.devices or slow.by_rate:
        return None
    ranks = [str(c.participants[d].rank) for d in slow.devices[:8]]
    named = f"stage {slow.number} (rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)})"
    # more layers are more launches, which may take longer than what they compute
    need = own_time(c.parts, c.paces).mean(axis=0)
    longest = int(need.argmax()) in slow.devices
    surplus = max(slow.surplus_ns, float(need.max() - need.mean()) if longest else 0.0)
    surplus_sql = f"({_SLOWEST_SQL}) - ({_MEAN_SQL})"
    if longest:
        surplus_sql = (
            f"greatest({surplus_sql}, "
            "(SELECT round(max(need_ns) - avg(need_ns))::BIGINT FROM rank_pace))"
        )
    return Detection(
        time_ns=surplus,
        direct_ns=slow.surplus_ns / 2,
        message=(
            "{slow} of {stages} pipeline stages computes {stage_compute_ns} per step, "
            "{mean_compute_ns} in the mean of all; it sets the pace, and the other stages wait for "
            "it inside sends and receives"
        ),
        texts={"slow": named},
        recommendations=[
            f"move layers away from {named}: the slowest stage sets the pace; embedding, loss and "
            "output projection count as layers",
            "split the layers by their measured time, not by their number",
        ],
        figures=[
            Figure("stages", "count", "SELECT max(stage) + 1 FROM rank_pace"),
            Figure("stage_compute_ns", "ns_per_step", _SLOWEST_SQL),
            Figure("mean_compute_ns", "ns_per_step", _MEAN_SQL),
            Figure(
                "others_wait_ns",
                "ns_per_step",
                "SELECT median(waiting_ns)::BIGINT FROM "
                f"rank_pace WHERE compute_ns < 0.99 * ({_SLOWEST_SQL})",
            ),
        ],
        floor_ns=0.0,
        next_capture=(
            None if c.matched.complete else "the same capture of the ranks that are missing"
        ),
        time_sql=f"SELECT {surplus_sql}",
        change=EvenWork("stages"),
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
        "kernels and of their threads; where these are the same, some products take longer and "
        "others do not (attention over longer sequences). exposed_communication excludes waiting "
        "for late ranks."
    ),
    prediction=(
        "the step with the late rank's work as that of the others, operation by operation; the "
        "range reaches to its surplus being shared out. Where the ranks launch the same kernels, "
        "of sizes that differ from step to step (samples, sequences or graphs are not dealt out "
        "evenly) or by no simple ratio, or products take as long on all of them (parts of a graph, "
        "a mesh or a table), experts or embedding tables are uneven, or a stage of a pipeline is "
        "slow, with the mean work of all ranks on each; layers that move take their launches with "
        "them"
    ),
    reference="docs/how-it-works.md, several ranks",
    min_share=0.05,
    time_sql=IMPOSED_SQL,
    remedies=(
        "give the ranks equal work: sort or pack sequences by length, balance the router of "
        "experts",
        "split a pipeline's layers by measured time, not by their number",
    ),
    detect=detect,
    less_recording=True,
)
