"""Collectives that never completed: who arrived, and who never did, from flight recorders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_make import short_group
from stepscope.jobs.job_result import (
    SCHEMA,
    HeatMap,
    JobDiagnosis,
    JobSummary,
    Skipped,
    StepTime,
    Stuck,
)
from stepscope.jobs.logs import LogAnswer
from stepscope.trace.recorded import Entry, Recorded

_MOST: Final = 20


def stuck_collectives(
    dumps: Sequence[Recorded], digests: Sequence[Digest]
) -> tuple[list[Stuck], list[str]]:
    """Collectives that some rank waits in, the first that hangs first, and warnings.

    A rank never arrived where its record ends before an operation that others enqueued. A record is
    a ring: an operation that is older than all that a rank still holds was not missed.
    """
    warnings = []
    ranks: dict[int, Recorded] = {}
    for dump in dumps:
        if dump.rank in ranks:
            warnings.append(
                f"rank {dump.rank} has two dumps, {ranks[dump.rank].path} and {dump.path}; the "
                "first counts"
            )
            continue
        ranks[dump.rank] = dump
    groups: dict[str, set[int]] = {}
    for dump in ranks.values():
        for name, members in dump.groups.items():
            groups.setdefault(name, set()).update(members)
        for entry in dump.entries:
            groups.setdefault(entry.group, set()).add(dump.rank)
    found = []
    for name, whole in groups.items():
        found += _stuck_in(name, whole, ranks)
    found.sort(key=lambda stuck: (stuck.since_ns or 1 << 62, stuck.group, stuck.sequence))
    return on_timelines(found[:_MOST], digests), warnings


def on_timelines(stuck: Sequence[Stuck], digests: Sequence[Digest]) -> list[Stuck]:
    """The same with where on the timelines of the ranks they lie."""
    return [_tied(one, digests) for one in stuck] if digests else list(stuck)


def _stuck_in(group: str, members: set[int], ranks: dict[int, Recorded]) -> list[Stuck]:
    there = {rank: ranks[rank] for rank in sorted(members) if rank in ranks}
    open_: dict[int, dict[int, Entry]] = {}
    last: dict[int, int] = {}
    for rank, dump in there.items():
        own = [e for e in dump.entries if e.group == group and not e.point_to_point]
        last[rank] = max([e.sequence for e in own] + [dump.enqueued.get(group, -1)], default=-1)
        for entry in own:
            if entry.state != "completed":
                open_.setdefault(entry.sequence, {})[rank] = entry
    found = []
    for sequence, waiting in sorted(open_.items()):
        arrived = sorted(rank for rank in there if last[rank] >= sequence)
        never = sorted(rank for rank in there if last[rank] < sequence)
        # all are there and none has completed: it runs, or the network stands
        if not never and len(waiting) < len(there):
            continue
        first = min(waiting.values(), key=lambda e: e.created_ns or 1 << 62)
        unrecorded = sorted(members - there.keys())
        found.append(_stuck_text(group, sequence, first, arrived, never, unrecorded))
        break  # what is enqueued behind it waits for it
    return found


def _stuck_text(
    group: str, sequence: int, entry: Entry, arrived: list[int], never: list[int],
    unrecorded: list[int],
) -> Stuck:  # fmt: skip
    where = f" at {entry.where}" if entry.where else ""
    text = f"{_ranks(arrived)} {'wait' if len(arrived) > 1 else 'waits'} in {entry.name} "
    text += f"number {sequence} of group {group}{where}"
    if never:
        text += f"; {_ranks(never)} never arrived"
    elif unrecorded:
        text += f"; {_ranks(unrecorded)} left no dump, and may be who never arrived"
    else:
        text += "; all ranks arrived and none completed it: it still runs, or the network stands"
    return Stuck(
        group=group,
        sequence=sequence,
        name=entry.name,
        arrived=arrived,
        never_arrived=never,
        not_recorded=unrecorded,
        since_ns=entry.created_ns,
        where=entry.where,
        message=text,
    )


def _ranks(ranks: Sequence[int]) -> str:
    text = short_group(",".join(map(str, ranks)))
    return ("ranks " if len(ranks) > 1 else "rank ") + text.replace(",", ", ")


def _tied(stuck: Stuck, digests: Sequence[Digest]) -> Stuck:
    """The same with where on the timelines it lies: ns after the begin of the ranks' captures."""
    from msgspec.structs import replace

    if not stuck.since_ns:
        return stuck
    where = []
    for digest in digests:
        if digest.rank not in stuck.arrived or digest.facts["origin_epoch_ns"] is None:
            continue
        at = stuck.since_ns - digest.facts["origin_epoch_ns"]
        begin, wall = digest.ints("steps", "begin_ns"), digest.ints("steps", "wall_ns")
        inside = len(begin) and begin[0] <= at <= begin[-1] + wall[-1]
        if inside:
            step = int(digest.ints("steps", "number")[max(int((begin <= at).sum()) - 1, 0)])
            where.append(f"in step {step} of the capture of rank {digest.rank}")
            break
        where.append(
            f"{abs(at) / 1e9:.3f} s {'after' if at > 0 else 'before'} the begin of the capture of "
            f"rank {digest.rank}"
        )
    return replace(stuck, message=f"{stuck.message}; that is {where[-1]}") if where else stuck


def only_recorded(
    dumps: Sequence[Recorded],
    answer: LogAnswer | None,
    stuck: Sequence[Stuck],
    warnings: Sequence[str],
    skipped: Sequence[Skipped],
) -> JobDiagnosis:
    """A diagnosis of a job of which only records of collectives are there.

    Args:
        dumps: of flight recorders.
        answer: what logs of NCCL Inspector tell; None without them.
        stuck: collectives that did not complete.
        warnings: what was assumed or odd.
        skipped: inputs that were left out.
    """
    ranks = {dump.rank for dump in dumps}
    named = {rank for dump in dumps for members in dump.groups.values() for rank in members}
    world = max(named) + 1 if named else None
    count, verdict = len(ranks), "insufficient_data"
    if answer is not None:
        ranks |= set(answer.ranks)
        named |= set(range(answer.world_size or 0))
        world = max(world or 0, answer.world_size or 0) or None
        count, verdict = max(len(ranks), answer.gpus), answer.verdict
    return JobDiagnosis(
        schema=SCHEMA,
        job=JobSummary(
            digests=0,
            ranks=count,
            world_size=world,
            missing_ranks=sorted(named - ranks),
            nodes=answer.nodes if answer is not None else 0,
            steps=0,
            step_kind="",
            skipped=list(skipped),
        ),
        step_ns=StepTime(0, 0, 0),
        verdict="hang" if stuck else verdict,
        findings=[],
        all_repaired_step_ns=0,
        roles=[],
        communicators=[],
        ranks=[],
        outliers=[],
        heat_map=HeatMap([], [], []),
        fetch=[],
        stuck=list(stuck),
        warnings=list(warnings),
        collective_logs=answer.logs if answer is not None else None,
    )
