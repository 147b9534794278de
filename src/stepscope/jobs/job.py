"""The diagnosis of a job from the digests of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stepscope.collectives.match import Matched
from stepscope.jobs import job_causes as causes_of
from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_make import short_group
from stepscope.jobs.digest_match import match_digests
from stepscope.jobs.digest_parts import Times, times_of
from stepscope.jobs.job_causes import DigestJob, Seen
from stepscope.jobs.job_late import NOTABLE, WORTH, Late, Needs, comparable, late_ranks, needs_of
from stepscope.jobs.job_links import Links, links, shared_by, slowed_too
from stepscope.jobs.job_outliers import step_without
from stepscope.jobs.job_result import (
    SCHEMA,
    CollectiveLogs,
    Communicator,
    Fetch,
    HeatMap,
    JobDiagnosis,
    JobSummary,
    RankRow,
    Role,
    Skipped,
    StepTime,
    Stuck,
)
from stepscope.jobs.job_roles import kernel_rates, roles
from stepscope.jobs.job_sometimes import late_steps
from stepscope.jobs.job_words import finding, ranks_text, why_fetched
from stepscope.jobs.topology import Place, places
from stepscope.trace.errors import InputError
from stepscope.trace.frame import AnyArray, IntArray

HEALTHY: Final = "gpu_bound_healthy"
_FETCHED: Final = 5
_EMPTY: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class JobAnalysis:
    """What is known of a job.

    Attributes:
        digests: by rank.
        matched: their collectives; None where there are none.
        times: where their time goes.
        role: number of the peers of each.
        rates: how long their kernels take against those of their peers.
        places: nodes, switches, rails.
        needs: what they need on their own account.
        links: what the communicators transfer; None where there are none.
        late: late ranks.
        found: the causes.
    """

    digests: Sequence[Digest]
    matched: Matched | None
    times: Times
    role: IntArray
    rates: AnyArray
    places: list[Place]
    needs: Needs
    links: Links | None
    late: list[Late]
    found: list[Seen]

    @property
    def step_ns(self) -> float:
        """Mean step of the job, ns."""
        return float(self.times.parts.wall.max(axis=1).mean())


def diagnose_job(
    digests: Sequence[Digest],
    *,
    topology: Mapping[str, Any] | None = None,
    skipped: Sequence[Skipped] = (),
    warnings: Sequence[str] = (),
    stuck: Sequence[Stuck] = (),
    logs: CollectiveLogs | None = None,
) -> JobDiagnosis:
    """Name the causes of a job's step time.

    Args:
        digests: of its ranks, each rank once.
        topology: what a topology file holds.
        skipped: inputs that were left out.
        warnings: what was assumed on the way.
        stuck: collectives that did not complete.
        logs: what logs of NCCL Inspector tell.

    Raises:
        InputError: there is no digest, or none with steps.
    """
    return diagnosis_of(
        analysed(digests, topology), skipped=skipped, warnings=warnings, stuck=stuck, logs=logs
    )


def diagnosis_of(
    job: JobAnalysis,
    *,
    skipped: Sequence[Skipped] = (),
    warnings: Sequence[str] = (),
    stuck: Sequence[Stuck] = (),
    logs: CollectiveLogs | None = None,
) -> JobDiagnosis:
    """Put into words what is known of a job; arguments as for :func:`diagnose_job`."""
    digests, parts = job.digests, job.times.parts
    step = parts.wall.max(axis=1)
    late = {device for seen in job.found if seen.reason for device in seen.devices}
    everyone = sorted({device for one in job.late for device in one.devices})
    repaired = step_without(job.needs.whole, job.role, np.array(everyone, np.int64))
    gained = float((step_without(job.needs.whole, job.role, _EMPTY) - repaired).mean())
    # late ranks of a job of few stand in the findings only
    gained = max([gained, *(seen.gain_ns for seen in job.found if seen.reason)])
    findings = [
        finding(seen, digests, job.times, job.role, job.matched, job.needs.device)
        for seen in job.found
    ]
    missing = job.matched.missing_ranks if job.matched is not None else []
    worlds = [d.facts["world_size"] for d in digests if d.facts["world_size"]]
    return JobDiagnosis(
        schema=SCHEMA,
        job=JobSummary(
            digests=len(digests),
            ranks=len({d.rank for d in digests}),
            world_size=max(worlds, default=None),
            missing_ranks=list(missing) or _missing(digests, max(worlds, default=0)),
            nodes=len({d.hostname for d in digests}),
            steps=len(parts),
            step_kind=digests[0].facts["step_kind"] or "step",
            skipped=list(skipped),
        ),
        step_ns=StepTime(
            median=round(float(np.median(step))),
            mean=round(job.step_ns),
            p95=round(float(np.percentile(step, 95))),
        ),
        verdict=findings[0].cause if findings else HEALTHY,
        findings=findings,
        all_repaired_step_ns=round(job.step_ns - gained),
        roles=_roles(job),
        communicators=_communicators(job),
        ranks=_ranks(job, late),
        outliers=[
            digests[d].rank
            for d in np.flatnonzero(job.needs.scored.beyond(job.needs.comparisons)).tolist()
        ],
        heat_map=_heat_map(job),
        fetch=_fetch(job),
        stuck=list(stuck),
        warnings=[*warnings, *_warnings(job)],
        collective_logs=logs,
    )


def analysed(digests: Sequence[Digest], topology: Mapping[str, Any] | None = None) -> JobAnalysis:
    """Look at the digests of a job together: times, needs, late ranks, causes.

    Args:
        digests: of its ranks, each rank once.
        topology: what a topology file holds.

    Raises:
        InputError: there is no digest, or none with steps.
    """
    digests = sorted(digests, key=lambda d: (d.rank, d.facts["device"] or 0))
    if not digests:
        raise InputError("no digest is left to look at; make some with stepscope digest CAPTURE")
    matched = match_digests(digests)
    times = times_of(digests, matched)
    if not len(times.parts):
        raise InputError("the digests share no step, so that there is nothing to compare")
    role = roles(digests)
    where = places(digests, topology)
    found_links = links(matched, *_on_the_clock(times, matched)) if matched else None
    if not comparable(role):  # too few for statistics are all compared with each other
        role = np.zeros(len(digests), np.int64)
    needs = needs_of(times, role, where, len(matched.channels) if matched else 0)
    job = DigestJob(digests, matched, times) if matched is not None else None
    late: list[Late] = []
    found: list[Seen] = []
    if comparable(role):
        late = late_ranks(digests, times, role, needs, where)
        found = causes_of.many_ranks(late, times, job)
    elif len(digests) > 1 and job is not None:
        found = causes_of.few_ranks(job, needs.whole)
    if matched is not None and found_links is not None:
        found += _slow_links(matched, found_links, times, needs)
    found += causes_of.exposed(times, len(digests) == 1 or matched is None)
    found += causes_of.hidden(digests, matched, times)
    found += causes_of.shared(digests, times, needs.whole)
    step = float(times.parts.wall.max(axis=1).mean())
    peers = len(digests) if comparable(role) else 0
    ranked = causes_of.ranked(found, step, peers)
    ranked = ranked or causes_of.uncovered(digests, matched, times)
    rates = kernel_rates(digests, role)
    return JobAnalysis(
        digests, matched, times, role, rates, where, needs, found_links, late, ranked
    )


def _on_the_clock(times: Times, matched: Matched) -> tuple[IntArray, IntArray]:
    """Begin and end of each shared step on the job's clock: those of the first rank."""
    line = matched.ranks[0].clock
    begin = times.parts.begin_ns
    return line.to(begin), line.to(begin + times.parts.wall[:, 0])


def _slow_links(matched: Matched, found: Links, times: Times, needs: Needs) -> list[Seen]:
    """Communicators that transfer slowly, as one cause."""
    slow = found.slow(needs.comparisons)
    if not len(slow):
        return []
    devices = shared_by(matched, slow, found)
    slow = np.concatenate((slow, slowed_too(matched, devices, found)))
    members = sorted({d for k in slow.tolist() for d, _ in matched.channels[k].members})
    usual = found.transfer_ns[slow] / found.ratio[slow]
    # a rank that belongs to several slow ones waits for the transfers of each
    more_of = np.zeros(times.parts.wall.shape[1])
    for k, more_ns in zip(slow.tolist(), (found.transfer_ns[slow] - usual).tolist(), strict=True):
        more_of[sorted({d for d, _ in matched.channels[k].members})] += more_ns
    more = float(more_of.max())
    uncovered = float(times.parts.transfer[:, members].mean(axis=0).max())
    others = np.delete(np.arange(times.parts.wall.shape[1]), members)
    covered = float(np.median(times.parts.transfer[:, others].mean(axis=0))) if len(others) else 0.0
    gain = max(0.0, min(more, uncovered - covered if len(others) else uncovered))
    step = float(times.parts.wall.max(axis=1).mean())
    if gain < WORTH * step and more < NOTABLE * step:
        return []
    seen = Seen(
        cause="straggler",
        devices=devices or members,
        time_ns=gain,
        gain_ns=gain,
        bounds_ns=(0.0, more),
        sure_ns=gain,
        reason="slow_link",
        communicators=slow.tolist(),
    )
    worst = int(slow[int(np.nanargmax(found.scored.score[slow]))])
    seen.texts = {
        "ratio": f"{found.ratio[worst]:.2f}",
        "score": f"{found.scored.score[worst]:.1f}",
        "bound": f"{found.scored.bounds(needs.comparisons)[worst]:.1f}",
        "transfer": str(round(float(found.transfer_ns[worst]))),
    }
    return [seen]


def _missing(digests: Sequence[Digest], world: int) -> list[int]:
    return sorted(set(range(world)) - {d.rank for d in digests})


def _roles(job: JobAnalysis) -> list[Role]:
    need = job.needs.device.mean(axis=0)
    found = []
    for number in range(int(job.role.max()) + 1):
        own = np.flatnonzero(job.role == number)
        found.append(
            Role(
                role=number,
                ranks=len(own),
                example=job.digests[own[0]].rank,
                device_name=job.digests[own[0]].facts["device_name"] or "",
                kernels=round(float(np.median(job.times.work.kernels[:, own]))),
                need_ns=round(float(np.median(need[own]))),
                p95_ns=round(float(np.percentile(need[own], 95))),
                most_ns=round(float(need[own].max())),
            )
        )
    return found


def channel_name(job_ranks: Sequence[int]) -> str:
    """The ranks of a communicator as text."""
    return short_group(",".join(map(str, job_ranks)))


def _communicators(job: JobAnalysis) -> list[Communicator]:
    if job.matched is None or job.links is None:
        return []
    uses = {
        guess.channel: guess.id for guess in DigestJob(job.digests, job.matched, job.times).groups
    }
    found = []
    for number, channel in enumerate(job.matched.channels):
        if not job.links.operations[number]:
            continue
        last = int(job.links.last[number])
        score = float(job.links.scored.score[number])
        found.append(
            Communicator(
                name=channel_name(channel.ranks),
                members=len(channel.members),
                size=channel.size,
                use=uses[number],
                operations=round(float(job.links.operations[number]), 2),
                transfer_ns=round(float(job.links.transfer_ns[number])),
                skew_ns=round(float(job.links.skew_ns[number])),
                last_rank=job.digests[last].rank if last >= 0 else -1,
                last_share=round(float(job.links.last_share[number]), 3),
                score=round(score, 2) if np.isfinite(score) else None,
            )
        )
    return sorted(found, key=lambda c: (-c.transfer_ns, c.name))


def _ranks(job: JobAnalysis, late: set[int]) -> list[RankRow]:
    parts = job.times.parts
    idle = sum(parts.idle.values(), np.zeros_like(parts.wall))
    joined = _joined_last(job)
    found = []
    for device, digest in enumerate(job.digests):
        score = float(job.needs.scored.score[device])

        def mean(values: AnyArray, at: int = device) -> int:
            return round(float(values[:, at].mean()))

        found.append(
            RankRow(
                rank=digest.rank,
                hostname=digest.hostname,
                device=digest.facts["device"] or 0,
                role=int(job.role[device]),
                need_ns=mean(job.needs.device),
                compute_ns=mean(parts.compute),
                waiting_ns=mean(parts.waiting),
                transfer_ns=mean(parts.transfer),
                idle_ns=mean(idle),
                host_need_ns=round(job.times.paces[device].need_ns),
                kernel_rate=round(float(job.rates[device]), 4),
                joined_last=round(float(joined[device]), 3),
                sm_clock_mhz=digest.facts["sm_clock_mhz"],
                score=round(score, 2) if np.isfinite(score) else None,
                late=device in late,
                capture=digest.facts["capture"] or "",
            )
        )
    return found


def _joined_last(job: JobAnalysis) -> AnyArray:
    if job.matched is None or not len(job.matched.instances):
        return np.zeros(len(job.digests))
    several = job.matched.instances.members > 1
    times = np.bincount(job.matched.instances.last[several], minlength=len(job.digests))
    own = np.array([int(several[rank.instance].sum()) for rank in job.matched.ranks])
    share: AnyArray = times / np.maximum(own, 1)
    return share


def _heat_map(job: JobAnalysis) -> HeatMap:
    return HeatMap(
        ranks=[digest.rank for digest in job.digests],
        steps=job.times.numbers[:, 0].tolist(),
        late_ns=np.rint(beyond_peers(job.needs.device, job.role).T).astype(np.int64).tolist(),
    )


def beyond_peers(values: AnyArray, role: IntArray) -> AnyArray:
    """How far values, steps x ranks, lie beyond the median of the peers in the same step."""
    found = np.zeros_like(values)
    for number in range(int(role.max()) + 1):
        own = role == number
        found[:, own] = values[:, own] - np.median(values[:, own], axis=1, keepdims=True)
    return found


def _fetch(job: JobAnalysis) -> list[Fetch]:
    """Five captures: the worst ranks of each finding in turn, one of their peers, then outliers.

    Of one rank it is that rank's.
    """
    excess = job.needs.scored.excess
    wanted: list[tuple[int, str]] = []
    groups = [
        (sorted(seen.devices, key=lambda d: -float(excess[d])), seen)
        for seen in job.found
        if seen.devices
        and (seen.reason or len(seen.devices) < len(job.digests) or len(job.digests) == 1)
    ]
    for place in range(_FETCHED):
        for devices, seen in groups:
            if place < len(devices):
                wanted.append((devices[place], why_fetched(seen)))
    if len(job.digests) > 1:
        typical = int(np.argmin(np.abs(excess) + np.where(job.role == _first_role(job), 0, np.inf)))
        wanted.insert(min(len(wanted), _FETCHED - 1), (typical, "a typical peer to compare with"))
    most = [d for d in np.argsort(-excess, kind="stable")[:_FETCHED].tolist() if excess[d] > 0]
    wanted += [(device, "it needs most beyond its peers") for device in most]
    found: list[Fetch] = []
    for device, why in wanted:
        digest = job.digests[device]
        if any(one.rank == digest.rank for one in found) or len(found) == _FETCHED:
            continue
        worst = int(np.argmax(job.needs.device[:, device]))
        found.append(
            Fetch(
                rank=digest.rank,
                capture=digest.facts["capture"] or "",
                hostname=digest.hostname,
                why=why,
                step=int(job.times.numbers[worst, device]),
            )
        )
    return found


def _first_role(job: JobAnalysis) -> int:
    late = next((seen.devices for seen in job.found if seen.devices), None)
    return int(job.role[late[0]]) if late else 0


def _now_and_then(job: JobAnalysis) -> list[str]:
    """Ranks that are late by much in a few steps, which may be chance."""
    known = [device for late in job.late for device in late.devices]
    late = late_steps(job.needs.device, job.role, known, NOTABLE * job.step_ns)
    rows = sorted(late.items(), key=lambda row: (-len(row[1]), row[0]))[:_FETCHED]
    if not rows:
        return []
    named = "; ".join(
        f"rank {job.digests[device].rank} (step "
        + ", ".join(str(number) for number in job.times.numbers[list(steps[:8]), device].tolist())
        + ")"
        for device, steps in rows
    )
    return [
        f"in {sum(map(len, late.values()))} of {len(job.times.parts)} shared steps a single rank "
        f"is late by much, too seldom to tell it from chance: {named}; record more steps"
    ]


def _warnings(job: JobAnalysis) -> list[str]:
    found = [*job.times.warnings]
    if job.matched is not None:
        found += job.matched.warnings
    if job.times.by_step:
        found.append(
            "most communication of a rank could not be matched with that of the others, so that "
            "ranks are compared step by step"
        )
    lacking = [
        digest.rank
        for digest in job.digests
        if causes_of.INSUFFICIENT in digest.texts("findings", "cause")
    ]
    if lacking and not any(seen.cause == causes_of.INSUFFICIENT for seen in job.found):
        found.append(
            f"the captures of {ranks_text(lacking)} lack what an answer needs by themselves; the "
            "others tell of the job"
        )
    found += _now_and_then(job)
    products = {digest.facts["device_name"] or "" for digest in job.digests} - {""}
    if len(products) > 1:
        found.append(
            f"the job runs on {', '.join(sorted(products))}: ranks are compared with those of the "
            "same product only, and the slower product sets the pace of all"
        )
    alone = int((np.bincount(job.role)[job.role] < 2).sum())
    if alone and len(job.digests) > alone:
        found.append(
            f"{alone} ranks do work that no other rank does, and have nothing to be compared with"
        )
    return found
