"""Figures and texts that the causes about several ranks share."""

from __future__ import annotations

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.job import Collectives
from stepscope.collectives.late import Lateness
from stepscope.diagnosis.cause import Case, Figure

PACE = "rank_pace WHERE {gpu}"
"""This device's row."""

IMPOSED_SQL = f"SELECT imposed_ns FROM {PACE}"
"""What the late devices cost the job, ns per step."""

_OTHERS = "rank_pace WHERE NOT late"


def position(case: Case) -> int:
    """Position of the case's device in the job."""
    return next(i for i, device in enumerate(case.job.view.devices) if device is case.device)


def mostly_bubbles(c: Collectives) -> bool:
    """Whether most of the waiting is in sends and receives, as the stages of a pipeline do."""
    return float(c.parts.bubble.sum()) > 0.5 * float(c.parts.waiting.sum())


def late_text(c: Collectives, late: Lateness) -> str:
    """The late ranks as text; the GPUs where one rank has several."""
    if len({p.rank for p in c.participants}) < len(c.participants):
        places = sorted({(c.participants[d].rank, c.participants[d].gpu.device)
                         for d in late.devices})  # fmt: skip
        named = ", ".join(f"GPU {device} of rank {rank}" for rank, device in places[:8])
        return named + (", ..." if len(places) > 8 else "")
    ranks = sorted({c.participants[d].rank for d in late.devices})
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def recording_text(c: Collectives, late: Lateness) -> str:
    """What a sentence must add where recording slows the others, so that they hardly wait."""
    if late.others_wait_ns >= 0.5 * late.imposed_ns or not any(p.recording_ns for p in c.paces):
        return ""
    return " here, where recording slows them, too; without it they would wait {imposed_ns}"


def late_figures() -> list[Figure]:
    """What the late device needs and the others wait."""

    def others(column: str) -> str:
        # where the ranks are late in turn, none is left over
        return (
            f"SELECT coalesce((SELECT median({column}) FROM {_OTHERS}), "
            f"(SELECT median({column}) FROM rank_pace))::BIGINT"
        )

    return [
        Figure("others_wait_ns", "ns_per_step", others("waiting_ns")),
        Figure("imposed_ns", "ns_per_step", IMPOSED_SQL),
        Figure("need_ns", "ns_per_step", f"SELECT need_ns FROM {PACE}"),
        Figure("others_need_ns", "ns_per_step", others("need_ns")),
        Figure("compute_ns", "ns_per_step", f"SELECT compute_ns FROM {PACE}"),
        Figure("others_compute_ns", "ns_per_step", others("compute_ns")),
        Figure(
            "compute_ratio",
            "ratio",
            f"SELECT round(compute_ns / greatest(({others('compute_ns')}), 1), 2) FROM {PACE}",
        ),
        Figure("kernels", "per_step", f"SELECT kernels FROM {PACE}"),
        Figure("others_kernels", "per_step", others("kernels")),
        Figure(
            "threads_ratio",
            "ratio",
            f"SELECT round(threads / greatest(({others('threads')}), 1), 2) FROM {PACE}",
        ),
        Figure("joined_last", "count", f"SELECT joined_last FROM {PACE}"),
        Figure("operations", "count", f"SELECT operations FROM {PACE}"),
    ]


def surplus_figure(part: str) -> Figure:
    """What the late device takes longer than the median of the others for one part of its time."""
    mean = "sum(time_ns) / count(DISTINCT step)"
    others = (
        f"SELECT median(t) FROM (SELECT {mean} AS t FROM rank_time WHERE part = '{part}' AND "
        "(rank, process_id, device) IN (SELECT (rank, process_id, device) FROM rank_pace "
        "WHERE NOT late) GROUP BY rank, process_id, device)"
    )
    return Figure(
        "surplus_ns",
        "ns_per_step",
        f"SELECT round({mean} - coalesce(({others}), 0))::BIGINT FROM rank_time "
        f"WHERE part = '{part}' AND {{gpu}}",
    )


def busiest_use(c: Collectives) -> str:
    """What the communicator with most exposed time is likely for."""
    facts = c.facts
    channel = c.matched.instances.channel[facts.instance]
    spent = np.bincount(
        channel,
        weights=facts.exposed_transfer + facts.exposed_waiting,
        minlength=len(c.matched.channels),
    )
    likely = {guess.channel: guess.id for guess in c.groups}
    return likely.get(int(np.argmax(spent)), "unknown") if len(spent) else "unknown"


def bandwidth_figure(c: Collectives) -> Figure | None:
    """Bus bandwidth of the kind that takes most time, all messages together; None if unknown."""
    facts, instances = c.facts, c.matched.instances
    known = instances.bytes[facts.instance] > 0
    if not known.any():
        return None
    kind = instances.kind[facts.instance]
    spent = np.bincount(kind[known], weights=facts.transfer[known], minlength=len(kinds.KINDS))
    name = kinds.KINDS[int(np.argmax(spent))]
    factor = {
        "all_reduce": "2.0 * (group_size - 1) / group_size",
        "all_gather": "1.0 * (group_size - 1) / group_size",
        "reduce_scatter": "1.0 * (group_size - 1) / group_size",
        "all_to_all": "1.0 * (group_size - 1) / group_size",
    }.get(name, "1.0")
    return Figure(
        "bus_bandwidth",
        "bytes_per_s",
        f"SELECT sum(bytes * {factor}) * 1e9 / greatest(sum(transfer_ns), 1) FROM collective_wait "
        f"WHERE name = '{name}' AND bytes > 0 AND step IS NOT NULL AND {{gpu}}",
    )
