"""The verdict for continuous integration: budgets, and a test against a baseline.

The test against the baseline fails when the slowdown is at least ``min_effect`` *and* the lower
end of its one-sided interval, at confidence ``1 - alpha``, lies above zero. The interval holds the
noise between runs (:mod:`stepscope.compare.statistics`) and what differences in the set-up may
explain (:mod:`stepscope.compare.setup`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from stepscope.compare.budgets import BUDGETS, CellLimit, Rules, SqlLimit
from stepscope.compare.comparison import (
    causes_moved,
    compare,
    kernel_message,
    merged,
    without_steps,
)
from stepscope.compare.kernels import each_name_once
from stepscope.compare.profile import Profile
from stepscope.compare.result import CauseMoved, Comparison
from stepscope.compare.setup import beyond, noise_between
from stepscope.compare.statistics import difference
from stepscope.compare.work import WORK, does_other_work, refuse_other_programs
from stepscope.trace.errors import StepscopeError, UsageError
from stepscope.trace.units import milliseconds, signed_percent

NOTHING_ASKED: Final = (
    "nothing to check; give --budget step_ms=25, --baseline FILE, a stepscope.toml, or "
    "--save-baseline FILE to begin with"
)
SCHEMA: Final = "stepscope.gate/2"
BASELINE: Final = "baseline"
_REPEATS: Final = "several PATHs, and --baseline or --save-baseline with several captures"
Status = Literal["pass", "fail", "cannot_tell"]
Compute = Callable[[SqlLimit | CellLimit], float]


class Check(msgspec.Struct, frozen=True):
    """One thing that was asked.

    Attributes:
        name: budget, figure, or ``baseline``.
        status: ``pass``, ``fail`` or ``cannot_tell``.
        value: the value found; null where it cannot be told.
        limit: what it was held against; null for none.
        message: the answer in one sentence.
    """

    name: str
    status: Status
    value: float | None
    limit: float | None
    message: str


class Saved(msgspec.Struct, frozen=True):
    """The baseline that was written.

    Attributes:
        path: the file.
        added: runs that were added to it.
        runs: runs that it now holds.
    """

    path: str
    added: int
    runs: int


class GateResult(msgspec.Struct, frozen=True):
    """The whole verdict: the contract ``stepscope.gate/2``.

    Attributes:
        schema: name and version of this contract.
        passed: whether nothing failed, and every budget could be told or need not be. A baseline
            that cannot be compared does not fail.
        paths: captures that were judged, one list a run.
        step_ns: their mean steady step, ns.
        checks: one for each thing that was asked.
        causes: what moved the step against the baseline, three at most; without a baseline, what
            takes most of the step beside compute.
        kernels: kernels that changed against the baseline, in sentences.
        warnings: what limits the verdict.
        rules: the file with the budgets; empty for none.
        saved: the baseline that the captures were added to; null where none was to be written.
    """

    schema: str
    passed: bool
    paths: list[list[str]]
    step_ns: int
    checks: list[Check]
    causes: list[CauseMoved]
    kernels: list[str]
    warnings: list[str]
    rules: str
    saved: Saved | None = None


def gate(
    runs: Sequence[Profile], baseline: Sequence[Profile], rules: Rules, compute: Compute
) -> GateResult:
    """Judge runs.

    Args:
        runs: profiles of captures of the code under test, at least one.
        baseline: profiles to compare with; may be empty.
        rules: what to ask.
        compute: gives the value of an SQL figure or a report cell.

    Raises:
        UsageError: nothing was asked, or the captures are not of the same job.
    """
    now = merged(runs)
    for run in runs:
        if run.devices != now.devices:  # merged() leaves it out: it would pass unseen
            raise UsageError(
                f"{', '.join(run.paths)} has {run.devices} devices, {', '.join(now.paths)} "
                f"{now.devices}: captures of one call must be runs of the same job; judge them in "
                "calls of their own"
            )
    refuse_other_programs(runs)
    checks = [_budget(name, limit, now) for name, limit in rules.limits.items()]
    asked: list[SqlLimit | CellLimit] = [*rules.figures, *rules.cells]
    checks += [_figure(item, compute) for item in asked]
    causes, kernels, warnings = _takes_most(now), list[str](), list[str]()
    if baseline:
        compared = compare(baseline, runs, run_noise=rules.run_noise, repeats=_REPEATS)
        checks.insert(0, _against(compared, baseline, runs, rules))
        other = does_other_work(compared.setup)
        causes = []
        if not other:
            causes = causes_moved(compared.step, compared.parts, compared.findings)
            changed = each_name_once([k for k in compared.kernels if k.changed])
            kernels = [kernel_message(kernel) for kernel, _ in changed[:3]]
        warnings = [
            f"{s.name} differs: {s.message}"
            for s in compared.setup
            if s.weight == "confounds" and not (other and s.name == WORK)  # the check says it
        ] + compared.warnings
    if not checks:
        raise UsageError(NOTHING_ASKED)
    bad = [c for c in checks if c.status == "fail"]
    # a baseline of another set-up is no proof of a slowdown: it is shown, but fails nothing
    unknown = [c for c in checks if c.status == "cannot_tell" and c.name != BASELINE]
    return GateResult(
        schema=SCHEMA,
        passed=not bad and (rules.allow_missing or not unknown),
        paths=[run.paths for run in runs],
        step_ns=round(now.step_ns),
        checks=checks,
        causes=causes,
        kernels=kernels,
        warnings=warnings,
        rules=rules.source,
    )


def _budget(name: str, limit: float, run: Profile) -> Check:
    budget = BUDGETS[name]
    value = budget.value(run)
    if value is None:
        message = f"{name} cannot be told: the capture does not hold it; {budget.missing}"
        return Check(name, "cannot_tell", None, limit, message)
    return _judged(name, value, limit, None)


def _figure(item: SqlLimit | CellLimit, compute: Compute) -> Check:
    try:
        value = compute(item)
    except StepscopeError as error:
        limit = item.high if item.high is not None else item.low
        return Check(item.name, "cannot_tell", None, limit, f"{item.name} cannot be told: {error}")
    return _judged(item.name, value, item.high, item.low)


def _judged(name: str, value: float, high: float | None, low: float | None) -> Check:
    if high is not None and value > high:
        return Check(name, "fail", value, high, f"{name} is {value:.6g}, over {high:.6g}")
    if low is not None and value < low:
        return Check(name, "fail", value, low, f"{name} is {value:.6g}, under {low:.6g}")
    limit = high if high is not None else low
    return Check(name, "pass", value, limit, f"{name} is {value:.6g} (limit {limit:.6g})")


def _against(
    compared: Comparison, baseline: Sequence[Profile], runs: Sequence[Profile], rules: Rules
) -> Check:
    """The test against the baseline."""
    found = difference(
        [p.lengths_ns() for p in baseline],
        [p.lengths_ns() for p in runs],
        confidence=1 - 2 * rules.alpha,
        run_noise=_noise(baseline, runs, rules),
    )
    if without_steps(compared.runs):
        return Check(BASELINE, "cannot_tell", None, None, compared.message)
    if does_other_work(compared.setup):
        stated = next(s.message for s in compared.setup if s.name == WORK)
        message = f"no baseline for this run, which does {stated}; store one with captures of it"
        return Check(BASELINE, "cannot_tell", None, None, message)
    slower = found.ratio - 1
    # what the set-up may explain by itself is not held against the code
    least, _ = beyond(found, merged(baseline), merged(runs), compared.setup)
    times = f"{milliseconds(found.before_ns)} to {milliseconds(found.after_ns)}"
    message = f"the step went from {times} ({signed_percent(slower)})"
    value, limit = round(found.ratio, 4), 1 + rules.min_effect
    if slower < rules.min_effect:
        return Check(BASELINE, "pass", value, limit, f"{message}: no slowdown that counts")
    message += (
        f"; at {100 * (1 - rules.alpha):g} % confidence {signed_percent(found.ratio_low - 1)}"
    )
    if found.ratio_low <= 1:
        return Check(BASELINE, "pass", value, limit, f"{message} or more: within noise")
    if least <= 0:
        confounding = ", ".join(s.name for s in compared.setup if s.weight == "confounds")
        stated = (
            f"{message} or more, but what else differs ({confounding}) may explain it; renew the "
        )
        return Check(BASELINE, "cannot_tell", value, limit, stated + "baseline with this set-up")
    return Check(BASELINE, "fail", value, limit, f"{message} or more")


def _noise(baseline: Sequence[Profile], runs: Sequence[Profile], rules: Rules) -> float:
    if rules.run_noise is not None:
        return rules.run_noise
    return noise_between(merged(baseline), merged(runs))


def _takes_most(run: Profile) -> list[CauseMoved]:
    """What takes most of a step beside compute, where there is nothing to compare with."""
    found = [CauseMoved(f.cause, f.time_ns_per_step) for f in run.findings if f.time_ns_per_step]
    named = {item.name for item in found}
    found += [
        CauseMoved(name, ns)
        for name, ns in run.budget_ns().items()
        if name != "compute" and name.removeprefix("idle:") not in named and ns
    ]
    return sorted(found, key=lambda item: -item.difference_ns)[:3]
