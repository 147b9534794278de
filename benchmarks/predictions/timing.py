"""How both sides of a pair are timed: in turn, many times, and how far the turns agree."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cores import PINS, on_a_quiet_core
from program import SMALL, Program, Running

TURN_S = 0.02 if SMALL else 0.25
"""What a turn of one side lasts, where its steps are short."""
LEAST_STEPS, MOST_STEPS = (2, 3) if SMALL else (8, 200)
LONG_MS = 1_000
"""Of a period that lasts longer a turn has one, else two at least."""
WARM_S = 0.01 if SMALL else 0.15
"""A device that was idle needs some time until its clocks are up."""
ALL_TURNS_S = 0.1 if SMALL else 3.0
LEAST_ROUNDS, MOST_ROUNDS = 3, 7
AGAIN_MS = 8_000
"""What lasted longer is not measured again."""
TRIMMED_FROM = 5
"""Turns from which on the highest and the lowest do not count as spread."""
NOISY = 0.05
"""Turns of one program that differ by more do not say what it takes."""

Side = dict[str, list[float]]


@dataclass(frozen=True)
class Meeting:
    """How the ranks of a job begin together and agree on a time.

    Attributes:
        together: returns when all ranks are there and no GPU works.
        slowest: the longest of the ranks' times.
        quiet: moves what launches kernels to a quiet core.
    """

    together: Callable[[], object] = lambda: None
    slowest: Callable[[float], float] = lambda ms: ms
    quiet: Callable[[], object] = on_a_quiet_core


ALONE = Meeting()


def drained() -> None:
    import torch

    if torch.cuda.is_available() and not SMALL:
        torch.cuda.synchronize()


def loop(
    run: Running,
    steps: int,
    between: Callable[[], object] = lambda: None,
    meeting: Meeting = ALONE,
) -> dict[str, float]:
    """So many steps: mean and median, ms; the GPU has nothing to do before and after."""
    drained()
    meeting.together()
    times = [time.perf_counter()]
    for _ in range(steps):
        run.step()
        between()
        times.append(time.perf_counter())
    drained()
    mean = meeting.slowest((time.perf_counter() - times[0]) / steps * 1e3)
    median = statistics.median(b - a for a, b in itertools.pairwise(times)) * 1e3
    return {"mean_ms": round(mean, 4), "median_ms": round(median, 4), "steps": steps}


def settled(run: Running) -> None:
    """Steps that no turn counts: what workers had ready is used up."""
    for _ in range(run.settle):
        run.step()


def warm(run: Running, program: Program, meeting: Meeting = ALONE) -> float:
    """Warm up; the time of a late step, ms."""
    run.enter()
    settled(run)
    steps = max(3, program.period)
    found = loop(run, steps, meeting=meeting)["mean_ms"]
    if (more := int(WARM_S * 1e3 / found)) > steps:
        found = loop(run, more, meeting=meeting)["mean_ms"]
    run.leave()
    return found


def count(program: Program, step_ms: float) -> int:
    """Steps of a turn: whole periods."""
    period = program.period
    if period > 1 and period * step_ms > LONG_MS:
        return period
    wanted = min(max(TURN_S * 1e3 / step_ms, LEAST_STEPS), MOST_STEPS)
    return max(round(wanted / period), 2 if period > 1 else LEAST_STEPS) * period


def rounds_of(turn_ms: float) -> int:
    """How often the sides take turns, if both take so long together."""
    return max(LEAST_ROUNDS, min(int(ALL_TURNS_S * 1e3 / turn_ms), MOST_ROUNDS))


def in_turn(
    sides: Sequence[Running], steps: Sequence[int], rounds: int, meeting: Meeting
) -> dict[str, Side]:
    """Before, after, before, after, and so on."""
    found: dict[str, Side] = {
        name: {"mean_ms": [], "median_ms": [], "steps": []} for name in ("before", "after")
    }
    for _ in range(rounds):
        for name, side, n in zip(found, sides, steps, strict=True):
            side.enter()
            meeting.quiet()
            settled(side)
            for key, value in loop(side, n, meeting=meeting).items():
                found[name][key].append(value)
            side.leave()
    return found


def spread(turns: Sequence[float]) -> float:
    """How far the turns of a program differ, over their median; of many without the extremes."""
    kept = sorted(turns)[1:-1] if len(turns) >= TRIMMED_FROM else turns
    return (max(kept) - min(kept)) / statistics.median(turns)


def disagreement(found: dict[str, Side]) -> float:
    """The spread of the side whose turns differ more."""
    return max(spread(found[side]["mean_ms"]) for side in ("before", "after"))


def turns(program: Program, sides: Sequence[Running], meeting: Meeting = ALONE) -> dict[str, Any]:
    """Both sides in turn; where turns differ twice, if there is time: those that agree better."""
    late = [warm(side, program, meeting) for side in sides]
    steps = [count(program, ms) for ms in late]
    settle_ms = sum(s.settle * ms for s, ms in zip(sides, late, strict=True))
    turn_ms = settle_ms + sum(n * ms for n, ms in zip(steps, late, strict=True))
    rounds = rounds_of(turn_ms)
    tries = [in_turn(sides, steps, rounds, meeting)]
    # all ranks agree on the means, so that all measure again or none
    if disagreement(tries[0]) > NOISY and rounds * turn_ms < AGAIN_MS and not SMALL:
        tries.append(in_turn(sides, steps, rounds, meeting))
    best = min(tries, key=disagreement)
    found: dict[str, Any] = dict(best)
    found["spread"] = round(disagreement(best), 4)
    if len(tries) > 1:
        found["other_turns"] = {
            side: t[side]["mean_ms"] for t in tries if t is not best for side in ("before", "after")
        }
    return found


def ratio(truth: dict[str, Any]) -> float:
    """The repaired over the faulty step, by the medians of the turns."""
    before, after = (statistics.median(truth[side]["mean_ms"]) for side in ("before", "after"))
    return after / before


def described(program: Program) -> dict[str, Any]:
    """What a truth says of its program."""
    return {
        "name": program.name,
        "cause": program.cause,
        "others": list(program.others),
        "family": program.family,
        "repair": program.repair,
        "marks": program.marks,
        "period": program.period,
        "ranks": program.ranks,
        "samples": program.samples,
        "one_core": PINS,
    }


def truth(program: Program, found: dict[str, Any]) -> dict[str, Any]:
    """What is stored of a pair."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() and not SMALL else "CPU"
    return {
        **described(program),
        **found,
        "recorded": {},
        "device": device,
        "torch": torch.__version__.split("+")[0],
        "written_after": getattr(sys.modules[program.make.__module__], "WRITTEN_AFTER", ""),
    }


def line(program: Program, found: dict[str, Any]) -> str:
    """The truth in one line."""
    before, after = (statistics.median(found[side]["mean_ms"]) for side in ("before", "after"))
    again = ", measured again" if "other_turns" in found else ""
    return (
        f"{program.name:30} {before:8.2f} -> {after:8.2f} ms {after / before:5.2f} "
        f"+-{found['spread']:.1%} in {len(found['before']['mean_ms'])} turns of "
        f"{found['before']['steps'][0]} and {found['after']['steps'][0]}{again}"
    )
