"""One report against another, kernel by kernel and metric by metric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from stepscope.ncu.decide import limiter_of
from stepscope.ncu.metrics import METRICS, STALLS_METRIC
from stepscope.ncu.model import Launch, Report
from stepscope.ncu.renamed import Renamed, renamed
from stepscope.ncu.result import REPORT_DIFF_SCHEMA, Change, Pair, ReportDiff
from stepscope.ncu.roofline import roofline_of
from stepscope.ncu.stalls import STALLS, stall_cycles

CLOCK_TOLERANCE = 0.02
"""Relative difference of the clocks from which times are not comparable: ncu locks the clock to
base, which holds to a percent."""

_COMPARED: Final = (
    "duration", "elapsed_cycles", "sm_throughput", "memory_throughput", "dram_throughput",
    "l2_throughput", "l1_throughput", "dram_bandwidth", "dram_read_bytes", "dram_write_bytes",
    "l2_tex_sectors", "l1_hit_rate", "l2_hit_rate", "global_ld_sectors", "global_ld_requests",
    "global_st_sectors", "global_st_requests", "shared_wavefronts", "shared_conflicts",
    "local_ld_requests", "local_st_requests", "global_red_requests", "global_atom_requests",
    "theoretical_occupancy", "achieved_occupancy", "registers", "shared_static", "shared_dynamic",
    "grid_size", "block_size", "waves", "instructions", "ipc_active", "issued_warps",
    "eligible_warps", "threads_per_instruction", "branch_efficiency", "pipe_tensor", "pipe_fma",
    "pipe_alu",
)  # fmt: skip


def report_diff(report: Report, other: Report) -> ReportDiff:
    """Compare two reports; kernels are matched by name, else by function, else by similarity.

    A change of a template's arguments changes the name. What is left is then matched by function,
    where each report has one name of it; then by what names, launches and places have in common.

    Args:
        report: before.
        other: after.
    """
    before, after = _by_name(report.launches), _by_name(other.launches)
    found = {
        was: Renamed(was, now, 1.0, ["the only kernel of this function in both reports"])
        for was, now in _same_function(before, after)
    }
    for was, one in found.items():
        after[was] = after.pop(one.after)
    for one in renamed(before, after):
        found[one.before] = one
        after[one.before] = after.pop(one.after)
    both = sorted((name for name in before if name in after), key=lambda n: -_time(before[n]))
    return ReportDiff(
        schema=REPORT_DIFF_SCHEMA,
        path=report.path,
        other=other.path,
        pairs=[_pair(name, before[name], after[name], found.get(name)) for name in both],
        only_before=[name for name in before if name not in after],
        only_after=[name for name in after if name not in before],
        warnings=_warnings(report.launches, other.launches),
    )


def _by_name(launches: Sequence[Launch]) -> dict[str, list[Launch]]:
    found: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        found[launch.name].append(launch)
    return found


def _same_function(
    before: dict[str, list[Launch]], after: dict[str, list[Launch]]
) -> list[tuple[str, str]]:
    """(name before, name after) of kernels of one function that have another name only once."""
    left: list[dict[str, list[str]]] = []
    for side, other in ((before, after), (after, before)):
        names: dict[str, list[str]] = defaultdict(list)
        for name, launches in side.items():
            if name not in other:
                names[launches[0].function].append(name)
        left.append(names)
    return [
        (names[0], left[1][function][0])
        for function, names in left[0].items()
        if len(names) == 1 and len(left[1].get(function, ())) == 1
    ]


def _time(launches: Sequence[Launch]) -> float:
    return sum(launch.get("duration") or 0.0 for launch in launches)


def _mean(launches: Sequence[Launch], key: str) -> float | None:
    found = [value for launch in launches if (value := launch.get(key)) is not None]
    return sum(found) / len(found) if found else None


def _longest(launches: Sequence[Launch]) -> Launch:
    return max(launches, key=lambda launch: launch.get("duration") or 0.0)


def _pair(
    name: str, before: Sequence[Launch], after: Sequence[Launch], other: Renamed | None
) -> Pair:
    changes = []
    for key in _COMPARED:
        metric = METRICS[key]
        was, now = _mean(before, key), _mean(after, key)
        if was is not None and now is not None:
            label = metric.label or key.replace("_", " ")
            changes.append(_change(label, metric.names[0], metric.unit, was, now))
    first, second = _longest(before), _longest(after)
    stalls_before, stalls_after = stall_cycles(first), stall_cycles(second)
    changes += [
        _change(
            f"Stall {STALLS[key].title}",
            STALLS_METRIC.format(STALLS[key].names[0]),
            "cycle",
            cycles,
            stalls_after[key],
        )
        for key, cycles in stalls_before.items()
        if key in stalls_after and (cycles or stalls_after[key])
    ]
    return Pair(
        name=name,
        before=len(before),
        after=len(after),
        limiter_before=limiter_of(first).limiter.id,
        limiter_after=limiter_of(second).limiter.id,
        roofline_before=roofline_of(first),
        roofline_after=roofline_of(second),
        changes=changes,
        name_after=other.after if other else name,
        confidence=other.confidence if other else 1.0,
        evidence=other.evidence if other else [],
    )


def _change(label: str, metric: str, unit: str, before: float, after: float) -> Change:
    return Change(label, metric, unit, before, after, after / before if before else None)


def _warnings(before: Sequence[Launch], after: Sequence[Launch]) -> list[str]:
    stated = []
    devices = [{launch.device for launch in side if launch.device} for side in (before, after)]
    if all(devices) and devices[0] != devices[1]:
        names = [", ".join(sorted(side)) for side in devices]
        stated.append(f"the devices differ: {names[0]} before, {names[1]} after")
    clocks = [_mean(side, "sm_frequency") for side in (before, after)]
    if clocks[0] and clocks[1] and abs(clocks[1] / clocks[0] - 1) > CLOCK_TOLERANCE:
        stated.append(
            f"the clocks differ ({clocks[0] / 1e9:.2f} and {clocks[1] / 1e9:.2f} GHz), so do "
            "times: profile both with ncu --clock-control base"
        )
    facts = [any(stall_cycles(launch) for launch in side) for side in (before, after)]
    if facts[0] != facts[1]:
        stated.append(
            f"only the report {'before' if facts[0] else 'after'} holds why warps wait, so "
            "limiters may differ for that reason alone: profile both with the same --set"
        )
    return stated
