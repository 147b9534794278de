"""Compare two runs, each captured once or several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from stepscope.compare.kernels import each_name_once, kernel_differences
from stepscope.compare.places import place_differences
from stepscope.compare.profile import CollectiveUse, Profile
from stepscope.compare.result import (
    SCHEMA,
    CauseMoved,
    CollectiveDifference,
    Comparison,
    Fate,
    FindingDifference,
    KernelDifference,
    PartDifference,
    PredictionCheck,
    SetupDifference,
    StepDifference,
    Verdict,
)
from stepscope.compare.setup import beyond, noise_between, setup_differences
from stepscope.compare.statistics import Difference, difference, mean_error
from stepscope.compare.work import WORK, does_other_work, refuse_other_programs
from stepscope.trace.units import milliseconds, signed_milliseconds, signed_percent

_FEW_STEPS = 20
_OF_THE_MACHINE = ("launch_bound", "host_compute", "profiler_overhead")
"""Causes that come and go with the speed of the host and the capture tool."""
_MATTERS = 0.01  # share of the step from which on the time of a cause counts as changed
_GONE = 0.5  # a finding that lost more than this part of its time was worked on


REPEATS: Final = "--repeat-before, --repeat-after"
"""How ``stepscope compare`` is given further captures of both sides."""


def compare(
    before: Sequence[Profile],
    after: Sequence[Profile],
    *,
    run_noise: float | None = None,
    repeats: str = REPEATS,
) -> Comparison:
    """Compare two runs.

    Args:
        before: profiles of the captures of the earlier run, at least one.
        after: the same of the later run.
        run_noise: distance of single runs of the same code in 95 of 100 pairs, as a share; by
            default what :func:`~stepscope.compare.setup.noise_between` assumes.
        repeats: how whoever asks gives further captures of both sides; options that another
            command has are no help.

    Raises:
        UsageError: captures of one side are of different programs.
    """
    for side in (before, after):
        refuse_other_programs(side)
    a, b = merged(before), merged(after)
    run_noise = noise_between(a, b) if run_noise is None else run_noise
    measured = difference(
        [p.lengths_ns() for p in before], [p.lengths_ns() for p in after], run_noise=run_noise
    )
    setup = setup_differences(a, b)
    low, high = beyond(measured, a, b, setup)
    verdict = _verdict(measured, low, high)
    stepless = without_steps((a, b))
    other = does_other_work(setup)
    if stepless or other:
        verdict = "not_comparable"
    step = StepDifference(
        before_ns=round(a.step_ns),
        after_ns=round(b.step_ns),
        difference_ns=round(b.step_ns) - round(a.step_ns),
        low_ns=round(measured.low_ns),
        high_ns=round(measured.high_ns),
        ratio=round(measured.ratio, 4),
        ratio_low=round(math.exp(low), 4),
        ratio_high=round(math.exp(high), 4),
        p_value=_two_sided(measured.probability),
        run_noise=round(measured.run_noise, 4),
        run_noise_measured=measured.measured,
        before_steps=[len(p.wall_ns) for p in before],
        after_steps=[len(p.wall_ns) for p in after],
    )
    parts = part_differences(a, b)
    kernels, floor, shift = kernel_differences(a, b)
    ranges, no_range = place_differences(a, b, "ranges")
    operators, no_operator = place_differences(a, b, "operators")
    findings = _findings(a, b)
    certain = _certain(a, b, kernels, findings)
    causes = [] if other else causes_moved(step, parts, findings)
    return Comparison(
        schema=SCHEMA,
        verdict=verdict,
        message=(
            _stepless(stepless)
            if stepless
            else _other_work(step, setup)
            if other
            else _message(verdict, step, causes, certain, setup)
        ),
        before=[p.paths for p in before],
        after=[p.paths for p in after],
        step=step,
        causes=causes,
        parts=parts,
        kernels=kernels,
        kernel_floor=floor,
        kernel_shift=shift,
        ranges=ranges,
        operators=operators,
        collectives=_collectives(a, b),
        findings=findings,
        predictions=[] if other else _predictions(a, b, findings, measured),
        setup=setup,
        warnings=_warnings(before, after, measured, run_noise, repeats),
        not_recorded=[] if other else [*no_range, *no_operator],
        runs=[a, b],
    )


def merged(runs: Sequence[Profile]) -> Profile:
    """One profile for several captures of a run: all steps, else of the capture of median step."""
    if len(runs) == 1:
        return runs[0]
    ordered = sorted(runs, key=lambda p: p.step_ns)
    middle = ordered[(len(runs) - 1) // 2]
    alike = [p for p in runs if p.devices == middle.devices]
    names = dict.fromkeys(name for p in alike for name in p.parts_ns)
    return msgspec.structs.replace(
        middle,
        wall_ns=[wall for p in alike for wall in p.wall_ns],
        parts_ns={
            name: [v for p in alike for v in p.parts_ns.get(name, [0] * len(p.wall_ns))]
            for name in names
        },
    )


def part_differences(before: Profile, after: Profile) -> list[PartDifference]:
    """Differences by part of the step; they sum to the difference of the steps exactly."""
    ours, theirs = before.budget_ns(), after.budget_ns()
    found = []
    for name in dict.fromkeys((*ours, *theirs)):
        a, b = ours.get(name, 0), theirs.get(name, 0)
        error = math.hypot(*(_error(profile, name) for profile in (before, after)))
        found.append(PartDifference(name, a, b, b - a, round(error)))
    return sorted(found, key=lambda part: (-abs(part.difference_ns), part.part))


def causes_moved(
    step: StepDifference, parts: list[PartDifference], findings: list[FindingDifference]
) -> list[CauseMoved]:
    """What moved the step in the direction of its difference, the largest first, three at most.

    Findings speak of root causes, parts of where their time shows: a finding that went or came
    comes first where it is the larger one, and idle time charged to the same cause is not repeated.
    """
    sign = 1 if step.difference_ns > 0 else -1
    moved = []
    for f in findings:
        amount = f.end_ns - f.start_ns
        if f.fate != "unchanged" and sign * amount > 0:
            moved.append(CauseMoved(f.cause, amount))
    named = {item.name for item in moved}
    moved += [
        CauseMoved(part.part, part.difference_ns)
        for part in parts
        if sign * part.difference_ns > 0 and part.part.removeprefix("idle:") not in named
    ]
    # a finding whose time shows as a part is as long as that part, give or take: it goes first
    found = {f.cause for f in findings}
    moved.sort(key=lambda m: -abs(m.difference_ns) * (1.5 if m.name in found else 1.0))
    least = _MATTERS * min(step.before_ns, step.after_ns)
    return [m for m in moved if abs(m.difference_ns) >= least][:3]


def _error(profile: Profile, part: str) -> float:
    values = profile.parts_ns.get(part)
    if not values:
        return 0.0
    return float(mean_error(np.array(values, np.float64) / profile.devices))


def _two_sided(upper: float) -> float:
    """Two-sided probability; none is stated that is smaller than the method is exact."""
    return float(f"{max(2 * min(upper, 1 - upper), 1e-6):.2g}")


def _verdict(measured: Difference, low: float, high: float) -> Verdict:
    if low > 0:
        return "slower"
    if high < 0:
        return "faster"
    apart = measured.ratio_low > 1 or measured.ratio_high < 1
    return "not_comparable" if apart else "no_difference"


def without_steps(runs: Sequence[Profile]) -> list[Profile]:
    """The runs in which no repeating step was found."""
    return [run for run in runs if run.setup.get("steps_found_by") == "whole_capture"]


def _stepless(runs: list[Profile]) -> str:
    names = " and ".join(", ".join(run.paths[:2]) for run in runs)
    return (
        f"Not comparable: no repeating step was found in {names}; annotate the steps, or capture "
        "three at least"
    )


def _other_work(step: StepDifference, setup: list[SetupDifference]) -> str:
    stated = next(item.message for item in setup if item.name == WORK)
    times = f"{milliseconds(step.before_ns)} before and {milliseconds(step.after_ns)} after"
    return (
        f"Not comparable, the runs do {stated}; the steps take {times}, which says nothing of a "
        "change to one program"
    )


def _message(
    verdict: Verdict,
    step: StepDifference,
    causes: list[CauseMoved],
    certain: str,
    setup: list[SetupDifference],
) -> str:
    times = f"{milliseconds(step.before_ns)} before, {milliseconds(step.after_ns)} after"
    for item in setup:
        if item.name == WORK:
            rest = [other for other in setup if other.name != WORK]
            whole = _message(verdict, step, causes, certain, rest)
            return f"{item.message[0].upper()}{item.message[1:]}. If they do the same: {whole}"
    confounding = ", ".join(item.name for item in setup if item.weight == "confounds")
    if verdict == "not_comparable":
        stated = (
            f"Not comparable: the steps take {times}, but what differs beside the code "
            f"({confounding}) may explain that alone"
        )
        return stated + certain
    if verdict == "no_difference":
        stated = f"No difference that these runs can show: the steps take {times}"
        return stated + certain
    if step.ratio < 0.5:
        amount = f"{1 / step.ratio:.1f} times as fast"
    elif step.ratio > 2:
        amount = f"{step.ratio:.1f} times as long"
    else:
        word = "shorter" if verdict == "faster" else "longer"
        amount = f"{100 * abs(step.ratio - 1):.0f} % {word}"
    stated = f"{verdict.capitalize()}: the step is {amount} ({times})"
    if causes:
        stated += f", mostly {causes[0].name} ({signed_milliseconds(causes[0].difference_ns)})"
    if confounding:
        stated += f"; part of it may come from what else differs ({confounding})"
    return stated


def _certain(
    a: Profile, b: Profile, kernels: list[KernelDifference], findings: list[FindingDifference]
) -> str:
    """What did change although the steps cannot show a difference; empty for nothing."""
    stated = _counts(a, b)
    changed = [k for k in kernels if k.changed and k.category != "communication"]
    stated += [kernel_message(k) for k, _ in each_name_once(changed)[:1]]
    stated += [
        f"{f.cause} {'came' if f.fate == 'new' else 'went'} "
        f"({signed_milliseconds(f.end_ns - f.start_ns)})"
        for f in findings
        if f.fate in ("new", "gone") and f.cause not in _OF_THE_MACHINE
    ][:1]
    return f"; yet {' and '.join(stated)}" if stated else ""


def _counts(a: Profile, b: Profile) -> list[str]:
    """The count that moved most, in a sentence without end: counts have no noise.

    Launches only where one tool recorded both sides: tools do not record the same calls.
    """
    names = {"kernels_per_step": "kernels"}
    if a.setup.get("source") == b.setup.get("source"):
        names["launches_per_step"] = "launches"
    moved = []
    for figure, name in names.items():
        before, after = (p.figures.get(figure, 0.0) for p in (a, b))
        if before and after and abs(after - before) >= max(_MATTERS * before, 1.0):
            message = f"a step has {after:.0f} {name} instead of {before:.0f}"
            moved.append((abs(math.log(after / before)), message))
    return [message for _, message in sorted(moved, reverse=True)[:1]]


def kernel_message(kernel: KernelDifference) -> str:
    """What became of a kernel, in a sentence without end."""
    names = [" + ".join(side[:2]) + (" + ..." if side[2:] else "") for side in
             (kernel.before, kernel.after)]  # fmt: skip
    amount = milliseconds(abs(kernel.difference_ns))
    more = "more" if kernel.difference_ns > 0 else "less"
    if kernel.relation == "gone":
        return f"{names[0]} is gone ({amount} per step less)"
    if kernel.relation == "new":
        return f"{names[1]} is new ({amount} per step more)"
    if kernel.relation in ("same", "other_shape"):
        stated = f"{names[1]} takes {amount} per step {more}"
        if kernel.each_ratio is not None:
            stated += f" ({signed_percent(kernel.each_ratio - 1)} a call)"
        return stated
    return f"{names[1]} stands for {names[0]} ({kernel.relation}, {amount} per step {more})"


def _collectives(before: Profile, after: Profile) -> list[CollectiveDifference]:
    ours = {(c.kind, c.group_size): c for c in before.collectives}
    theirs = {(c.kind, c.group_size): c for c in after.collectives}
    found = []
    for kind, size in dict.fromkeys((*ours, *theirs)):
        nothing = CollectiveUse(kind, size, 0.0, None, 0.0, 0.0, 0.0)
        a, b = ours.get((kind, size), nothing), theirs.get((kind, size), nothing)
        found.append(
            CollectiveDifference(
                kind, size, round(a.count, 3), round(b.count, 3), a.bytes, b.bytes,
                round(a.waiting_ns), round(b.waiting_ns), round(a.transfer_ns),
                round(b.transfer_ns), round(a.exposed_ns), round(b.exposed_ns),
            )
        )  # fmt: skip
    return sorted(found, key=lambda c: -abs(c.exposed_after_ns - c.exposed_before_ns))


def _findings(before: Profile, after: Profile) -> list[FindingDifference]:
    """Findings of both diagnoses, and what their time did.

    A cause under its threshold is no finding, and the threshold is a share of the step: one that is
    found on one side only may have kept its idle time, or even more of it. Its fate tells what
    became of the time, not of the finding.
    """
    ours = {f.cause: f for f in before.findings if f.time_ns_per_step}
    theirs = {f.cause: f for f in after.findings if f.time_ns_per_step}
    budgets = before.budget_ns(), after.budget_ns()
    step = min(before.step_ns, after.step_ns)
    found = []
    for cause in dict.fromkeys((*ours, *theirs)):
        a, b = ours.get(cause), theirs.get(cause)
        latest = b or a
        assert latest is not None
        idle = [budget.get(f"idle:{cause}") for budget in budgets]
        if any(ns is not None for ns in idle):
            idle = [ns or 0 for ns in idle]
        one = FindingDifference(
            cause,
            "unchanged",
            a.time_ns_per_step if a else None,
            b.time_ns_per_step if b else None,
            latest.message,
            *idle,
        )
        found.append(msgspec.structs.replace(one, fate=_fate(one, step)))
    return found


def _fate(f: FindingDifference, step_ns: float) -> Fate:
    start, end = f.start_ns, f.end_ns
    if abs(end - start) < max(_MATTERS * step_ns, 0.1 * max(start, end)):
        return "unchanged"
    if f.after_ns is None and end < (1 - _GONE) * start:
        return "gone"
    if f.before_ns is None and start < (1 - _GONE) * end:
        return "new"
    return "larger" if end > start else "smaller"


def _predictions(
    before: Profile, after: Profile, findings: list[FindingDifference], measured: Difference
) -> list[PredictionCheck]:
    """Predictions of the findings that were repaired."""
    fate = {f.cause: f for f in findings}
    repaired = []
    for f in before.findings:
        facts = fate.get(f.cause)
        if facts is None or not f.predicted_step_ns:
            continue
        less = facts.end_ns < (1 - _GONE) * facts.start_ns
        if facts.fate == "gone" or (facts.fate == "smaller" and less):
            repaired.append(f)
    noise = 2 * measured.run_noise
    checks = []
    for f in repaired:
        step = round(after.step_ns)
        low, high = f.prediction_low_ns * (1 - noise), f.prediction_high_ns * (1 + noise)
        came: bool | None = None
        bounds = f"{milliseconds(f.prediction_low_ns)} to {milliseconds(f.prediction_high_ns)}"
        stated = f"without {f.cause}: predicted {milliseconds(f.predicted_step_ns)} ({bounds})"
        stated += f", measured {milliseconds(step)}"
        if len(repaired) > 1:
            stated += "; several causes were fixed, so neither prediction can be judged alone"
        else:
            came = low <= step <= high
            if came:
                stated += "; prediction confirmed"
            else:
                gained = "less" if step > high else "more"
                stated += (
                    f"; the fix gained {gained} than predicted, or something else changed, too"
                )
                others = [x.cause for x in findings if x.fate in ("new", "larger")]
                if others and step > high:
                    stated += f" ({', '.join(others)} grew)"
        checks.append(
            PredictionCheck(
                f.cause,
                f.predicted_step_ns,
                f.prediction_low_ns,
                f.prediction_high_ns,
                step,
                came,
                stated,
            )
        )
    return checks


def _warnings(
    before: Sequence[Profile],
    after: Sequence[Profile],
    measured: Difference,
    run_noise: float,
    repeats: str,
) -> list[str]:
    found = []
    if measured.measured:
        found.append(
            f"runs of the same code vary by {100 * measured.run_noise:.1f} % (standard deviation, "
            f"measured on these {len(before) + len(after)} captures)"
        )
    else:
        found.append(
            "how much runs of the same code vary is unknown with so few captures: assumed is a "
            f"standard deviation of {100 * measured.run_noise:.1f} %, so that two runs lie up to "
            f"{100 * run_noise:.0f} % apart in 95 of 100 pairs (more where the GPU waits longer); "
            f"five captures of both sides together measure it ({repeats})"
        )
    few = min(len(p.wall_ns) for p in (*before, *after))
    if few < _FEW_STEPS:
        found.append(f"{few} steady steps in a capture are few: differences of a few percent "
                     "cannot be resolved")  # fmt: skip
    return found
