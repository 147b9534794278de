"""Rows of a diagnosis beside its findings: the mean step of each rank, and the outlier steps."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.breakdown.outliers import PARTS
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import Compute, all_evaluated, evaluated
from stepscope.diagnosis.result import Evidence, OutlierStep, RankTime

_MOST_OUTLIERS: Final = 16

_SHARED: Final = {
    "step_ns": "part NOT IN ('alone', 'blocking', 'bubble')",
    "compute_ns": "part = 'compute'",
    "waiting_ns": "part IN ('waiting', 'missing')",
    "transfer_ns": "part IN ('transfer', 'unmatched')",
    "copy_ns": "part IN ('copy', 'memset')",
    "idle_ns": "part LIKE 'idle %'",
}
"""Parts of ``rank_time``, whose steps are cut at the same moments on all ranks."""

_OWN: Final = {
    "step_ns": "wall_ns",
    "compute_ns": "compute_ns",
    "waiting_ns": "0",
    "transfer_ns": "exposed_communication_ns",
    "copy_ns": "exposed_copy_ns + memset_ns",
    "idle_ns": "idle_ns",
}
"""Columns of ``step``, where nothing was matched between ranks."""


def rank_rows(cases: list[Case], compute: Compute) -> tuple[list[RankTime], list[Evidence]]:
    """Where the mean step of each device of a job goes, and the evidence; nothing for one device.

    Args:
        cases: one a device.
        compute: evaluates evidence statements.
    """
    rows: list[RankTime] = []
    evidence: list[Evidence] = []
    for case in cases if len(cases) > 1 else ():
        figures = all_evaluated(_figures(case), case, compute)
        values = {one.figure.rpartition(".")[2]: int(one.value) for one in figures}
        rows.append(RankTime(rank=case.rank, device=case.explanation.gpu.device, **values))
        evidence += figures
    return rows, evidence


def _figures(case: Case) -> list[Figure]:
    c = case.job.view.collectives
    name = f"rank{case.rank}.device{case.explanation.gpu.device}.mean"
    if c is not None and len(c.parts):
        return [
            Figure(
                f"{name}.{column}",
                "ns",
                "SELECT coalesce(round(sum(time_ns) / count(DISTINCT step)), 0)::BIGINT "
                f"FROM rank_time WHERE {which} AND {{gpu}}",
            )
            for column, which in _SHARED.items()
        ]
    return [
        Figure(
            f"{name}.{column}",
            "ns",
            f"SELECT round(sum({of}) / count(*))::BIGINT FROM step WHERE steady AND {{gpu}}",
        )
        for column, of in _OWN.items()
    ]


def outlier_rows(case: Case, compute: Compute) -> tuple[list[OutlierStep], list[Evidence]]:
    """The outlier steps of a device by number, the longest first, and the evidence.

    Args:
        case: the reference device.
        compute: evaluates evidence statements.
    """
    e = case.explanation
    odd = e.outliers
    length = e.durations_ns[odd.steps]
    rows: list[OutlierStep] = []
    evidence: list[Evidence] = []
    for step in odd.steps[np.argsort(-length, kind="stable")][:_MOST_OUTLIERS].tolist():
        mine = np.flatnonzero(odd.parts["step"] == step)
        most = mine[int(np.argmax(odd.parts["excess_ns"][mine]))]
        rows.append(
            OutlierStep(
                step=step,
                wall_ns=int(e.durations_ns[step]),
                normal_step=odd.reference,
                normal_ns=int(e.durations_ns[odd.reference]),
                part=PARTS[int(odd.parts["part"][most])],
                name=odd.names[int(odd.parts["name"][most])],
                excess_ns=int(odd.parts["excess_ns"][most]),
            )
        )
        evidence.append(evaluated(_length(f"outlier.step{step}.wall_ns", step), case, compute))
    if rows:
        figure = _length(f"outlier.step{odd.reference}.normal_ns", odd.reference)
        evidence.append(evaluated(figure, case, compute))
    return rows, evidence


def _length(name: str, step: int) -> Figure:
    return Figure(name, "ns", f"SELECT max(wall_ns) FROM step WHERE step = {step} AND {{gpu}}")
