"""Differences by kernel, and which of them are more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from stepscope.compare.matching import Match, match_kernels
from stepscope.compare.profile import KernelUse, Profile
from stepscope.compare.result import KernelDifference

SMALLEST_CHANGE: Final = 0.03
"""Share from which on another time of an unchanged kernel is called a change. Between runs of the
same code on one machine, kernels over 10 us differ by 0.7 % (standard deviation) in the test data,
between machines of one model by up to 2 %."""

SIGMAS: Final = 4.0
"""Standard deviations that a change must exceed: with some hundred kernels in a step, 4 keeps the
chance of one false call under 1 %."""

MATERIAL: Final = 0.001
"""Share of the step that a kernel's difference must make up to be called."""

_SHORT_NS = 10_000  # shorter kernels vary more: start-up, caches, the granularity of timestamps
_LEAST_SPREAD = 0.005
_FEW = 6  # fewer kernels of a class tell no spread
_ASSUMED_SPREAD = 0.02
_OTHER_WORK = 0.1  # ratios that differ by more are those of other work, not of other clocks


def kernel_differences(
    before: Profile, after: Profile
) -> tuple[list[KernelDifference], float, float]:
    """Differences by kernel, the largest first, the noise floor and the common ratio.

    Times of calls are judged against the other kernels: the median of all ratios (weighted by
    time) is what clocks did, and their spread around it is what noise does to unchanged kernels of
    like length.
    """
    found, floor, shift = _matched(before, after)
    return [kernel for kernel, _ in found], floor, shift


def rows_of_kernels(before: Profile, after: Profile) -> tuple[list[int], list[int]]:
    """For each kernel of either profile its row in :func:`kernel_differences`."""
    rows = [-1] * len(before.kernels), [-1] * len(after.kernels)
    for row, (_, match) in enumerate(_matched(before, after)[0]):
        for side, kernels in zip(rows, (match.before, match.after), strict=True):
            for kernel in kernels:
                side[kernel] = row
    return rows


def _matched(
    before: Profile, after: Profile
) -> tuple[list[tuple[KernelDifference, Match]], float, float]:
    """Each difference with the match that it is about."""
    matches = match_kernels(before, after)
    ratios = _ratios(before, after, matches)
    shift, spread = _noise(before, matches, ratios)
    step = min(before.step_ns, after.step_ns)
    found = []
    for number, match in enumerate(matches):
        ours = [before.kernels[i] for i in match.before]
        theirs = [after.kernels[j] for j in match.after]
        times = sum(k.ns_per_step for k in ours), sum(k.ns_per_step for k in theirs)
        calls = sum(k.calls_per_step for k in ours), sum(k.calls_per_step for k in theirs)
        difference = times[1] - times[0]
        material = abs(difference) >= MATERIAL * step
        ratio = ratios.get(number)
        errors = [k.error * k.ns_per_step for k in (*ours, *theirs)]
        # kernels that are not in every step (other lengths of sequences) come and go by chance
        steady = abs(difference) > SIGMAS * math.hypot(*errors)
        again = abs(calls[1] - calls[0]) > 0.02 * max(calls)
        waits = all(k.category == "communication" for k in (*ours, *theirs))
        if ratio is None or again:
            changed = material and steady
        elif waits:
            changed = False  # its time is the other ranks': see the collectives
        else:
            log, error = ratio
            each = before.kernels[match.before[0]].ns_per_step / max(calls[0], 1e-9)
            limit = max(SIGMAS * math.hypot(error, spread[each < _SHORT_NS]), SMALLEST_CHANGE)
            changed = material and abs(log - shift) > limit
        where = max([*theirs, *ours], key=lambda k: k.ns_per_step)
        facts = KernelDifference(
            relation=match.relation,
            before=_labels(ours),
            after=_labels(theirs),
            category=where.category,
            range=where.range or None,
            operator=where.operator or None,
            calls_before=round(calls[0], 3),
            calls_after=round(calls[1], 3),
            before_ns=round(times[0]),
            after_ns=round(times[1]),
            difference_ns=round(times[1]) - round(times[0]),
            each_ratio=round(math.exp(ratio[0]), 4) if ratio else None,
            changed=changed,
        )
        found.append((facts, match))
    found.sort(key=lambda item: (-abs(item[0].difference_ns), item[0].before, item[0].after))
    floor = max(SIGMAS * spread[False], SMALLEST_CHANGE)
    return found, round(floor, 4), round(math.exp(shift), 4)


def _labels(kernels: Sequence[KernelUse]) -> list[str]:
    return list(dict.fromkeys(k.label for k in kernels))


def _ratios(
    before: Profile, after: Profile, matches: Sequence[Match]
) -> dict[int, tuple[float, float]]:
    """Logarithm of the ratio of a call's time, and its standard error, of each same kernel."""
    found = {}
    for number, match in enumerate(matches):
        if match.relation != "same" or len(match.before) != 1 or len(match.after) != 1:
            continue
        a, b = before.kernels[match.before[0]], after.kernels[match.after[0]]
        if min(a.ns_per_step, b.ns_per_step) <= 0:
            continue
        each = a.ns_per_step / a.calls_per_step, b.ns_per_step / b.calls_per_step
        found[number] = math.log(each[1] / each[0]), math.hypot(a.error, b.error)
    return found


def _noise(
    before: Profile, matches: Sequence[Match], ratios: dict[int, tuple[float, float]]
) -> tuple[float, dict[bool, float]]:
    """Common logarithm of the ratios, and the spread around it of long and of short kernels."""
    if not ratios:
        return 0.0, {False: _ASSUMED_SPREAD, True: 2 * _ASSUMED_SPREAD}
    uses = [before.kernels[matches[n].before[0]] for n in ratios]
    logs = np.array([log for log, _ in ratios.values()])
    weight = np.array([use.ns_per_step for use in uses])
    # one kernel that dominates must not hide its own change: no weight counts over a tenth
    weight = np.minimum(weight, 0.1 * weight.sum())
    order = np.argsort(logs, kind="stable")
    held = np.cumsum(weight[order])
    shift = float(logs[order][np.searchsorted(held, held[-1] / 2)])
    if float(np.median(np.abs(logs - shift))) > _OTHER_WORK:
        return 0.0, {False: _ASSUMED_SPREAD, True: 2 * _ASSUMED_SPREAD}
    short = np.array([use.ns_per_step / use.calls_per_step < _SHORT_NS for use in uses])
    spread = {}
    for kind in (False, True):
        mine = np.abs(logs[short == kind] - shift)
        assumed = _ASSUMED_SPREAD * (2 if kind else 1)
        known = len(mine) >= _FEW
        spread[kind] = max(1.4826 * float(np.median(mine)), _LEAST_SPREAD) if known else assumed
    return shift, spread


def each_name_once(kernels: Sequence[KernelDifference]) -> list[tuple[KernelDifference, int]]:
    """(kernel, how many it stands for), those of the same names and fate taken together.

    One function launched with other template arguments is several kernels, which all have its
    short name: rows that look the same are one row for a reader, the largest difference first.
    """
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[KernelDifference]] = {}
    for kernel in kernels:
        key = kernel.relation, tuple(kernel.before), tuple(kernel.after)
        groups.setdefault(key, []).append(kernel)
    found = [(_together(group), len(group)) for group in groups.values()]
    return sorted(found, key=lambda item: -abs(item[0].difference_ns))


def _together(group: Sequence[KernelDifference]) -> KernelDifference:
    if len(group) == 1:
        return group[0]
    return msgspec.structs.replace(
        group[0],
        calls_before=sum(kernel.calls_before for kernel in group),
        calls_after=sum(kernel.calls_after for kernel in group),
        before_ns=sum(kernel.before_ns for kernel in group),
        after_ns=sum(kernel.after_ns for kernel in group),
        difference_ns=sum(kernel.difference_ns for kernel in group),
        each_ratio=None,
    )
