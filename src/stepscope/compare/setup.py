"""What differs between two runs beside the code, and how much of a difference it may explain."""

from __future__ import annotations

import math
from typing import Final

from stepscope.compare.profile import Profile
from stepscope.compare.result import SetupDifference
from stepscope.compare.statistics import HOST_NOISE, Difference, assumed_noise
from stepscope.compare.work import other_work
from stepscope.kernels.categories import PRODUCTS

HOST_PACE: Final = 1.25
"""Ratio of the lengths of the shortest launching calls (lower decile) from which on the hosts
count as unequally fast. On one machine it was up to 1.2 in the test data, where one run keeps the
queue full and the other drains it; between two machines of one kind it was 1.35."""

OVERHEAD_UNCERTAINTY: Final = 0.5
"""How wrong the estimated cost of a profiler may be, as a share of itself."""

OTHER_OPTIONS: Final = 0.03
"""Share of the step that other options of one tool may cost, where nothing estimates it."""

OTHER_TOOL: Final = 0.10
"""Share of the step that two tools may differ in beyond the estimated cost of recording: the cost
of Nsight Systems is not recorded; it was 1 to 25 % on the test data's captures."""

_CONFOUNDS: Final = {
    "gpu": "another GPU",
    "steps_found_by": "steps were found in another way, so one may not be what the other is",
    "sm_count": "another number of SMs",
    "world_size": "another number of ranks in the job",
    "ranks": "another number of ranks was captured",
    "devices": "another number of devices was captured",
}
_QUIET: Final = ("capture.schema_version", "host", "command", "capture.displayTimeUnit")
_COSTLY: Final = ("capture.", "recorded.")


_PACED_BY_DEVICE: Final = ("compute", "memset", "idle:small_kernels")
_EVENTS: Final = (
    "idle:host_sync", "idle:allocator_churn", "idle:checkpoint_stall", "idle:gil_contention",
    "idle:compilation_or_warmup",
)  # fmt: skip


def noise_between(before: Profile, after: Profile) -> float:
    """How far these runs may lie apart without a change, in 95 of 100 pairs, as a logarithm.

    Counted with the slower run: time in which the device waits may be noise as a whole (a host that
    falls behind), time of distinct events (synchronisations, allocations, checkpoints) only as far
    as their own length varies.
    """
    slower = max(before, after, key=lambda p: p.step_ns)
    budget = slower.budget_ns()
    events = sum(budget.get(name, 0) for name in _EVENTS)
    paced = sum(ns for name, ns in budget.items() if name not in (*_PACED_BY_DEVICE, *_EVENTS))
    return assumed_noise((paced + HOST_NOISE * events) / slower.step_ns)


def setup_differences(before: Profile, after: Profile) -> list[SetupDifference]:
    """Everything in the set-up that differs, what confounds first."""
    found = []
    tools = before.setup.get("source"), after.setup.get("source")
    for name in sorted(before.setup.keys() | after.setup.keys()):
        values = before.setup.get(name, ""), after.setup.get(name, "")
        if values[0] == values[1]:
            continue
        of_tool = name.startswith(("capture.", "recorded.", "environment.")) or name in (
            "source_version",
            "sm_count",
            "host",
            "command",
        )
        if of_tool and tools[0] != tools[1]:
            continue  # other tools record other things: said once
        if name == "source":
            message = "captured by other tools, which slow a program unequally; capture both alike"
            found.append(_difference(name, values, True, message))
        elif name in _CONFOUNDS:
            found.append(_difference(name, values, True, _CONFOUNDS[name]))
        elif name.startswith(_COSTLY) and name not in _QUIET:
            message = "other options of the capture, which cost the program something"
            found.append(_difference(name, values, True, message))
        else:
            found.append(_difference(name, values, False, "may matter"))
    if any(item.name.startswith("capture.") and item.weight == "confounds" for item in found):
        found = [item for item in found if not item.name.startswith("recorded.")]
    found += _work(before, after)
    pace = host_pace(before, after)
    if not 1 / HOST_PACE <= pace <= HOST_PACE:
        figures = [f"{p.figures['launch_ns'] / 1000:.1f} us" for p in (before, after)]
        message = (
            "launching calls take another time, so one host is slower, or busier, than the other; "
            "idle time that ends with a launch grows with it"
        )
        found.append(_difference("host_pace", (figures[0], figures[1]), True, message))
    found.sort(key=lambda item: item.weight != "confounds")
    return found


def _work(before: Profile, after: Profile) -> list[SetupDifference]:
    """Signs that the runs do other work, or another amount of it: batch, shapes, precision."""
    found = []
    copied = [p.figures.get("copied_bytes_per_step", 0) for p in (before, after)]
    if abs(copied[0] - copied[1]) > 0.02 * max(copied):
        shown = (f"{copied[0]:,.0f} bytes", f"{copied[1]:,.0f} bytes")
        message = "another amount is copied to the device in each step: perhaps another batch"
        found.append(_difference("copied_per_step", shown, False, message))
    other = other_work(before, after)
    if other is not None:
        return [*found, other]
    shapes = [_shapes(p) for p in (before, after)]
    if shapes[0] and shapes[1]:
        common = sum(min(shapes[0].get(key, 0), shapes[1].get(key, 0)) for key in shapes[0])
        most = max(sum(s.values()) for s in shapes)
        if common < 0.5 * most:
            message = (
                "most GEMMs, convolutions and attention kernels have other names or "
                "shapes: another model, batch, sequence length or precision"
            )
            shown = (f"{len(shapes[0])} shapes", f"{len(shapes[1])} shapes")
            found.append(_difference("shapes", shown, True, message))
    return found


def _shapes(profile: Profile) -> dict[object, float]:
    """Calls a step of the heavy kernels by name and shape."""
    found: dict[object, float] = {}
    for k in profile.kernels:
        if k.category in PRODUCTS:
            key = (k.label, k.grid)
            found[key] = found.get(key, 0.0) + k.calls_per_step
    return found


def host_pace(before: Profile, after: Profile) -> float:
    """Time of a launching call, after over before; 1 where either is not known."""
    times = [p.figures.get("launch_ns", 0.0) for p in (before, after)]
    return times[1] / times[0] if min(times) > 0 else 1.0


def beyond(
    measured: Difference, before: Profile, after: Profile, setup: list[SetupDifference]
) -> tuple[float, float]:
    """Interval of the logarithm of the ratio, noise and what the set-up may explain taken away.

    Noise and set-up are independent, so their bounds add as the sides of a right angle do.
    """
    least, most = explained(before, after, setup)
    shift = math.log(measured.ratio)
    low = shift - math.hypot(shift - math.log(measured.ratio_low), most)
    high = shift + math.hypot(math.log(measured.ratio_high) - shift, least)
    return low, high


def explained(before: Profile, after: Profile, setup: list[SetupDifference]) -> tuple[float, float]:
    """How far the set-up alone may have moved the step: least and most, as logarithms of the ratio.

    Every confounder that can be bounded counts: another tool or other options (by the estimated
    cost of recording), another pace of the hosts (by the idle time that ends when the host
    launches). The bounds hold zero.
    """
    names = {item.name for item in setup if item.weight == "confounds"}
    low = high = 0.0
    options = any(name.startswith(_COSTLY) for name in names)
    if "source" in names or options:
        flat = OTHER_TOOL if "source" in names else OTHER_OPTIONS
        scales = (0.0, 1 - OVERHEAD_UNCERTAINTY, 1.0, 1 + OVERHEAD_UNCERTAINTY)
        ours = [_recording_share(before, scale) for scale in scales]
        theirs = [_recording_share(after, scale) for scale in scales]
        if "source" in names:
            low, high = -max(ours), max(theirs)
        else:  # the estimate for one tool is wrong alike on both sides
            moved = [b - a for a, b in zip(ours, theirs, strict=True)]
            low, high = min(moved), max(moved)
        low, high = low - flat, high + flat
    pace = host_pace(before, after)
    if "host_pace" in names:
        slower = after if pace > 1 else before
        ratio = max(pace, 1 / pace)
        # at most the host's own part of the step, were it as fast as the other one
        saved = min(_host_idle(slower), slower.step_ns * (1 - 1 / ratio))
        share = -math.log1p(-min(saved / slower.step_ns, 0.9))
        low, high = (low, high + share) if pace > 1 else (low - share, high)
    return low, high


def _recording_share(profile: Profile, scale: float) -> float:
    """Logarithm of the step over what it would be without the profiler's cost.

    Args:
        profile: the run.
        scale: the cost over what is estimated.
    """
    cost = profile.figures.get("recording_ns_per_step", 0.0) * scale
    # the cost shows only where the device waited for the host
    return -math.log1p(-min(min(cost, _host_idle(profile)) / profile.step_ns, 0.9))


def _host_idle(profile: Profile) -> float:
    return profile.figures.get("host_paced_idle_ns", 0.0)


def _difference(
    name: str, values: tuple[str, str], confounds: bool, message: str
) -> SetupDifference:
    return SetupDifference(
        name, values[0] or "(not known)", values[1] or "(not known)",
        "confounds" if confounds else "note", message,
    )  # fmt: skip
