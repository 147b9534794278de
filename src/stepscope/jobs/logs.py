"""What logs of NCCL Inspector tell of a job, in the terms of its diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_make import short_group
from stepscope.jobs.job_result import CollectiveLogs, LogFinding, LoggedRow, Stuck
from stepscope.jobs.logs_find import (
    LEAST_MATCHED,
    Behind,
    Seen,
    Shown,
    distinct,
    last_of,
    what_logs_show,
)
from stepscope.jobs.logs_match import JOINT, Collectives, Gpu, Logs, matched
from stepscope.trace.frame import AnyArray
from stepscope.trace.recorded import LoggedOperations
from stepscope.trace.units import percent
from stepscope.trace.units import shown as figure

_MOST_ROWS: Final = 500
_MOST_NAMED: Final = 8

_ADVICE: Final = {
    "late_rank": [
        "record the rank and one that waits for it, and let stepscope compare them: stepscope run "
        "--digest on all ranks, then stepscope job",
        "compare the GPUs while they train: nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,ECC, "
        "and what else runs on the CPU cores of the rank",
    ],
    "late_node": [
        "compare the machine with another one: clocks of GPUs and CPUs, other processes, its file "
        "system, its cooling",
    ],
    "slow_communicator": [
        "look at the links: nvidia-smi nvlink -e, nvidia-smi -q -d PCIE, the port counters of the "
        "network adapters and of their switch ports",
        "run nccl-tests over the ranks of the slow communicator, and over halves of them",
    ],
    "slow_pair": [
        "look at the link between the two: nvidia-smi topo -m, nvidia-smi nvlink -e, the counters "
        "of both network adapters",
    ],
    "ends_late": [
        "compare the clocks and the PCIe and NVLink connection of the GPU with those of its "
        "neighbours: nvidia-smi -q -d CLOCK,PCIE, nvidia-smi nvlink -e",
    ],
}


@dataclass(frozen=True)
class LogAnswer:
    """What logs tell.

    Attributes:
        logs: for the diagnosis.
        stuck: collectives that some ranks have no line of, although others completed them.
        warnings: what was assumed or odd.
        ranks: ranks that left a log, as far as they are known.
        gpus: how many left a log.
        world_size: ranks of the job, where a communicator holds all; None otherwise.
        missing: ranks of the job that left no log.
        nodes: machines.
        verdict: from the logs alone.
    """

    logs: CollectiveLogs
    stuck: list[Stuck]
    warnings: list[str]
    ranks: list[int]
    gpus: int
    world_size: int | None
    missing: list[int]
    nodes: int
    verdict: str


def answer_of_logs(logs: Sequence[LoggedOperations], digests: Sequence[Digest]) -> LogAnswer:
    """Match, judge and tell.

    Args:
        logs: at least one.
        digests: of the same job, if any: they tell the rank of a process.
    """
    known = {
        (digest.hostname, int(digest.facts["process_id"])): digest.rank
        for digest in digests
        if digest.hostname and digest.facts["process_id"]
    }
    found = matched(logs, known)
    seen = what_logs_show(found)
    rows = _rows(found)
    stuck = [_stuck(found, one) for one in seen.behind]
    ranks = sorted(gpu.rank for gpu in found.gpus if gpu.rank >= 0)
    world = _world(found)
    enough = any(len(one.number) >= LEAST_MATCHED for one in found.collectives) or found.messages
    verdict = "collectives_even" if enough else "insufficient_data"
    if seen.shown:
        verdict = "straggler"
    if stuck:
        verdict = "hang"
    warnings = list(found.warnings)
    if known and not set(known) & {(gpu.hostname, gpu.process) for gpu in found.gpus}:
        warnings.append(
            "no log is of a process that a digest is of, by machine and process id: the ranks of "
            "the logs are as NCCL numbers them"
        )
    return LogAnswer(
        CollectiveLogs(
            logs=len(logs),
            processes=len({(gpu.hostname, gpu.process) for gpu in found.gpus}),
            communicators=len(found.groups),
            operations=found.operations,
            findings=[_finding(found, shown) for shown in seen.shown],
            rows=rows,
            cannot_tell=_cannot_tell(found, seen),
        ),
        stuck,
        warnings,
        ranks,
        len(found.gpus),
        world,
        sorted(set(range(world or 0)) - set(ranks)),
        len({gpu.hostname for gpu in found.gpus}),
        verdict,
    )


def bus_factor(name: str, size: int) -> float:
    """What a link carries, in message sizes as NCCL counts them: the definition of nccl-tests.

    NaN for collectives that have none. The size of an all-gather or reduce-scatter is one rank's.
    """
    if name == "AllReduce":
        return 2 * (size - 1) / size
    if name in {"AllGather", "AllGatherV", "ReduceScatter"}:
        return float(size - 1)
    return 1.0 if name in {"Broadcast", "Reduce", "Send", "Recv"} else math.nan


def _rows(logs: Logs) -> list[LoggedRow]:
    found = []
    for one in logs.collectives:
        group = logs.groups[one.group]
        last, waiting = last_of(one)
        pairs, which = distinct(one)
        for at, (name, size) in enumerate(pairs):
            own = which == at
            joint = logs.names[name] in JOINT
            # of a broadcast the kernels of the ranks are all there is to say
            transfer = (one.transfer_ns if joint else one.usual_ns)[own]
            bus = bus_factor(logs.names[name], group.size) * size / np.maximum(transfer, 1)
            first, share = _most_often(logs, one, last[own & (waiting > 0) & joint])
            low, middle, high = (_rounded(bus, p) for p in (5, 50, 95))
            weight = float(one.usual_ns[own].sum())
            found.append(
                (
                    weight,
                    LoggedRow(
                        communicator=group.id,
                        name=group.name,
                        ranks=len(group.gpus),
                        size=group.size,
                        nodes=group.nodes,
                        operation=logs.names[name],
                        bytes=size,
                        matched=int(own.sum()),
                        transfer_ns=round(float(np.median(transfer))),
                        waiting_ns=round(float(one.waiting_ns[own].mean())) if joint else 0,
                        bus_gbs=middle,
                        bus_low_gbs=low,
                        bus_high_gbs=high,
                        last=first,
                        last_share=share,
                    ),
                )
            )
    found.sort(key=lambda pair: (-pair[0], pair[1].name, pair[1].operation, pair[1].bytes))
    return [row for _, row in found[:_MOST_ROWS]]


def _rounded(values: AnyArray, percent: int) -> float | None:
    value = float(np.percentile(values, percent))
    return None if math.isnan(value) else round(value, 3)


def _most_often(logs: Logs, one: Collectives, last: AnyArray) -> tuple[str, float]:
    clear = last[last >= 0]
    if not len(clear):
        return "", 0.0
    hits = np.bincount(clear)
    column = int(np.argmax(hits))
    gpu = logs.gpus[logs.groups[one.group].gpus[column]]
    text = str(gpu.rank) if gpu.rank >= 0 else f"{gpu.hostname}, process {gpu.process}"
    return text, round(float(hits[column]) / len(last), 3)


def _finding(logs: Logs, shown: Shown) -> LogFinding:
    gpus = [logs.gpus[gpu] for gpu in shown.gpus]
    return LogFinding(
        kind=shown.kind,
        ranks=[gpu.rank for gpu in gpus if gpu.rank >= 0],
        members=[gpu.text for gpu in gpus],
        node=shown.node,
        communicators=[logs.groups[number].name for number in shown.groups],
        operation=shown.name,
        looked_at=shown.looked_at,
        showing=shown.showing,
        excess_ns=round(shown.excess_ns),
        share=round(shown.share, 4),
        score=None if math.isnan(shown.score) else round(shown.score, 2),
        threshold=(
            None
            if math.isnan(shown.score) or not math.isfinite(shown.bound)
            else round(shown.bound, 2)
        ),
        message=_message(logs, shown, gpus),
        recommendations=_ADVICE[shown.kind],
    )


def _message(logs: Logs, shown: Shown, gpus: Sequence[Gpu]) -> str:
    if shown.kind == "slow_communicator":
        return _slow_message(logs, shown, gpus)
    first = logs.groups[shown.groups[0]]
    where = f"communicator {first.name}"
    if len(shown.groups) > 1:
        where += f" (and {len(shown.groups) - 1} more)"
    often = f"{shown.showing:,} of {shown.looked_at:,} {shown.name or 'collective'}s of {where}"
    longer = figure(round(shown.excess_ns), "ns")
    waits = f"wait {longer} in each, {percent(shown.share)} of the time of all"
    who = _people(gpus)
    if shown.kind == "late_rank":
        text = f"{who} comes last to {often}: the others {waits}"
        if shown.waits_for >= 0:
            other = _people([logs.gpus[shown.waits_for]])
            text += f"; it waits itself for {other} in another communicator, so begin there"
    elif shown.kind == "late_node":
        text = f"all {len(gpus)} ranks on {shown.node} come after the others to {often}: these "
        text += waits
    elif shown.kind == "slow_pair":
        text = (
            f"messages of {_bytes(shown.bytes)} from {gpus[0].text} to {gpus[1].text} take "
            f"{shown.ratio:.2f} times as long as those between other ranks, {longer} more each"
        )
    else:
        text = f"the kernels of {who} end after those of the other ranks of its machine in {often},"
        text += f" by {longer}"
    return text


def _slow_message(logs: Logs, shown: Shown, gpus: Sequence[Gpu]) -> str:
    first = logs.groups[shown.groups[0]]
    more = f" (and {len(shown.groups) - 1} more)" if len(shown.groups) > 1 else ""
    text = (
        f"{shown.name}s of {_bytes(shown.bytes)} in communicator {first.name}{more} take "
        f"{shown.ratio:.2f} times as long as in the communicators alike, "
        f"{figure(round(shown.excess_ns), 'ns')} more each"
    )
    if len(gpus) == 1:
        return f"{text}; all communicators of {_people(gpus)} are slow, and those of no other rank"
    if shown.node:
        return f"{text}; all its ranks stand on {shown.node}"
    if shown.several:
        return f"{text}; a slow link slows all ranks of it alike, so that whose it is stays open"
    return f"{text}; what they share is {_people(gpus)}"


def _people(gpus: Sequence[Gpu]) -> str:
    if len(gpus) == 1:
        return gpus[0].text
    known = [gpu.rank for gpu in gpus]
    if all(rank >= 0 for rank in known):
        return "ranks " + short_group(",".join(map(str, sorted(known)))).replace(",", ", ")
    more = f" and {len(gpus) - _MOST_NAMED} more" if len(gpus) > _MOST_NAMED else ""
    return ", ".join(gpu.text for gpu in gpus[:_MOST_NAMED]) + more


def _bytes(size: int) -> str:
    return figure(size, "bytes")


def _stuck(logs: Logs, one: Behind) -> Stuck:
    group = logs.groups[one.group]
    inside = dict(zip(group.gpus, group.inside, strict=True))

    def numbers(gpus: Sequence[int]) -> list[int]:
        found = [logs.gpus[gpu].rank for gpu in gpus]
        return sorted(found if min(found) >= 0 else [inside[gpu] for gpu in gpus])

    who = _people([logs.gpus[gpu] for gpu in one.gpus])
    # where all must take part, those whose lines are missing did so as far as the others came: what
    # these wait in is the next one
    waits = one.last + 1 if one.name in JOINT else one.number
    logs_of = f"the {'logs' if len(one.gpus) > 1 else 'log'} of {who}"
    if one.number > 0:
        logs_of += (
            f" {'end' if len(one.gpus) > 1 else 'ends'} at {one.name} number {one.number - 1}"
        )
    else:
        logs_of += f" {'hold' if len(one.gpus) > 1 else 'holds'} no {one.name}"
    text = (
        f"{logs_of} of communicator {group.name}, those of {len(one.others)} other ranks at number "
        f"{one.last}: its process ended, or hangs with its last lines not written, and the others "
        f"wait for it in number {waits}"
    )
    if group.missing:
        text += f"; ranks {short_group(','.join(map(str, group.missing)))} of it left no log"
    return Stuck(
        group=group.name,
        sequence=waits,
        name=one.name,
        arrived=numbers(one.others),
        never_arrived=numbers(one.gpus),
        not_recorded=group.missing,
        since_ns=one.since_ns,
        where="",
        message=text,
    )


def _world(logs: Logs) -> int | None:
    """Ranks of the job: of the communicator that holds all GPUs and numbers them as the job."""
    for group in sorted(logs.groups, key=lambda g: -g.size):
        if len(set(group.gpus)) == len(logs.gpus) and group.inside == [
            logs.gpus[gpu].rank for gpu in group.gpus
        ]:
            return group.size
    return None


def _cannot_tell(logs: Logs, seen: Seen) -> list[str]:
    """What the logs leave open, and what would tell."""
    found = []
    alone = [g for g in logs.groups if g.size > 1 and len(g.gpus) == 1]
    if len(logs.gpus) == 1 and alone:
        return [
            "there is the log of one rank only: its times hold transfer and waiting together, and "
            "nothing tells them apart; give the logs of all ranks, the whole folder of "
            "NCCL_INSPECTOR_DUMP_DIR"
        ]
    missing = [g for g in logs.groups if g.missing]
    if missing:
        worst = max(missing, key=lambda g: len(g.missing))
        lacking = short_group(",".join(map(str, worst.missing)))
        found.append(
            f"the logs of {_some(len(missing), 'communicator')} are not all there (communicator "
            f"{worst.name} lacks those of its ranks {lacking}), so that what looks like "
            "transfer there may be waiting for them; give the logs of all ranks"
        )
    others = sorted(set(logs.names) - JOINT - {"Send", "Recv"})
    if others:
        found.append(
            f"a rank may end {', '.join(others)} before the others have come, so that its time "
            "there does not tell who comes last; the other collectives do"
        )
    if seen.too_few:
        found.append(
            f"{_some(seen.too_few, 'communicator')} {'has' if seen.too_few == 1 else 'have'} fewer "
            f"than {LEAST_MATCHED} collectives "
            "that several logs hold, too few to compare their ranks; let the job run longer, or "
            "raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE or set "
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS, so that fewer lines are lost"
        )
    if seen.uneven:
        found.append(
            f"the logs of {_some(seen.uneven, 'communicator')} end at different numbers on most "
            "ranks, as those of a job do that still runs, so that nothing tells whether one "
            "stopped; copy them again after the job has ended, or give dumps of the flight recorder"
        )
    if logs.by_host:
        found.append(
            "some operations were timed on the call instead of the kernel and do not count; set "
            "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=1"
        )
    if logs.unpaired:
        found.append(
            f"the messages of {_some(logs.unpaired, 'pair')} of ranks do not match one to one, so "
            "that transfer and waiting cannot be told apart there; give the logs of both ranks, "
            "and raise NCCL_INSPECTOR_DUMP_P2P_RING_SIZE"
        )
    whole = {(g.size, g.nodes > 1) for g in logs.groups if g.size > 1}
    if len([g for g in logs.groups if g.size > 1]) == len(whole) and not logs.messages:
        found.append(
            "no communicator has another one like it, so that nothing tells whether its link is "
            "slow: a slow link slows all its ranks alike; compare with nccl-tests on the same ranks"
        )
    if logs.collectives and not any((~np.isnan(one.end_ns)).any() for one in logs.collectives):
        found.append(
            "the logs have no timestamps of kernels, so that a rank whose kernel ends late looks "
            "like one that comes early; NCCL_INSPECTOR_DUMP_VERBOSE=1 writes them"
        )
    if not seen.behind and logs.collectives:
        found.append(
            "only completed operations are logged: which rank never arrived at a collective that "
            "all others wait in, a dump of PyTorch's flight recorder tells "
            "(TORCH_NCCL_DUMP_ON_TIMEOUT=1)"
        )
    return found


def _some(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
