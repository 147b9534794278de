"""What is found in a job, in sentences with their figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stepscope.breakdown.repaired import widened
from stepscope.collectives.match import Matched
from stepscope.intervals.distinct import values_without
from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_make import short_group
from stepscope.jobs.digest_parts import Times
from stepscope.jobs.job_causes import Seen
from stepscope.jobs.job_late import WORTH
from stepscope.jobs.job_result import JobFinding
from stepscope.trace.frame import AnyArray, IntArray
from stepscope.trace.units import shown

_TITLES: Final = {
    "straggler": "Straggler",
    "load_imbalance": "Load imbalance",
    "pipeline_bubble": "Pipeline bubble",
    "exposed_communication": "Exposed communication",
}

_WHY: Final = {
    "slow_gpu": "the same kernels take longer on {it}",
    "extra_work": "{it} has more to compute",
    "late_input": "getting the next batch takes {it} longer",
    "slow_host": "the host leaves {its} device idle for longer ({root})",
    "slow_copies": "{its} copies take longer",
    "slow_link": "data moves more slowly in each communicator of {it}",
    "mixed": "no single part of {its} time explains it",
}

_ADVICE: Final = {
    "slow_gpu": [
        "compare the GPUs while they train: nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,ECC "
        "(a lower clock, a throttle reason or another process shows there)",
        "take the GPU out of the job and run it alone: where it is as slow, drain the node",
    ],
    "extra_work": [
        "give every rank as much work: the same number of samples and tokens, equal shards, equal "
        "stages, balanced experts",
        "move what only this rank does (evaluation, logging on the GPU) out of the step",
    ],
    "late_input": [
        "look at what the rank reads: its shard, its file system, the CPU cores of its loader's "
        "workers",
        "prefetch more batches, so that one late batch is no late step",
    ],
    "slow_host": [
        "bind the rank to the CPU cores and memory next to its GPU, and let nothing else run there",
        "compare the CPU's clock and load with another node's (turbostat, top)",
    ],
    "slow_copies": ["look at the PCIe link: nvidia-smi -q -d PCIE (generation and width)"],
    "slow_link": [
        "look at the links of the rank: nvidia-smi nvlink -e, nvidia-smi -q -d PCIE, the port "
        "counters of its network adapter and its switch port",
        "run nccl-tests over the ranks of the slow communicator and over those of another one",
    ],
    "mixed": ["compare the full capture of the rank with that of a peer, between two collectives"],
}


def finding(
    seen: Seen,
    digests: Sequence[Digest],
    times: Times,
    role: IntArray,
    matched: Matched | None,
    need: AnyArray,
) -> JobFinding:
    """One cause as it is told.

    Args:
        seen: the cause.
        digests: the ranks.
        times: their times.
        role: number of the peers of each.
        matched: their collectives; None where there are none.
        need: what each needs for each step on its own account, steps x ranks, ns.
    """
    step = float(times.parts.wall.max(axis=1).mean())
    ranks = list(dict.fromkeys(digests[d].rank for d in seen.devices))  # a rank may drive several
    place = seen.late.place.text if seen.late is not None and seen.late.place is not None else ""
    evidence = _evidence(seen, digests, times, role, need)
    communicators = []
    if matched is not None:
        communicators = [
            short_group(",".join(map(str, matched.channels[k].ranks))) for k in seen.communicators
        ]
    predicted, (least, most) = step - seen.gain_ns, seen.bounds_ns
    low, high = widened(predicted, step - most, step - least, max(step, 1.0))
    if seen.reason:
        message = _lateness_text(
            seen, ranks, place, evidence, step, len(times.parts), communicators
        )
        advice = list(_ADVICE[seen.reason])
    else:
        message = _text(seen, ranks, len({digest.rank for digest in digests}), step)
        advice = [seen.texts["advice"]] if seen.texts.get("advice") else _plain_advice(seen)
    late = seen.late
    link = seen.reason == "slow_link"
    return JobFinding(
        cause=seen.cause,
        reason=seen.reason,
        root_cause=seen.root_cause,
        ranks=ranks,
        place=place,
        communicators=communicators,
        time_ns_per_step=round(seen.counts_ns),
        share_of_step=round(seen.counts_ns / step, 4) if step else 0.0,
        predicted_step_ns=round(predicted),
        prediction_low_ns=round(max(low, 0.0)),
        prediction_high_ns=round(min(high, step)),
        score=float(seen.texts["score"]) if link else _known(late.score if late else None),
        threshold=float(seen.texts["bound"]) if link else _known(late.bound if late else None),
        where=seen.texts.get("where", "") or _where(seen, digests),
        message=message,
        recommendations=advice,
        evidence=evidence,
    )


def _known(value: float | None) -> float | None:
    return round(value, 2) if value is not None and np.isfinite(value) else None


def _where(seen: Seen, digests: Sequence[Digest]) -> str:
    """Where in the program the cause behind a late rank sits, as its digest tells."""
    for device in seen.devices:
        lists = digests[device].lists["findings"]
        for row, cause in enumerate(lists["cause"]):
            if cause == seen.root_cause:
                found: str = lists["range"][row] or lists["operator"][row] or lists["place"][row]
                return found
    return ""


def _lateness_text(
    seen: Seen,
    ranks: list[int],
    place: str,
    evidence: dict[str, float],
    step: float,
    n_steps: int,
    communicators: list[str],
) -> str:
    who = f"{place} ({ranks_text(ranks)})" if place else ranks_text(ranks)
    several = len(ranks) > 1
    why = _WHY[seen.reason].format(
        it="them" if several else "it",
        its="their" if several else "its",
        root=(seen.root_cause or "").replace("_", " "),
    )
    if seen.reason == "extra_work":
        why = ("they have" if several else "it has") + " more to compute"
    costs = f"{shown(round(seen.time_ns), 'ns')} of each {shown(round(step), 'ns')} step"
    text = f"{_TITLES[seen.cause]} costs {costs}: the job waits for {who}, because {why}"
    if seen.gain_ns < WORTH * step:
        text = (
            f"{_TITLES[seen.cause]}: {who} {'are' if several else 'is'} late, because {why}; "
            f"repairing that alone gains {costs}, because most of it is hidden by others that are "
            "as late, or by compute"
        )
    if seen.reason == "slow_link":
        named = ", ".join(communicators[:4]) + (", ..." if len(communicators) > 4 else "")
        text += (
            f"; transfers take {evidence['transfer_ratio']:.2f} times as long as in communicators "
            f"alike (ranks {named})"
        )
    if seen.reason == "slow_gpu" and "compute_ratio" in evidence:
        text += f" ({evidence['compute_ratio']:.2f} times as long)"
    if "sm_clock_mhz" in evidence and evidence["sm_clock_mhz"] < evidence["peers_sm_clock_mhz"]:
        text += (
            f"; its SM clock is {evidence['sm_clock_mhz']:.0f} MHz, that of its peers "
            f"{evidence['peers_sm_clock_mhz']:.0f}"
        )
    if "late_steps" in evidence:
        text += f"; it is late in {evidence['late_steps']:.0f} of {n_steps} shared steps"
    if "surplus_ns" in evidence:
        text += f"; beyond its peers it needs {shown(round(evidence['surplus_ns']), 'ns')} a step"
    return text


def _text(seen: Seen, ranks: list[int], n: int, step: float) -> str:
    if sentence := seen.texts.get("sentence"):
        return sentence
    title = _title(seen)
    who = "all ranks" if len(ranks) == n > 1 else ranks_text(ranks)
    if seen.cause == "insufficient_data":
        return f"the capture of {who} lacks what an answer needs: {title}"
    verb = "cost" if seen.cause.endswith("kernels") else "costs"
    costs = f"{shown(round(seen.time_ns), 'ns')} of each {shown(round(step), 'ns')} step"
    text = f"{title} {verb} {costs} on {who}"
    if seen.counts_ns == seen.time_ns:
        return text
    recovers = shown(round(seen.gain_ns), "ns")
    if seen.gain_ns < seen.time_ns:
        return f"{text}, of which fixing it alone recovers {recovers}"
    return f"{text}, and fixing it recovers {recovers}"


def why_fetched(seen: Seen) -> str:
    """Why the full capture of a rank that shows a cause is worth a look."""
    if seen.reason:
        return f"it is late: {seen.reason.replace('_', ' ')}"
    if seen.cause == "insufficient_data":
        return "its digest lacks what an answer needs"
    return _title(seen)


def _title(seen: Seen) -> str:
    """A cause with its place, as the digest that shows it most names it."""
    named = seen.texts.get("message") or _TITLES.get(seen.cause)
    return named or seen.cause.replace("_", " ").capitalize()


def _plain_advice(seen: Seen) -> list[str]:
    if seen.cause == "exposed_communication":
        return [
            "let communication begin as soon as its data is ready, on its own stream, and wait for "
            "it only where the result is used"
        ]
    if seen.cause == "pipeline_bubble":
        return ["use more and smaller micro-batches, or a schedule with fewer bubbles"]
    return []


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in a sentence; runs are shortened."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    text = short_group(",".join(map(str, sorted(ranks))))
    parts = text.split(",")
    return "ranks " + (", ".join(parts[:8]) + (", ..." if len(parts) > 8 else ""))


def _evidence(
    seen: Seen, digests: Sequence[Digest], times: Times, role: IntArray, need: AnyArray
) -> dict[str, float]:
    """Figures of the late ranks and of their peers, ns a step."""
    found: dict[str, float] = {}
    if not seen.devices:
        return found
    own = np.array(seen.devices)
    peers = np.flatnonzero(role == role[own[0]])
    others = values_without(peers, own)
    if not len(others):
        others = values_without(np.arange(len(role)), own)
    parts = times.parts

    def both(name: str, values: AnyArray) -> None:
        found[name] = round(float(values[:, own].mean()))
        if len(others):
            found[f"peers_{name}"] = round(float(np.median(values[:, others].mean(axis=0))))

    both("waiting_ns", parts.waiting)
    both("compute_ns", parts.compute)
    if seen.root_cause in parts.idle:
        both(f"idle_{seen.root_cause}_ns", parts.idle[seen.root_cause])
    both("kernels_per_step", times.work.kernels)
    if len(others):
        found["compute_ratio"] = round(found["compute_ns"] / max(found["peers_compute_ns"], 1.0), 3)
    late = seen.late or seen.lateness
    if late is not None:
        both("need_ns", need)
        surplus = found["need_ns"] - found.get("peers_need_ns", found["need_ns"])
        if surplus > 0:
            found["surplus_ns"] = surplus
        found["threads_ratio"] = round(late.more_work, 3)
    if seen.late is not None and seen.late.steps:
        found["late_steps"] = float(len(seen.late.steps))
    if seen.reason == "slow_link":
        found["transfer_ns"] = float(seen.texts["transfer"])
        found["transfer_ratio"] = float(seen.texts["ratio"])
    clocks = [digests[d].facts["sm_clock_mhz"] for d in own.tolist()]
    theirs = [digests[d].facts["sm_clock_mhz"] for d in others.tolist()]
    theirs = [clock for clock in theirs if clock is not None]
    if theirs and None not in clocks and clocks:
        found["sm_clock_mhz"] = round(float(np.mean(clocks)), 1)
        found["peers_sm_clock_mhz"] = round(float(np.median(theirs)), 1)
    return found
