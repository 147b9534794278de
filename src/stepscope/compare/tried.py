"""What fixes that were tried came to: ``stepscope.try/1``.

Runs with a fix and without take turns in one session; their steps are compared as
:mod:`~stepscope.compare.statistics` compares runs. The losses of both are compared by their
distance: the mean of the absolute differences of the steps that both have, over the mean absolute
loss. The yardstick is how far runs *without* the fix lie apart from one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Final, Literal

import msgspec

from stepscope.compare.statistics import difference
from stepscope.trace.units import milliseconds

SCHEMA: Final = "stepscope.try/1"

Verdict = Literal[
    "keep",
    "no_difference",
    "worse",
    "changed_training",
    "changed_nothing",
    "refused",
    "failed",
    "not_measured",
    "looked",
]
Alike = Literal["bit_equal", "within_tolerance", "diverges", "unknown"]

ROUNDING: Final = 0.01
"""Distance of the losses up to which a fix that rounds otherwise has not changed training. A number
in bfloat16 is off by up to 0.4 % (8 bits), and errors of single numbers average out in a loss."""

EXACT: Final = 1e-6
"""The same for fixes that shall leave the numbers alone: the rounding of one in single precision,
some ten times over, for sums in another order."""

BEYOND_REPEATS: Final = 2.0
"""Times the distance of runs without the fix that a run with it may lie apart from them."""

_LEAST_STEPS = 3


class Applied(msgspec.Struct, frozen=True):
    """One fix, and what it did to the program.

    Attributes:
        name: the fix with its value, as ``--try`` has it.
        count: how often it was applied, in all processes of a run.
        places: lines of the program where, with how often; the first some only.
        lines: what to write into the script.
        refused: why it was not applied; empty where it was.
        left: why it was not applied at single places, with how often.
        notes: what the user should know.
    """

    name: str
    count: int
    places: dict[str, int]
    lines: str
    refused: str
    left: dict[str, int]
    notes: list[str]


class TriedStep(msgspec.Struct, frozen=True):
    """How long steps take without the fix and with it; see ``StepDifference`` of a comparison.

    Attributes:
        before_ns: mean step without it, ns.
        after_ns: mean step with it, ns.
        low_ns: lower end of the 95 % interval of the latter, noise between runs included.
        high_ns: upper end of it.
        ratio: after over before.
        run_noise: standard deviation of the logarithm of a run's mean that was computed with.
        run_noise_measured: whether that was measured on these runs, not assumed.
        before_steps: steps timed in each run without.
        after_steps: the same with.
        before_means_ns: mean step of each run without, ns, in the order they ran.
        after_means_ns: the same with.
        clock: ``gpu`` where events on the GPU marked the steps, ``host`` otherwise.
    """

    before_ns: int
    after_ns: int
    low_ns: int
    high_ns: int
    ratio: float
    run_noise: float
    run_noise_measured: bool
    before_steps: list[int]
    after_steps: list[int]
    before_means_ns: list[int]
    after_means_ns: list[int]
    clock: str


class TriedPrediction(msgspec.Struct, frozen=True):
    """What a diagnosis predicted of the fix.

    The ratio that it predicts for recorded steps, times the step that was measured without the fix.

    Attributes:
        cause: the finding or lever that it was predicted for.
        step_ns: predicted mean step, ns.
        low_ns: lower bound of that.
        high_ns: upper bound of that.
        came_true: whether the measured step lies between these, give or take what two runs of the
            same code differ by; null where nothing was measured.
    """

    cause: str
    step_ns: int
    low_ns: int
    high_ns: int
    came_true: bool | None = None


class LossComparison(msgspec.Struct, frozen=True):
    """Whether training is what it was.

    Attributes:
        alike: ``bit_equal``: every loss is the same number; ``within_tolerance``; ``diverges``;
            ``unknown``: no losses were seen in both.
        steps: steps whose losses were compared.
        distance: mean distance of runs with the fix from runs without it, as a share of the loss;
            null where unknown.
        repeats: the same of runs without it from one another; null for one run alone.
        tolerance: distance up to which they count as alike; null where unknown.
        message: that in a sentence.
    """

    alike: Alike
    steps: int
    distance: float | None
    repeats: float | None
    tolerance: float | None
    message: str


class Wait(msgspec.Struct, frozen=True):
    """A line of the program that waits for the GPU.

    Attributes:
        place: file and line; empty where only libraries are on the stack.
        count: how often, in the timed steps of all processes.
    """

    place: str
    count: int


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One fix, or several together.

    Attributes:
        names: the fixes with their values.
        verdict: ``keep``, ``no_difference``, ``worse``, ``changed_training`` (the losses diverge),
            ``changed_nothing`` (applied nowhere), ``refused``, ``failed`` (the program fails with
            it), ``not_measured`` (too few steps) or ``looked`` (fixes that only look).
        message: that in a sentence.
        applied: what each did to the program.
        step: times; null where none were compared.
        prediction: what was predicted; null where nothing was.
        losses: whether training is what it was.
        waits: lines that wait for the GPU, the most frequent first, where that was looked at.
        exit_codes: of the program, in each run with it.
    """

    names: list[str]
    verdict: Verdict
    message: str
    applied: list[Applied]
    step: TriedStep | None
    prediction: TriedPrediction | None
    losses: LossComparison
    waits: list[Wait]
    exit_codes: list[int]


class TrySession(msgspec.Struct, frozen=True, kw_only=True):
    """All that was tried on a program in one session.

    Attributes:
        schema: name and version of this layout.
        command: program and arguments.
        folder: where the session kept what it found.
        rounds: how often the runs took turns.
        steps: steps timed in each run; 0: to the program's end.
        warmup: steps let pass before.
        exit_codes: of the program without any fix, run by run.
        tried: the fixes.
        warnings: what the user should know, in sentences.
    """

    schema: str
    command: list[str]
    folder: str
    rounds: int
    steps: int
    warmup: int
    exit_codes: list[int]
    tried: list[Tried]
    warnings: list[str]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the program, as it is judged.

    Attributes:
        exit_code: the program's.
        lengths_ns: length of each timed step of its slowest process, ns.
        losses: mean loss of each step of its first rank that has any.
        clock: by which the steps were timed.
        made: optimizer steps that it made in all.
    """

    exit_code: int
    lengths_ns: list[int]
    losses: dict[int, float]
    clock: str
    made: int = 0


def judge(
    before: Sequence[Run],
    after: Sequence[Run],
    applied: Sequence[Applied],
    *,
    rounding: bool,
    looks: bool = False,
    prediction: TriedPrediction | None = None,
    waits: Sequence[Wait] = (),
) -> Tried:
    """Judge a fix by runs without it and with it.

    Args:
        before: runs without.
        after: runs with it; some at least.
        applied: what each fix of the set did.
        rounding: whether one may change the rounding of numbers.
        looks: whether all only look.
        prediction: the predicted ratio as a step of 1e9 ns before; see :func:`scaled`.
        waits: lines that wait for the GPU.
    """
    losses = compare_losses(
        [run.losses for run in before], [run.losses for run in after], rounding=rounding
    )
    step = _step(before, after)
    if prediction is not None:
        prediction = scaled(prediction, step)
    verdict, message = _verdict(after, applied, step, losses, looks, list(waits))
    if step is not None and verdict in ("keep", "no_difference", "worse", "changed_training"):
        message = f"{_times(step, prediction)}: {message}"
    elif verdict in ("refused", "changed_nothing", "failed", "not_measured"):
        step = None
    return Tried(
        names=[one.name for one in applied],
        verdict=verdict,
        message=message,
        applied=list(applied),
        step=step,
        prediction=prediction,
        losses=losses,
        waits=sorted(waits, key=lambda one: (-one.count, one.place)),
        exit_codes=[run.exit_code for run in after],
    )


def scaled(prediction: TriedPrediction, step: TriedStep | None) -> TriedPrediction | None:
    """A prediction for a step of one second, for the step that was measured; None without one."""
    if step is None:
        return None
    factor = step.before_ns / 1e9
    middle, low, high = (
        round(ns * factor) for ns in (prediction.step_ns, prediction.low_ns, prediction.high_ns)
    )
    noise = 2 * step.run_noise
    came = low * (1 - noise) <= step.after_ns <= high * (1 + noise)
    return TriedPrediction(prediction.cause, middle, low, high, came)


def _step(before: Sequence[Run], after: Sequence[Run]) -> TriedStep | None:
    sides = [[run for run in side if len(run.lengths_ns) >= _LEAST_STEPS] for side in
             (before, after)]  # fmt: skip
    if not all(sides):
        return None
    lengths = [[run.lengths_ns for run in side] for side in sides]
    found = difference(*lengths)
    means = [[round(sum(run) / len(run)) for run in side] for side in lengths]
    return TriedStep(
        before_ns=round(found.before_ns),
        after_ns=round(found.after_ns),
        low_ns=round(found.before_ns * found.ratio_low),
        high_ns=round(found.before_ns * found.ratio_high),
        ratio=round(found.ratio, 4),
        run_noise=round(found.run_noise, 4),
        run_noise_measured=found.measured,
        before_steps=[len(run) for run in lengths[0]],
        after_steps=[len(run) for run in lengths[1]],
        before_means_ns=means[0],
        after_means_ns=means[1],
        clock="gpu" if all(run.clock == "gpu" for side in sides for run in side) else "host",
    )


def _verdict(
    after: Sequence[Run],
    applied: Sequence[Applied],
    step: TriedStep | None,
    losses: LossComparison,
    looks: bool,
    waits: list[Wait],
) -> tuple[Verdict, str]:
    refused = "; ".join(f"{one.name} is refused: {one.refused}" for one in applied if one.refused)
    failed = [run.exit_code for run in after if run.exit_code]
    applied_some = any(one.count for one in applied)
    if (refused and not applied_some) or failed:
        how = f"the program fails with it (exit code {max(failed, default=0)}): leave it"
        return ("failed", how) if failed else ("refused", refused)
    if not applied_some:
        reasons = "; ".join(_why_nothing(one) for one in applied)
        return "changed_nothing", f"changed nothing: {reasons}"
    if looks:
        return "looked", _looked(waits)
    if step is None:
        made = min((run.made for run in after), default=0)
        return "not_measured", (
            f"too few steps to compare (the program made {made}); give fewer --warmup, or more "
            "--steps"
        )
    return _compared(step, losses)


def _compared(step: TriedStep, losses: LossComparison) -> tuple[Verdict, str]:
    if losses.alike == "diverges":
        return "changed_training", "it changed training: check"
    if step.high_ns < step.before_ns:
        return "keep", "keep it"
    if step.low_ns > step.before_ns:
        return "worse", "worse: leave it"
    return "no_difference", "no difference that these runs can show"


def _why_nothing(one: Applied) -> str:
    """Why a fix was applied nowhere."""
    reasons = " and ".join(one.left) or "the program does nothing that it applies to"
    return f"{one.name}: {reasons}"


def _looked(waits: list[Wait]) -> str:
    if not waits:
        return "no line of the program waits for the GPU in the timed steps, as PyTorch tells"
    lines = f"{len(waits)} line{'' if len(waits) == 1 else 's'}"
    return f"{lines} wait{'s' if len(waits) == 1 else ''} for the GPU in the timed steps"


def _times(step: TriedStep, prediction: TriedPrediction | None) -> str:
    """``predicted 20.5 ms, measured 20.4 ms [20.1 ms, 20.7 ms] instead of 28.0 ms``."""
    stated = (
        f"measured {milliseconds(step.after_ns)} [{milliseconds(step.low_ns)}, "
        f"{milliseconds(step.high_ns)}] instead of {milliseconds(step.before_ns)}"
    )
    if prediction is None:
        return stated
    return f"predicted {milliseconds(prediction.step_ns)}, {stated}"


def compare_losses(
    before: Sequence[dict[int, float]], after: Sequence[dict[int, float]], *, rounding: bool
) -> LossComparison:
    """Whether the losses of runs with a fix are those of runs without it.

    Args:
        before: loss by step, of each run without.
        after: the same with it.
        rounding: whether the fix may change the rounding of numbers.
    """
    before, after = [one for one in before if one], [one for one in after if one]
    pairs = [(a, b) for a in before for b in after]
    steps = min((len(a.keys() & b.keys()) for a, b in pairs), default=0)
    if not steps:
        stated = "no losses to compare: no call of Tensor.backward on a single number was seen"
        return LossComparison("unknown", 0, None, None, None, stated)
    repeats = [distance(a, b) for a, b in combinations(before, 2) if a.keys() & b.keys()]
    yardstick = max(repeats) if repeats else None
    if all(any(_equal(a, b) for a in before) for b in after):
        stated = f"the losses of all {steps} steps are bit-equal"
        return LossComparison("bit_equal", steps, 0.0, yardstick, 0.0, stated)
    apart = sum(distance(a, b) for a, b in pairs) / len(pairs)
    own = ROUNDING if rounding else EXACT
    tolerance = max(own, BEYOND_REPEATS * (yardstick or 0.0))
    alike: Alike = "within_tolerance" if apart <= tolerance else "diverges"
    message = _stated(apart, yardstick, tolerance, alike, rounding)
    return LossComparison(alike, steps, _bounded(apart), yardstick, tolerance, message)


def distance(a: dict[int, float], b: dict[int, float]) -> float:
    """Mean absolute difference of two series of losses over their mean size.

    Infinite where a loss is no number in one of them only. Series without a common step have none.
    """
    both = sorted(a.keys() & b.keys())
    total = size = 0.0
    for step in both:
        x, y = a[step], b[step]
        if x == y or (math.isnan(x) and math.isnan(y)):
            size += abs(x) if math.isfinite(x) else 0.0
            continue
        if not (math.isfinite(x) and math.isfinite(y)):
            return math.inf
        total += abs(x - y)
        size += (abs(x) + abs(y)) / 2
    return total / size if total else 0.0


def _equal(a: dict[int, float], b: dict[int, float]) -> bool:
    return bool(a.keys() & b.keys()) and distance(a, b) == 0.0


def _bounded(apart: float) -> float | None:
    """JSON has no infinity."""
    return apart if math.isfinite(apart) else None


def _stated(
    apart: float, yardstick: float | None, tolerance: float, alike: Alike, rounding: bool
) -> str:
    if not math.isfinite(apart):
        return "the losses diverge: some are no number in the runs with it, or without it, only"
    word = "differ by" if alike == "within_tolerance" else "diverge: they differ by"
    stated = f"the losses {word} {_share(apart)} (at most {_share(tolerance)} counts as alike)"
    if yardstick is None:
        return f"{stated}; with one run without it, nothing tells how far such runs lie apart"
    if yardstick == 0:
        return f"{stated}; runs without it are bit-equal among themselves"
    if not math.isfinite(yardstick):
        return f"{stated}; runs without it diverge among themselves, so this says nothing"
    nothing = "" if rounding or yardstick < ROUNDING else ", so a small change would not show"
    return f"{stated}; runs without it differ by {_share(yardstick)} among themselves{nothing}"


def _share(value: float) -> str:
    if value >= 0.001:
        return f"{100 * value:.2g} %"
    return f"{value:.1e} of the loss" if value else "nothing"
