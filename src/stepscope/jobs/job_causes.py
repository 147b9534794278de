"""The causes of a job: late ranks, slow links, pipelines, and what its ranks show by themselves.

The rules are those of the diagnosis of full captures (``diagnosis.causes``), on what digests hold.
Gains are of the job: what all ranks wait for is the one that needs most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.exposure import Parts, Work
from stepscope.collectives.job import stages_of
from stepscope.collectives.late import Lateness, beyond_mean_ns, lateness
from stepscope.collectives.match import Matched
from stepscope.collectives.parallel import Guess
from stepscope.collectives.stages import slow_stage
from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_make import short_group
from stepscope.jobs.digest_parts import Times
from stepscope.jobs.job_late import NOTABLE, WORTH, Late
from stepscope.jobs.job_outliers import step_without
from stepscope.jobs.job_result import Reason
from stepscope.trace.frame import AnyArray
from stepscope.trace.units import percent

_LEAST: Final = {"straggler": 0.05, "load_imbalance": 0.05, "pipeline_bubble": 0.05,
                 "exposed_communication": 0.03}  # fmt: skip
"""Shares of the step from which on the causes count: those of ``diagnosis.causes``."""

_FOLD_BELOW_SHARE, _FOLD_BELOW_FIRST = 0.08, 0.2
_PART_OF_IT: Final = 0.1
_LITTLE: Final = 0.5
_MORE: Final = 1.25
_NAMED_THEMSELVES: Final = frozenset({"checkpoint_stall"})
_BY_KIND: Final = {"exchange": "context_parallel", "all_to_all": "expert_parallel"}
"""What only all ranks together tell of sends and receives; each digest took them for messages."""

INSUFFICIENT: Final = "insufficient_data"

_TOO_MUCH: Final = 0.25
"""Of the step: more exposed communication than this may hide the cause, as in a full capture."""

_UNCOVERED: Final = 0.1
"""Exposed communication from which on a job without a cause of it is not called healthy."""


@dataclass
class Seen:
    """One cause, before it is put into words.

    Attributes:
        cause: public id.
        devices: positions of the ranks that show it.
        time_ns: what it takes, ns a step.
        gain_ns: what its repair gains, ns a step.
        bounds_ns: lower and upper bound of the gain.
        sure_ns: gain that the capturing tool did not make, ns a step.
        reason: why the ranks are late.
        root_cause: cause of the idle time behind it.
        late: the late ranks, with statistics behind them.
        lateness: the late ranks of a job of few.
        communicators: slow communicators, by number.
        of_program: false where it lies in the measurement.
        by_itself: whether each of the ranks shows it without the others.
        texts: where, message and advice of the rank that shows it most.
    """

    cause: str
    devices: list[int]
    time_ns: float
    gain_ns: float
    bounds_ns: tuple[float, float]
    sure_ns: float
    reason: Reason = ""
    root_cause: str | None = None
    late: Late | None = None
    lateness: Lateness | None = None
    communicators: list[int] = field(default_factory=list)
    of_program: bool = True
    by_itself: bool = False
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def counts_ns(self) -> float:
        """What counts of it, ns a step: its gain where that is far from the time."""
        far = self.gain_ns < _LITTLE * self.time_ns or self.gain_ns > _MORE * self.time_ns
        return self.gain_ns if far and self.cause != INSUFFICIENT else self.time_ns


@dataclass(frozen=True)
class DigestJob:
    """A job of digests, as the stages of a pipeline are found from."""

    digests: Sequence[Digest]
    matched: Matched
    times: Times

    @property
    def parts(self) -> Parts:
        """Where the time of each device goes."""
        return self.times.parts

    @property
    def work(self) -> Work:
        """What each device was given to do."""
        return self.times.work

    @cached_property
    def groups(self) -> list[Guess]:
        """What the communicators are likely for: what most of their members take them for."""
        found = []
        for number, channel in enumerate(self.matched.channels):
            if channel.point_to_point:
                found.append(Guess(number, "pipeline_parallel", ""))
                continue
            often = self._per_step[number]
            by_kind = next(
                (use for kind, use in _BY_KIND.items() if often[kinds.CODE[kind]] >= 1), ""
            )
            if by_kind:
                found.append(Guess(number, by_kind, ""))
                continue
            device, rows = channel.members[0]
            uses = self.digests[device].texts("calls", "use")
            named = [uses[row] for row in rows.tolist()] or ["unknown"]
            found.append(Guess(number, max(set(named), key=named.count), ""))
        return found

    @cached_property
    def _per_step(self) -> AnyArray:
        """Operations a step of each communicator by kind."""
        instances = self.matched.instances
        count = np.zeros((len(self.matched.channels), len(kinds.KINDS)))
        np.add.at(count, (instances.channel, instances.kind), 1)
        per_step: AnyArray = count / max(len(self.parts), 1)
        return per_step

    def kernel_means(self, device: int) -> dict[str, float]:
        """Mean duration of each kernel that the digest holds, ns, by name."""
        digest = self.digests[device]
        time: dict[str, list[int]] = {}
        rows = (
            digest.texts("kernels", "name"),
            digest.ints("kernels", "total_ns").tolist(),
            digest.ints("kernels", "count").tolist(),
        )
        for name, total, count in zip(*rows, strict=True):
            sums = time.setdefault(name, [0, 0])
            sums[0] += total
            sums[1] += count
        return {name: total / max(count, 1) for name, (total, count) in time.items()}

    @property
    def mostly_bubbles(self) -> bool:
        """Whether most of the waiting is in sends and receives."""
        return float(self.parts.bubble.sum()) > 0.5 * float(self.parts.waiting.sum())


def few_ranks(job: DigestJob, need: AnyArray) -> list[Seen]:
    """Late ranks, uneven stages and bubbles of a job with too few ranks alike for statistics.

    Args:
        job: the job.
        need: what each rank needs for each step, with what its host needs at least, ns.
    """
    parts, step = job.parts, _step(job.times)
    found: list[Seen] = []
    slow = slow_stage(job)
    if job.mostly_bubbles:
        found += _pipeline(job)
        if slow is not None and not slow.by_rate:
            found.append(_plain("load_imbalance", slow.devices, slow.surplus_ns))
    late = lateness(parts, job.work, job.times.paces)
    if late is None or late.common:
        return _counting(found, step)
    if late.mechanism == "work":
        if not job.mostly_bubbles:
            found.append(_imbalance(job, late))
        return _counting(found, step)
    if late.mechanism == "idle" and late.idle_cause in _NAMED_THEMSELVES:
        return _counting(found, step)
    by_itself = not job.mostly_bubbles or (
        slow is not None and slow.by_rate and set(late.devices) <= set(slow.devices)
    )
    if late.mechanism != "idle" and not by_itself:
        return _counting(found, step)
    overhead = 0.0 if late.mechanism == "rate" else _more_recording(job.times, late)
    if overhead and late.imposed_ns - overhead < _LEAST["straggler"] * step:
        return _counting(found, step)
    seen = _plain("straggler", late.devices, late.imposed_ns)
    error = _two_errors(need, late.devices)
    low = min(late.sure_ns - overhead, late.others_wait_ns) - error
    seen.bounds_ns = (max(low, 0.0), late.imposed_ns + error)
    seen.lateness, seen.root_cause = late, late.idle_cause
    seen.reason = _reason(late.mechanism, late.idle_cause)
    if late.mechanism == "rate" and not late.in_turn:  # the device is repaired, whatever hosts took
        nobody = np.zeros(need.shape[1], np.int64)
        after = step_without(need, nobody, np.array(late.devices))
        gain = float((need.max(axis=1) - after).mean())
        if gain > _MORE * seen.time_ns:  # its repair also frees what its lateness kept waiting
            seen.time_ns = seen.gain_ns = seen.sure_ns = gain
    found.append(seen)
    return _counting(found, step)


def _two_errors(need: AnyArray, devices: list[int]) -> float:
    """Two standard errors of how much longer some ranks need than the others, from step to step."""
    others = np.delete(need, devices, axis=1)
    if len(need) < 2 or not others.shape[1]:
        return 0.0
    apart = need[:, devices].max(axis=1) - np.median(others, axis=1)
    return float(2 * apart.std(ddof=1) / np.sqrt(len(apart)))


def _reason(mechanism: str, idle_cause: str | None) -> Reason:
    if mechanism == "idle":
        return "late_input" if idle_cause == "input_starvation" else "slow_host"
    names: dict[str, Reason] = {"rate": "slow_gpu", "work": "extra_work", "copy": "slow_copies"}
    return names.get(mechanism, "mixed")


def _imbalance(job: DigestJob, late: Lateness) -> Seen:
    time = late.imposed_ns
    if "expert_parallel" in _busiest(job) or late.uneven_data:
        # tokens that one expert does not get, and samples that one rank does not, others do
        time = min(time, float(beyond_mean_ns(job.parts).mean()))
    seen = _plain("load_imbalance", late.devices, time)
    seen.lateness, seen.reason = late, "extra_work"
    return seen


def _busiest(job: DigestJob) -> set[str]:
    spent: dict[str, float] = {}
    uses = {guess.channel: guess.id for guess in job.groups}
    for rank in job.matched.ranks:
        channel = job.matched.instances.channel[rank.instance]
        sums = np.bincount(channel, weights=rank.waiting_ns + rank.transfer_ns)
        for number, time in enumerate(sums.tolist()):
            use = uses.get(number, "unknown")
            spent[use] = spent.get(use, 0.0) + time
    return {max(spent, key=lambda use: spent[use])} if spent else set()


def _pipeline(job: DigestJob) -> list[Seen]:
    bubbles = job.parts.bubble.mean(axis=0)
    devices = [d for stage in stages_of(job) for d in stage if bubbles[d] > 0]
    if not devices:
        return []
    slow = slow_stage(job)
    fill = float(bubbles.mean())
    if slow is not None:
        compute = job.parts.compute.mean(axis=0)
        fill = float(bubbles[max(slow.devices, key=lambda d: float(compute[d]))])
    seen = _plain("pipeline_bubble", devices, fill)
    seen.gain_ns, seen.bounds_ns, seen.sure_ns = fill / 2, (fill / 4, fill), fill / 2
    return [seen]


def _more_recording(times: Times, late: Lateness) -> float:
    """What the cost of recording would explain, were it twice what it is estimated at, ns."""
    cost = np.array([pace.recording_ns for pace in times.paces])
    others = np.array([d not in late.devices for d in range(len(cost))])
    return max(0.0, float(cost[~others].max() - np.median(cost[others]))) if others.any() else 0.0


def many_ranks(late: list[Late], times: Times, job: DigestJob | None) -> list[Seen]:
    """Late ranks of a job with peers enough, as causes."""
    step = _step(times)
    found = []
    for one in late:
        if one.mechanism == "idle" and one.idle_cause in _NAMED_THEMSELVES:
            continue
        cause = "load_imbalance" if one.mechanism == "work" else "straggler"
        # made like its peers a rank loses also what delays each of them now and then
        if min(one.gain_ns, one.part_ns) < WORTH * step and one.excess_ns < NOTABLE * step:
            continue
        seen = _plain(cause, one.devices, one.gain_ns)
        seen.late, seen.bounds_ns = one, one.gain_bounds_ns
        seen.reason, seen.root_cause = one.reason, one.idle_cause
        found.append(seen)
    if job is not None and job.mostly_bubbles:
        found += _counting(_pipeline(job), step)
    return found


def exposed(times: Times, alone: bool) -> list[Seen]:
    """Transfers that no compute covers although other work was ready, on every rank."""
    if alone or not len(times.parts):
        return []
    time = float(times.parts.blocking.mean(axis=0).min())
    if not time or float(times.parts.missing.mean(axis=0).max()) > time:
        return []
    compute = times.parts.compute.mean(axis=0)
    slowest = float(compute.max())
    hosts = max(pace.need_ns - pace.recording_ns for pace in times.paces)
    step = _step(times)
    gain = max(0.0, min(time, step - max(slowest, min(hosts, step))))
    seen = _plain("exposed_communication", list(range(len(times.paces))), time)
    seen.gain_ns = seen.sure_ns = gain
    seen.bounds_ns = (0.0, time)
    return _counting([seen], step)


def hidden(digests: Sequence[Digest], matched: Matched | None, times: Times) -> list[Seen]:
    """Ranks whose communication may be waiting for ranks that are not there: nobody can tell.

    As ``insufficient_data`` says it of full captures.
    """
    parts = times.parts
    if matched is None or not len(parts):
        return []
    alone = len(digests) == 1
    several = bool((matched.instances.members > 1).any())
    if not (alone or times.by_step or several):
        unknown = np.array([d.ints("steps", "communication_ns").mean() for d in digests])
        why = (
            "much of the step is exposed communication, and none of it has a counterpart in the "
            "other digests, so that these may be of different runs"
        )
        advice = "summarise captures of all ranks of one run, taken at the same time"
    elif matched.complete:
        return []
    else:
        unknown = (parts.missing + parts.unmatched).mean(axis=0)
        advice = f"give the digests of the missing ranks, too ({_ranks(matched.missing_ranks)})"
        why = (
            "the ranks that are there wait together inside collectives, most likely for a rank "
            "that is not there"
        )
        if alone:
            unknown = unknown + parts.transfer.mean(axis=0)
            why = (
                "much of the step is exposed communication, and the digest of one rank cannot tell "
                "moving data from waiting for a late rank"
            )
    step = parts.wall.mean(axis=0)
    idle = np.stack(
        [each.mean(axis=0) for each in [np.zeros(parts.wall.shape), *parts.idle.values()]]
    )
    devices = np.flatnonzero(unknown > np.maximum(_TOO_MUCH * step, idle.max(axis=0)))
    if not len(devices):
        return []
    time = float(idle.sum(axis=0)[devices].max())
    texts = {"message": why, "advice": advice}
    return [Seen(INSUFFICIENT, devices.tolist(), max(time, 1.0), 0.0, (0.0, 0.0), 0.0, texts=texts)]


def uncovered(digests: Sequence[Digest], matched: Matched | None, times: Times) -> list[Seen]:
    """What stands instead of "healthy" where exposed communication is much and nothing explains it.

    As ``diagnosis.uncovered`` says it of full captures.
    """
    sums = np.array(
        [
            [digest.ints("steps", name).sum() for name in ("communication_ns", "wall_ns")]
            for digest in digests
        ]
    )
    share = sums[:, 0] / np.maximum(sums[:, 1], 1)
    worst = int(np.argmax(share))
    if share[worst] < _UNCOVERED:
        return []
    why = "neither a late rank nor a transfer that other work waited for explains it"
    advice = "look at the communicators below: who joins last, and which transfer takes longest"
    if len(digests) == 1 or matched is None:
        why = "the digest of one rank cannot tell moving data from waiting for a late rank"
        advice = "give the digests of all ranks of the job together"
    elif not matched.complete:
        why = "ranks are missing that the others may have waited for"
        advice = f"give the digests of the missing ranks, too ({_ranks(matched.missing_ranks)})"
    elif any(pace.recording_ns for pace in times.paces):
        why = "recording slows the hosts, and not all of them alike, which may be all of it"
        advice = "record with less: without stacks, shapes and memory"
    sentence = (
        f"communication runs with no compute beside it for {percent(share[worst])} of the step of "
        f"rank {digests[worst].rank}, and no cause of it is named: {why}"
    )
    texts = {"sentence": sentence, "advice": advice}
    return [Seen(INSUFFICIENT, [worst], 0.0, 0.0, (0.0, 0.0), 0.0, texts=texts)]


def _ranks(ranks: Sequence[int]) -> str:
    return short_group(",".join(map(str, ranks[:64]))) + (", ..." if len(ranks) > 64 else "")


def shared(digests: Sequence[Digest], times: Times, need: AnyArray) -> list[Seen]:
    """What the ranks show by themselves, with what its repair gains the job.

    Args:
        digests: the ranks.
        times: their times.
        need: what each needs for each step on its own account, steps x ranks, ns.
    """
    by_cause: dict[str, dict[int, int]] = {}
    for device, digest in enumerate(digests):
        for row, cause in enumerate(digest.texts("findings", "cause")):
            by_cause.setdefault(cause, {})[device] = row
    before = need.max(axis=1)
    step = _step(times)
    found = []
    for cause, rows in by_cause.items():
        columns = {
            name: {d: float(digests[d].floats("findings", name)[r]) for d, r in rows.items()}
            for name in ("time_ns", "predicted_ns", "sure_gain_ns")
        }
        after = need.copy()
        for device in rows:
            own = float(digests[device].facts["step_ns"])
            gain = max(own - columns["predicted_ns"][device], 0.0)
            after[:, device] = np.maximum(after[:, device] - gain, 0.0)
        gain = float((before - after.max(axis=1)).mean())
        worst = max(rows, key=lambda d: columns["time_ns"][d])
        lists = digests[worst].lists["findings"]
        time = columns["time_ns"][worst]
        sure = columns["sure_gain_ns"][worst]
        own_gain = float(digests[worst].facts["step_ns"]) - columns["predicted_ns"][worst]
        of_program = bool(digests[worst].lists["findings"]["of_program"][rows[worst]])
        if not of_program or len(digests) == 1:  # who records no rank records none
            gain = max(own_gain, 0.0)
        seen = Seen(
            cause=cause,
            devices=sorted(rows),
            time_ns=time,
            gain_ns=min(gain, step),
            bounds_ns=(0.0, max(own_gain, gain)),
            sure_ns=gain * min(max(sure / own_gain, 0.0), 1.0) if own_gain > 0 else 0.0,
            of_program=of_program,
            by_itself=True,
            texts={
                "where": lists["range"][rows[worst]]
                or lists["operator"][rows[worst]]
                or lists["place"][rows[worst]],
                "message": lists["message"][rows[worst]],
                "advice": lists["advice"][rows[worst]],
            },
        )
        found.append(seen)
    return found


def ranked(found: list[Seen], step_ns: float, peers: int = 0) -> list[Seen]:
    """Root causes, the largest gain first, without symptoms and what is small beside the first.

    Args:
        found: all that was seen.
        step_ns: mean step of the job.
        peers: ranks of a job that are compared with each other; 0 where they are too few. The
            captures of less than half of them that lack something say nothing about the job.
    """
    found = [
        seen
        for seen in found
        if seen.cause != INSUFFICIENT or not seen.by_itself or 2 * len(seen.devices) >= peers
    ]
    if unknown := [seen for seen in found if seen.cause == INSUFFICIENT]:
        return unknown[:1]
    symptoms = {
        (cause, device)
        for seen in found
        if seen.cause == "straggler"
        for cause in _causes_there(seen)
        for device in seen.devices
    }
    kept = []
    for seen in found:
        if seen.late is None and seen.lateness is None and not seen.communicators:
            own = [d for d in seen.devices if (seen.cause, d) not in symptoms]
            if not own:
                continue
            seen.devices = own
        kept.append(seen)
    kept.sort(key=lambda s: (s.of_program, s.sure_ns, s.gain_ns, s.time_ns), reverse=True)
    worth = [
        seen
        for seen in kept
        if seen.gain_ns >= WORTH * step_ns or seen.late is not None or seen.communicators
    ]
    first = worth[:1]
    return first + [
        seen
        for seen in worth[1:]
        if seen.time_ns >= _FOLD_BELOW_SHARE * step_ns
        or seen.time_ns >= _FOLD_BELOW_FIRST * first[0].time_ns
        or seen.late is not None
        or seen.communicators
    ]


def _causes_there(seen: Seen) -> set[str]:
    late = seen.late or seen.lateness
    if late is None or late.idle_cause is None:
        return set()
    imposed = late.gain_ns if isinstance(late, Late) else late.imposed_ns
    return {late.idle_cause} | {
        part.removeprefix("idle ")
        for part, surplus in late.surplus_ns.items()
        if part.startswith("idle ") and surplus >= _PART_OF_IT * imposed
    }


def _plain(cause: str, devices: list[int], time: float) -> Seen:
    return Seen(cause, list(devices), time, time, (time / 2, time), time)


def _counting(found: list[Seen], step_ns: float) -> list[Seen]:
    return [seen for seen in found if seen.time_ns >= _LEAST[seen.cause] * step_ns]


def _step(times: Times) -> float:
    return float(times.parts.wall.max(axis=1).mean()) if len(times.parts) else 0.0
