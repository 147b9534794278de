"""What the causes inside kernels share: from a repair to a detection with its evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Detection, Figure, located
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.diagnosis.profiler_overhead_figures import uncertain_overhead_ns
from stepscope.kernels.kernels import Kernels, Repair
from stepscope.simulation import CallCompiled, Change, FuseOps, RemoveOps, ScaleOps
from stepscope.simulation.changes import Bound
from stepscope.trace.frame import BoolArray, IntArray


def repair_changes(case: Case, cause: str, bound: Bound, *, further: bool = False) -> list[Change]:
    """The repair of a cause on every device of the job, as the simulator replays it.

    Args:
        case: one of the devices.
        cause: public id.
        bound: whether the estimate of the repaired time is taken, its least, or its most.
        further: whether it is the further repair of these kernels.
    """
    cases = case.job.cases
    found: list[Change] = []
    for each in cases:
        inside = each.explanation.inside_kernels
        repair = (inside.further_repairs if further else inside.repairs).get(cause)
        if repair is not None:
            rank = each.rank if len(cases) > 1 else None
            found += changes_of_repair(each, repair, bound, rank)
    return found


def changes_of_repair(case: Case, repair: Repair, bound: Bound, rank: int | None) -> list[Change]:
    """A repair of one device as the simulator replays it.

    Args:
        case: the device.
        repair: the repair.
        bound: as in :func:`repair_changes`.
        rank: its rank; None where it is the only device.
    """
    total = {"low": repair.low_ns, "high": repair.high_ns}.get(bound, int(repair.new_ns.sum()))
    ids = case.explanation.gpu.ops["id"][repair.rows]
    if repair.replaced:
        a_step = total // case.explanation.n_steady
        return [FuseOps(tuple(ids.tolist()), a_step, rank)]
    found: list[Change] = []
    merged = repair.merged & (repair.certain or bound != "high")
    kept = ~merged
    leading = merged & (False if repair.leading is None else repair.leading)
    for which, inside in ((merged & ~leading, False), (leading, True)):
        if which.any():
            found.append(RemoveOps(tuple(ids[which].tolist()), rank, inside))
    if kept.any():
        factors = repair.factors(kept, total)
        found.append(ScaleOps(tuple(ids[kept].tolist()), tuple(factors.tolist()), rank))
    launched, removed = repair.rows[kept], repair.rows[merged]
    if bound == "low" and repair.further is not None:
        beside = repair.further
        found += changes_of_repair(case, replace(beside, compiles=False), bound, rank)
        launched = np.sort(np.append(launched, beside.rows[~beside.merged]))
        removed = np.sort(np.append(removed, beside.rows[beside.merged]))
    if repair.compiles and len(launched):
        begins = launched[calls(case.explanation.kernels, launched, removed)]
        called = case.explanation.gpu.ops["id"][begins]
        found.append(CallCompiled(tuple(called.tolist()), rank))
    return found


def calls(kernels: Kernels, kept: IntArray, gone: IntArray) -> BoolArray:
    """Which kernels of compiled code begin a call of it.

    One call launches all kernels of a compiled function that follow one another; another kernel
    between them (a GEMM of the model may be launched by the same call, which a capture does not
    tell), the backward pass, or another thread ends it.

    Args:
        kernels: the device's kernels.
        kept: rows of ``GPU.ops`` of the kernels that compiled code launches, ascending.
        gone: rows of those that are merged into them.
    """
    stays = kernels.gpu.is_kernel.copy()
    stays[gone] = False
    order = kernels.order[stays[kernels.order]]
    compiled = np.zeros(len(stays), bool)
    compiled[kept] = True
    thread, phase = kernels.attribution.thread[order], kernels.phase[order]
    goes_on = np.zeros(len(order), bool)
    goes_on[1:] = compiled[order[:-1]] & (thread[1:] == thread[:-1]) & (phase[1:] == phase[:-1])
    begins = compiled.copy()
    begins[order[goes_on]] = False
    found: BoolArray = begins[kept]
    return found


def repair_figures(cause: str) -> list[Figure]:
    """Kernels that a repair changes: how many, their time, and the time they are left with."""
    rows = f"FROM kernel_repair WHERE cause = '{cause}' AND {{gpu}}"
    return [
        Figure(
            "kernels_per_step",
            "per_step",
            f"SELECT count(*)::DOUBLE / {STEADY_STEPS} {rows}",
        ),
        Figure(
            "kernels_ns_per_step",
            "ns_per_step",
            f"SELECT round(sum(end_ns - start_ns) / {STEADY_STEPS})::BIGINT {rows}",
        ),
        Figure(
            "repaired_ns_per_step",
            "ns_per_step",
            f"SELECT round(sum(repaired_ns) / {STEADY_STEPS})::BIGINT {rows}",
        ),
    ]


def saved_time_sql(cause: str) -> str:
    """What the repair of a cause's kernels saves, ns per step."""
    return (
        "SELECT round(sum(end_ns - start_ns - repaired_ns + idle_ns) / "
        f"{STEADY_STEPS})::BIGINT FROM kernel_repair WHERE cause = '{cause}' AND {{gpu}}"
    )


def detection(
    case: Case,
    cause: str,
    repair: Repair,
    *,
    message: str,
    recommendations: list[str],
    figures: list[Figure] | None = None,
    texts: dict[str, str] | None = None,
    next_capture: str | None = None,
    uncertain_ns: float = 0.0,
    absorbs: frozenset[tuple[str, int]] = frozenset(),
) -> Detection:
    """A detection whose time is what the repair saves.

    Args:
        case: the device.
        cause: public id.
        repair: the repair.
        message: the sentence's predicate, a template.
        recommendations: what to change, most effective first.
        figures: evidence beyond the repair itself.
        texts: names that the sentence uses.
        next_capture: a command that would sharpen the finding; by default the capture that names
            the line, where the trace has no lines.
        uncertain_ns: further time that may belong to it, ns per step.
        absorbs: (cause, rank) of findings that are symptoms of this one.
    """
    kernels = case.explanation.kernels
    saved = kernels.per_step(repair.saved_ns)
    least, most = (kernels.per_step(ns) for ns in repair.saved_bounds_ns)
    place = kernels.attribution.heaviest(repair.rows)
    return Detection(
        time_ns=saved,
        direct_ns=min(least, saved),
        uncertain_ns=max(most - saved, 0.0) + uncertain_ns,
        overhead_ns=uncertain_overhead_ns(case, kernels.per_step(repair.total_idle_ns)),
        message=message,
        recommendations=recommendations,
        figures=[*repair_figures(cause), *(figures or [])],
        where=located(place),
        texts=texts or {},
        next_capture=next_capture or (None if place.function or place.source else captures.STACKS),
        repair=repair,
        absorbs=absorbs,
    )
