"""Which rank the others wait for, and what it did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from stepscope.collectives.exposure import Pace, Parts, Work
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import BoolArray, IntArray

Mechanism = Literal["work", "rate", "idle", "copy", "mixed"]

_MAIN: Final = 0.5
"""The part that explains at least half of the lateness is its cause."""

WORK_SHARE: Final = 0.25
"""More work is the reason where at least this share of the surplus of time shows in what was
launched. Kernels with a fixed grid do their share inside, so launches show a part only; a slow
device launches exactly what the others do."""

LEAST_MORE: Final = 0.02
"""Launches that differ by less are the same work: counters, padding, kernels at a step's edge."""

_AS_MANY: Final = 0.001
"""Share by which threads differ at most that are as many: a kernel at a step's edge may count to
the next one."""

_IN_TURN: Final = 2.0
"""Late ranks take turns where the waits step by step are so many times what one rank causes."""

_COMMON: Final = 0.5
"""What the others have at least half as much of is the job's trouble and not one rank's."""

_TOOL: Final = "profiler_overhead"

_SAVING: Final = "checkpoint_stall"

_HOSTS: Final = (_TOOL, "launch_bound", "host_compute")
"""Idle time in which a host was at work that recording slows."""

_BETWEEN: Final = "small_kernels"

_PAIR: Final = 2

_NINE_OF_TEN = 1.64
"""Standard deviations to either side that hold nine of ten values."""


@dataclass(frozen=True)
class Lateness:
    """The rank (or ranks) that the others wait for.

    Attributes:
        devices: positions of the late devices.
        in_turn: whether another one of them is late from step to step.
        late_at: the late device of each window; -1 where none stands out.
        imposed_ns: how much earlier the job could go on if they were in time, ns a window: until
            the next one is late. Without what the capturing tool costs. Where the late device
            itself is slower or has more to do, the other hosts count with what they need at least.
        sure_ns: the same with all hosts at the pace that they have in the capture.
        others_wait_ns: median of what the other devices wait with nothing to cover it, ns a
            window.
        mechanism: ``work`` (more of it), ``rate`` (the same work takes longer), ``idle`` (the
            host left the device idle), ``copy`` or ``mixed``.
        idle_cause: with ``idle``, what the surplus of idle time is charged to.
        common: whether the others have the same trouble, hidden behind their waiting.
        surplus_ns: what the late devices spend beyond the others, by part, ns a window.
        more_work: largest ratio of what was launched on the late device and on the others.
        more_kernels: ratio of the kernels that were launched.
        more_time: ratio of their compute time.
        varies: whether what is launched differs from step to step.
        chance: share by which as many other steps would have more or less of what late devices
            impose, in nine of ten cases; 0 where one device is late for good.
        longer: category of the kernels that take longer on the late devices, where other products
            do not: the devices are not slow, and launches do not show what those kernels were
            given to do.
    """

    devices: list[int]
    in_turn: bool
    late_at: IntArray
    imposed_ns: float
    others_wait_ns: float
    mechanism: Mechanism
    idle_cause: str | None
    common: bool
    sure_ns: float = 0.0
    surplus_ns: dict[str, float] = field(default_factory=dict)
    more_work: float = 1.0
    more_kernels: float = 1.0
    more_time: float = 1.0
    varies: bool = False
    chance: float = 0.0
    longer: str = ""

    @property
    def same_kernels(self) -> bool:
        """Whether late devices launch the kernels of the others: what they have more of is data.

        Kernels beyond those of the others then explain, at what one takes on the late devices, less
        than half of the time. A few there are wherever larger operands take other algorithms.
        """
        further = (self.more_kernels - 1) / max(self.more_kernels, 1.0) * self.more_time
        return further < _MAIN * (self.more_time - 1)

    @property
    def uneven_data(self) -> bool:
        """Whether the same devices always get more of data that differs from step to step.

        Samples, tokens and nodes that one of them does not get go to the others. Where each step is
        like the last one, what it has more of is as it was set up (its batch, a further model),
        and can be as on the others.
        """
        return self.same_kernels and self.varies and not self.in_turn


def own_time(parts: Parts, paces: list[Pace], *, at_least: bool = False) -> npt.NDArray[np.float64]:
    """What each device would need for each window on its own account, ns (windows x devices).

    The longer of what the device did but wait and what the host did but wait, each without what
    the capturing tool cost: of the device, the idle time that a host left which it slowed. Of a
    host only the mean is known: where it stops for long in a few windows, that mean is more than
    the others lasted, and none needed longer than it lasted.

    Args:
        parts: where the time of the devices goes.
        paces: what their hosts need.
        at_least: count hosts with what they need at least.
    """
    tool = np.array([p.recording_ns for p in paces])[None, :]
    hidden = np.minimum(_idle(parts, _HOSTS), np.maximum(recording_idle(parts), tool))
    device = parts.wall - parts.waiting - parts.missing - hidden
    host = np.array(
        [p.least_ns if at_least else max(p.need_ns - p.recording_ns, 0.0) for p in paces]
    )
    hosts = np.minimum(host[None, :], parts.wall)
    need: npt.NDArray[np.float64] = np.maximum(device.astype(np.float64), hosts)
    return need


def beyond_mean_ns(parts: Parts) -> npt.NDArray[np.float64]:
    """What the device that computes longest in each window computes beyond the mean of all, ns.

    That is what work gains that is shared out evenly; none of it is gone.
    """
    found: npt.NDArray[np.float64] = parts.compute.max(axis=1) - parts.compute.mean(axis=1)
    return found


def lateness(parts: Parts, work: Work, paces: list[Pace]) -> Lateness | None:
    """Who is late; None where nobody is.

    The late rank is the one that needs most on its own account. Up to half of the ranks may be
    late together (the GPUs of a slow machine): the set ends where the needs make their largest
    step. A rank that waits longer than the others is never the late one, whatever it needs: the
    capturing tool costs, and a host's pace is an estimate, but who waits is seen.
    """
    n_windows, n = parts.wall.shape
    if n < 2 or not n_windows or not parts.waiting.any():
        return None
    need = own_time(parts, paces)
    total = need.sum(axis=0)
    order = np.argsort(-total, kind="stable")
    steps = -np.diff(total[order])[: max(n // 2, 1)]
    size = int(np.argmax(steps)) + 1
    lasting = float(steps[size - 1]) / n_windows
    drawn = _drawn(parts, work, paces, need, lasting)
    if drawn is not None:
        return drawn
    ranked = np.sort(need, axis=1)
    each = ranked[:, -1] - ranked[:, -2]
    late, leader, turns = _leaders(need, each)
    in_turn = float(each.mean()) > _IN_TURN * lasting and len(turns) > 1
    if in_turn:
        imposed, late_at = float(each.mean()), leader
    else:
        devices, imposed = sorted(order[:size].tolist()), lasting
        late[:, :] = False
        late[:, devices] = True
        late_at = np.array(devices)[np.argmax(need[:, devices], axis=1)]
    if imposed <= 0 or (_waits_more(parts, late) and not _busy_longest(parts, paces, need, late)):
        return None
    if in_turn:
        return _in_turns(parts, work, paces, late, late_at, each)
    found = _late(parts, work, paces, late, late_at, imposed)
    if found.mechanism not in ("work", "rate"):
        return found
    least = own_time(parts, paces, at_least=True).sum(axis=0) / n_windows
    at_least = float(least[found.devices].min() - least[_others(found.devices, n)].max())
    return replace(found, imposed_ns=max(imposed, at_least))


def _late(
    parts: Parts,
    work: Work,
    paces: list[Pace],
    late: BoolArray,
    late_at: IntArray,
    imposed_ns: float,
) -> Lateness:
    """Devices that are late for good, and why.

    Args:
        parts: where the time goes.
        work: what was launched.
        paces: what the hosts need.
        late: which device is late in which window.
        late_at: the late device of each window.
        imposed_ns: what it costs the job, ns a window.
    """
    surplus, (mechanism, idle_cause, more_work, more_time) = why_late(
        parts, work, paces, late, imposed_ns
    )
    devices = np.flatnonzero(late.any(axis=0)).tolist()
    others = _others(devices, late.shape[1])
    return Lateness(
        devices=devices,
        in_turn=False,
        late_at=late_at,
        imposed_ns=imposed_ns,
        sure_ns=imposed_ns,
        others_wait_ns=float(np.median(parts.waiting[:, others].mean(axis=0))),
        mechanism=mechanism,
        idle_cause=idle_cause,
        common=_common(parts, late, surplus, idle_cause),
        surplus_ns=surplus,
        more_work=more_work,
        more_kernels=_more(work.kernels, late),
        more_time=more_time,
        varies=_varies(work),
    )


def _varies(work: Work) -> bool:
    """Whether the threads that some device launches differ in most of its windows."""
    threads = work.threads.astype(np.float64)
    usual = np.median(threads, axis=0)
    alike = np.abs(threads - usual) <= _AS_MANY * usual
    return bool((alike.mean(axis=0) < _MAIN).any())


def _in_turns(
    parts: Parts,
    work: Work,
    paces: list[Pace],
    late: BoolArray,
    late_at: IntArray,
    each: npt.NDArray[np.float64],
) -> Lateness:
    """Devices of which another one is late from step to step, by what each window costs, ns."""
    found = _late(parts, work, paces, late, late_at, float(each.mean()))
    return replace(found, in_turn=True, chance=chance_of(each))


def _others(devices: list[int], count: int) -> list[int]:
    """The devices that are not among some; all where there are no others."""
    return [d for d in range(count) if d not in devices] or list(range(count))


def _leaders(
    need: npt.NDArray[np.float64], each: npt.NDArray[np.float64]
) -> tuple[BoolArray, IntArray, list[int]]:
    """Who is late in which window, its device (-1 for none), and all that are so once.

    Windows without a late rank say nothing about why one is late.
    """
    stands_out = each >= 0.5 * each.max()
    leader = np.where(stands_out, np.argmax(need, axis=1), -1)
    late = np.zeros(need.shape, bool)
    late[np.flatnonzero(stands_out), leader[stands_out]] = True
    return late, leader, distinct_values(leader[stands_out]).tolist()


def _drawn(
    parts: Parts,
    work: Work,
    paces: list[Pace],
    need: npt.NDArray[np.float64],
    lasting: float,
) -> Lateness | None:
    """More than two devices that are given another amount of work in each window; else None.

    With many of them the second one needs nearly as much as the longest: what that one imposes is
    what it needs beyond the typical other. The windows last as long as the longest of each, and
    that is more than any device needs on average.
    """
    if need.shape[1] <= _PAIR:
        return None
    ranked = np.sort(need, axis=1)
    changing = float(ranked[:, -1].mean() - need.mean(axis=0).max())
    each = ranked[:, -1] - np.median(ranked[:, :-1], axis=1)
    late, leader, turns = _leaders(need, each)
    # of two devices the same as _IN_TURN
    if len(turns) <= 1 or changing <= (_IN_TURN - 1) / 2 * lasting or _waits_more(parts, late):
        return None
    found = _in_turns(parts, work, paces, late, leader, each)
    return found if found.mechanism == "work" else None


def chance_of(each: npt.NDArray[np.float64]) -> float:
    """The share by which the mean of some draws may be off, in nine of ten cases."""
    if len(each) < 2 or not each.mean():
        return 0.0
    return float(_NINE_OF_TEN * each.std(ddof=1) / each.mean() / len(each) ** 0.5)


def why_late(
    parts: Parts, work: Work, paces: list[Pace], late: BoolArray, imposed: float
) -> tuple[dict[str, float], tuple[Mechanism, str | None, float, float]]:
    """What late devices spend beyond the others, by part, and what makes them late.

    Args:
        parts: where the time goes.
        work: what was launched.
        paces: what the hosts need.
        late: which device is late in which window.
        imposed: what it costs the job, ns a window.

    Returns:
        The surplus by part, ns a window; mechanism, idle cause, ratio of work, ratio of compute.
    """
    devices = np.flatnonzero(late.any(axis=0)).tolist()
    surplus = {
        name: _surplus(time, late) for name, time in parts.own().items() if name != f"idle {_TOOL}"
    }
    _saving_as_one(surplus, parts, late)
    _less_hidden(surplus, parts, paces, late)
    return surplus, _mechanism(parts, work, late, surplus, imposed, _launching(paces, devices))


def _saving_as_one(surplus: dict[str, float], parts: Parts, late: BoolArray) -> None:
    """Count the copies of the windows in which a late device saves its state to the saving.

    A state that is saved is read back and written: half of such a stall may be copies, and then
    neither half explains most of the lateness.
    """
    saving = parts.idle.get(_SAVING)
    if saving is None:
        return
    stalled = np.any((saving > 0) & late, axis=1, keepdims=True)
    copies = _surplus(np.where(stalled, parts.copy, 0), late)
    if copies > 0:
        surplus["copy"] -= copies
        surplus[f"idle {_SAVING}"] += copies


def _waits_more(parts: Parts, late: BoolArray) -> bool:
    """Whether the devices that need most wait longer for others than others wait for them."""
    mine, others = _late_and_others(parts.waiting, late)
    return mine > others


def _busy_longest(
    parts: Parts, paces: list[Pace], need: npt.NDArray[np.float64], late: BoolArray
) -> bool:
    """Whether what the late devices execute takes longer than all that the others need.

    Recording slows hosts and no kernels, nor what a device takes from one to the next that is
    enqueued already: such a device is late once nothing is recorded, whoever waits for whom while
    it is.
    """
    if not any(pace.recording_ns for pace in paces):
        return False
    idle = _idle(parts, tuple(cause for cause in parts.idle if cause != _BETWEEN))
    busy = (parts.wall - parts.waiting - parts.missing - idle).astype(np.float64)
    rows = late.any(axis=1)
    mine = float(np.where(late, busy, np.inf)[rows].min(axis=1).sum())
    return mine > float(np.where(late, 0, need)[rows].max(axis=1).sum())


def recording_idle(parts: Parts) -> IntArray:
    """Idle time that is charged to recording (windows x devices), ns."""
    return _idle(parts, (_TOOL,))


def _idle(parts: Parts, causes: tuple[str, ...]) -> IntArray:
    """Idle time of some causes (windows x devices), ns."""
    found = np.zeros_like(parts.wall)
    for cause in causes:
        found += parts.idle.get(cause, 0)
    return found


def _late_and_others(values: IntArray, late: BoolArray) -> tuple[float, float]:
    """(late devices, typical other device), summed over the windows with a late device."""
    rows = late.any(axis=1)
    mine = np.where(late, values, 0).sum(axis=1)[rows] / late.sum(axis=1)[rows]
    others = np.nan_to_num(np.nanmedian(np.where(late, np.nan, values)[rows], axis=1))
    return float(mine.sum()), float(others.sum())


def _more(launched: IntArray, late: BoolArray) -> float:
    mine, others = _late_and_others(launched, late)
    return mine / max(others, 1.0)


def _surplus(values: IntArray, late: BoolArray) -> float:
    mine, others = _late_and_others(values, late)
    return (mine - others) / len(late)


def _less_hidden(
    surplus: dict[str, float], parts: Parts, paces: list[Pace], late: BoolArray
) -> None:
    """Take from the surplus of idle time what the other hosts need as well.

    Where a device waits inside a collective, its host's slowness leaves no idle time to see. It
    shows in what that host needs for a window beyond all that its device did, so no more than that
    is taken. A host that merely calls as long as another one, and is ready before its device, hides
    nothing.
    """
    devices = np.flatnonzero(late.any(axis=0)).tolist()
    others = [pace for d, pace in enumerate(paces) if d not in devices]
    mine = [paces[d] for d in devices]
    if not others or not all(pace.need_ns for pace in paces):
        return
    seen = own_time(parts, [replace(pace, need_ns=0.0) for pace in paces])
    hidden = np.rint(own_time(parts, paces) - seen).astype(np.int64)
    most = max(0.0, -_surplus(hidden, late))

    def more(name: str) -> float:
        typical = float(np.median([getattr(pace, name) for pace in others]))
        return max(0.0, float(np.mean([getattr(pace, name) for pace in mine])) - typical)

    taken = {
        part: max(0.0, surplus[part] - more(name))
        for part, name in (
            ("idle launch_bound", "calling_ns"),
            ("idle host_compute", "untraced_ns"),
            ("idle input_starvation", "untraced_ns"),
        )
        if part in surplus
    }
    share = min(1.0, most / max(sum(taken.values()), 1.0))
    for part, time in taken.items():
        surplus[part] -= share * time


def _common(
    parts: Parts, late: BoolArray, surplus: dict[str, float], idle_cause: str | None
) -> bool:
    """Whether the others suffer from the same, too."""
    if idle_cause is None:
        return False
    level = _late_and_others(parts.idle[idle_cause], late)[0] / len(late)
    return level - surplus[f"idle {idle_cause}"] >= _COMMON * level


def _launching(paces: list[Pace], devices: list[int]) -> float:
    """What launching takes some hosts over what it takes the others; 0 if unknown."""
    mine = [pace.calling_ns for d, pace in enumerate(paces) if d in devices]
    others = [pace.calling_ns for d, pace in enumerate(paces) if d not in devices]
    if not others or not all(mine) or not all(others):
        return 0.0
    return float(np.mean(mine) / np.median(others))


def _mechanism(
    parts: Parts,
    work: Work,
    late: BoolArray,
    surplus: dict[str, float],
    imposed: float,
    launching: float,
) -> tuple[Mechanism, str | None, float, float]:
    """(mechanism, idle cause, ratio of work, ratio of compute time)."""
    mine, compute = _late_and_others(parts.compute, late)
    more_time = mine / max(compute, 1.0)
    ratios = [_more(launched, late) for launched in (work.kernels, work.threads)]
    more_work = max(ratios)
    # kernels that take longer come first: what the host does meanwhile follows from them
    name = max(surplus, key=lambda part: surplus[part])
    if surplus["compute"] >= _MAIN * imposed:
        name = "compute"
    if surplus[name] < _MAIN * imposed:
        return "mixed", None, more_work, more_time
    more, took = more_work, more_time
    launches = name in ("idle launch_bound", "idle small_kernels")
    if launches:
        more, took = ratios[0], 1 + surplus[name] * len(late) / max(compute, 1.0)
        if name == "idle launch_bound" and launching:
            took = launching  # three times the launches take a host three times as long
    found: Mechanism = "mixed"
    idle_cause = None
    if (name == "compute" or launches) and more - 1 >= max(LEAST_MORE, WORK_SHARE * (took - 1)):
        found = "work"
    elif name == "compute":
        found = "rate"
    elif name.startswith("idle ") and name != "idle unexplained":
        found, idle_cause = "idle", name.removeprefix("idle ")
    elif name in ("copy", "memset"):
        found = "copy"
    return found, idle_cause, more_work, more_time
