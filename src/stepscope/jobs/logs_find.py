"""What logs of NCCL Inspector show: who comes last, which transfers are slow, whose log ends early.

The rank that comes last to a collective has the shortest kernel. A rank is late where it comes last
far more often than one of so many ranks would by chance: the binomial distribution tells, for one
false alarm in a hundred jobs over all ranks, machines, communicators and pairs that are looked at.
Transfers are compared between communicators alike (as many ranks and machines, the same collective
and size): inside one, a slow link slows all its ranks alike. From eight alike on, that is the test
of the job's digests (:mod:`.job_outliers`), below it a sign test over the collectives.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among
from stepscope.jobs.job_outliers import ALARMS, ENOUGH, scores
from stepscope.jobs.job_result import LogKind
from stepscope.jobs.logs_match import Collectives, Group, Logs
from stepscope.trace.frame import AnyArray, IntArray

LEAST_MATCHED: Final = 8
"""Collectives from which on something can be said of a communicator."""

NOTABLE_NS: Final = 10_000
"""Waiting below this is the jitter of launches; logs tell microseconds."""

_NOTABLE_SHARE: Final = 0.1
"""Part of a collective's time from which on waiting in it counts."""

_WORTH: Final = 0.05
"""Part of the time of all collectives from which on a finding is told."""

_SLOWED: Final = 1.2
"""Transfers that take so many times what those alike take are slow, as from digests."""

_CLEAR_NS: Final = 1000
"""The last must come at least so much after the one before it: logs tell microseconds."""


@dataclass(frozen=True)
class Shown:
    """One conclusion.

    Attributes:
        kind: what it is.
        gpus: positions of the GPUs it is about.
        node: the machine that is late as a whole; empty for single ranks.
        groups: positions of the communicators that show it, the clearest first.
        name: the collective or message; empty for several.
        bytes: its size; -1 for several.
        looked_at: operations that were looked at.
        showing: those that show it.
        excess_ns: how much longer these take, mean, ns.
        share: part of the time of the operations looked at.
        cost_ns: what it costs in all of them, ns.
        score: robust standard deviations; NaN for too few.
        bound: what counts; NaN likewise.
        ratio: how many times what those alike take; 1 where nothing is compared.
        waits_for: another GPU that these wait for, in another communicator; -1 for none.
        several: whether more than one GPU may be the cause.
    """

    kind: LogKind
    gpus: list[int]
    groups: list[int]
    looked_at: int
    showing: int
    excess_ns: float
    share: float
    cost_ns: float
    node: str = ""
    name: str = ""
    bytes: int = -1
    score: float = math.nan
    bound: float = math.nan
    ratio: float = 1.0
    waits_for: int = -1
    several: bool = False


@dataclass(frozen=True)
class Behind:
    """A collective that some ranks of a communicator completed, and others have no line of.

    Attributes:
        group: position of the communicator.
        name: the collective.
        number: the first that they lack, as NCCL counts.
        last: the last that the others completed.
        gpus: positions of the GPUs whose logs end before.
        others: positions of those that went on.
        since_ns: wall-clock time of the last line of those that ended first, ns; 0 for unknown.
    """

    group: int
    name: str
    number: int
    last: int
    gpus: list[int]
    others: list[int]
    since_ns: int


@dataclass
class Seen:
    """All that logs show.

    Attributes:
        shown: conclusions, the largest cost first.
        behind: where logs end early.
        too_few: communicators with too few matched collectives.
        uneven: communicators whose logs end all over, as copies of a running job's do.
    """

    shown: list[Shown] = field(default_factory=list)
    behind: list[Behind] = field(default_factory=list)
    too_few: int = 0
    uneven: int = 0


def chance(times: int, of: int, share: float) -> float:
    """Probability of at least so many hits in so many trials of some probability."""
    if times <= 0 or share >= 1:
        return 1.0
    if times > of or share <= 0:
        return 0.0
    whole = math.lgamma(of + 1)
    found = 0.0
    for k in range(times, of + 1):
        term = math.exp(
            whole - math.lgamma(k + 1) - math.lgamma(of - k + 1)
            + k * math.log(share) + (of - k) * math.log1p(-share)
        )  # fmt: skip
        found += term
        if k > of * share and term < 1e-12 * found:
            break  # from there on each is a smaller part of the one before
    return min(1.0, found)


def what_logs_show(logs: Logs) -> Seen:
    """Late ranks and machines, slow communicators and pairs of ranks, logs that end early."""
    seen = Seen()
    joint = [one.joint(logs.names) for one in logs.collectives]
    usable = [one for one in joint if len(one.number) >= LEAST_MATCHED]
    seen.too_few = sum(0 < len(one.number) < LEAST_MATCHED for one in joint)
    comparisons = sum(
        2 * len(logs.groups[one.group].gpus)
        + len(_machines(logs, logs.groups[one.group]))
        + len(distinct(one)[0])
        for one in usable
    ) + len(logs.messages)
    found: list[Shown] = []
    for one in usable:
        found += _late(logs, one, comparisons)
    shown = _with_causes(logs, _merged(found), usable)
    shown += _slow(logs, usable, comparisons)
    shown += _slow_pairs(logs, comparisons)
    for one in usable:
        shown += _ends_late(logs, one, comparisons)
    seen.shown = sorted(shown, key=lambda s: -s.cost_ns)
    _early_ends(logs, seen)
    return seen


def last_of(one: Collectives) -> tuple[IntArray, AnyArray]:
    """Who came last to each collective, -1 where nobody clearly did, and how many ns it cost."""
    time = np.where(np.isnan(one.time_ns), np.inf, one.time_ns)
    shortest = np.partition(time, 1, axis=1)[:, :2]
    waiting = one.waiting_ns
    notable = (waiting >= NOTABLE_NS) & (waiting >= _NOTABLE_SHARE * one.usual_ns)
    clear = notable & (shortest[:, 1] - shortest[:, 0] >= _CLEAR_NS)
    return np.where(clear, np.argmin(time, axis=1), -1), np.where(notable, waiting, 0.0)


def _machines(logs: Logs, group: Group) -> dict[str, list[int]]:
    """Machines with several ranks of a communicator that spans several: columns of each."""
    found: dict[str, list[int]] = defaultdict(list)
    for column, gpu in enumerate(group.gpus):
        found[logs.gpus[gpu].hostname].append(column)
    return {host: own for host, own in found.items() if len(own) > 1 and len(found) > 1}


def _late(logs: Logs, one: Collectives, comparisons: int) -> list[Shown]:
    """Ranks, and machines as a whole, that come last beyond chance and cost the others time."""
    group = logs.groups[one.group]
    last, waiting = last_of(one)
    width = len(group.gpus)
    waited = waiting > 0
    trials = int(waited.sum())
    total = float(one.usual_ns.sum())
    # a machine is late where its fastest rank still comes after all others
    found = []
    taken: set[int] = set()
    hits = np.bincount(last[last >= 0], minlength=width)
    for host, columns in _machines(logs, group).items():
        inside = np.where(np.isnan(one.time_ns), -np.inf, one.time_ns)
        mine = np.zeros(width, bool)
        mine[columns] = True
        after = waited & (inside[:, mine].max(axis=1) + NOTABLE_NS < _least(one, ~mine))
        times = int(after.sum())
        cost = float(waiting[after].sum())
        if cost < _WORTH * total:
            continue
        if chance(times, trials, len(columns) / width) * comparisons <= ALARMS:
            taken |= set(columns)
            found.append(_shown(logs, one, "late_node", columns, after, waiting, total, node=host))
    score, bound = _scored(one.some(waited), comparisons) if trials else (hits, hits)
    for column in np.flatnonzero(hits).tolist():
        own_rows = last == column
        cost = float(waiting[own_rows].sum())
        if column in taken or cost < _WORTH * total:
            continue
        if chance(int(hits[column]), trials, 1 / width) * comparisons <= ALARMS:
            # a rank that is late now and then stands out by how often, and not by its median
            clear = bool(score[column] > bound[column])
            found.append(
                _shown(logs, one, "late_rank", [column], own_rows, waiting, total,
                       score=float(score[column]) if clear else math.nan,
                       bound=float(bound[column]))
            )  # fmt: skip
    return found


def _least(one: Collectives, which: AnyArray) -> AnyArray:
    time = np.where(np.isnan(one.time_ns), np.inf, one.time_ns)
    found: AnyArray = time[:, which].min(axis=1)
    return found


def _scored(one: Collectives, comparisons: int) -> tuple[AnyArray, AnyArray]:
    """How late each rank comes beyond its peers, in robust standard deviations, and the bound."""
    late = one.usual_ns[:, None] - one.time_ns
    late = np.where(np.isnan(late), 0.0, late)
    found = scores(late, np.zeros(late.shape[1], np.int64))
    return found.score, found.bounds(comparisons)


def _shown(
    logs: Logs,
    one: Collectives,
    kind: LogKind,
    columns: Sequence[int],
    rows: AnyArray,
    excess: AnyArray,
    total: float,
    *,
    node: str = "",
    score: float = math.nan,
    bound: float = math.nan,
) -> Shown:
    names = set(one.name[rows].tolist())
    return Shown(
        kind,
        [logs.groups[one.group].gpus[column] for column in columns],
        [one.group],
        looked_at=len(one.number),
        showing=int(rows.sum()),
        excess_ns=float(excess[rows].mean()),
        share=float(excess[rows].sum()) / max(total, 1.0),
        cost_ns=float(excess[rows].sum()),
        node=node,
        name=logs.names[names.pop()] if len(names) == 1 else "",
        score=score,
        bound=bound,
    )


def _merged(found: Sequence[Shown]) -> list[Shown]:
    """The same GPUs in several communicators are one finding, told by the one that costs most."""
    by: dict[tuple[object, ...], list[Shown]] = defaultdict(list)
    for shown in found:
        by[shown.kind, shown.node or tuple(shown.gpus)].append(shown)
    answer = []
    for several in by.values():
        several.sort(key=lambda shown: -shown.cost_ns)
        first = several[0]
        gpus = sorted({gpu for shown in several for gpu in shown.gpus})
        groups = [group for shown in several for group in shown.groups]
        answer.append(replace(first, gpus=gpus, groups=groups))
    return answer


def _with_causes(logs: Logs, late: Sequence[Shown], usable: Sequence[Collectives]) -> list[Shown]:
    """Late ranks that wait themselves for another late rank, in another communicator: say so."""
    singles = {shown.gpus[0]: shown for shown in late if shown.kind == "late_rank"}
    answer = []
    for shown in late:
        waits_for, most = -1, 0.0
        for one in usable if shown.kind == "late_rank" else ():
            group = logs.groups[one.group]
            if one.group in shown.groups or shown.gpus[0] not in group.gpus:
                continue
            own = one.time_ns[:, group.gpus.index(shown.gpus[0])]
            last, _ = last_of(one)
            for column, gpu in enumerate(group.gpus):
                if gpu == shown.gpus[0] or gpu not in singles:
                    continue
                rows = (last == column) & ~np.isnan(own)
                waited = float((own - one.transfer_ns)[rows].sum())
                if waited > max(most, 0.5 * shown.cost_ns):
                    waits_for, most = gpu, waited
        answer.append(replace(shown, waits_for=waits_for))
    return answer


@dataclass(frozen=True)
class _Alike:
    """Transfers that can be compared with each other.

    Attributes:
        of: what each is about: a communicator, or a pair of ranks.
        name: the collective.
        bytes: message size, B.
        time_ns: one array of each, in order, ns.
    """

    of: list[int]
    name: str
    bytes: int
    time_ns: list[AnyArray]


@dataclass(frozen=True)
class _Slowed:
    of: int
    alike: _Alike
    at: int
    looked_at: int
    showing: int
    usual_ns: float
    excess_ns: float
    score: float
    bound: float

    @property
    def ratio(self) -> float:
        return 1 + self.excess_ns / max(self.usual_ns, 1.0)


def _slowed(alike: _Alike, comparisons: int) -> list[_Slowed]:
    """Which of some transfers alike are slow."""
    length = min(len(times) for times in alike.time_ns)
    if length < LEAST_MATCHED or len(alike.of) < 2:
        return []
    values = np.stack([times[:length] for times in alike.time_ns], axis=1)
    middle = np.median(values, axis=0)
    scored = scores(values, np.zeros(values.shape[1], np.int64))
    bounds = scored.bounds(comparisons)
    found = []
    for at in range(len(alike.of)):
        others = np.delete(values, at, axis=1)
        usual = float(np.median(np.delete(middle, at)))
        slower = values[:, at] >= _SLOWED * np.median(others, axis=1)
        if middle[at] < max(_SLOWED * usual, usual + _CLEAR_NS):
            continue
        if len(alike.of) >= ENOUGH:
            beyond = bool(scored.score[at] > bounds[at])
        else:
            beyond = chance(int(slower.sum()), length, 0.5) * comparisons <= ALARMS
        if beyond:
            found.append(
                _Slowed(alike.of[at], alike, at, length, int(slower.sum()), usual,
                        float(middle[at]) - usual, float(scored.score[at]), float(bounds[at]))
            )  # fmt: skip
    return found


def _slow(logs: Logs, usable: Sequence[Collectives], comparisons: int) -> list[Shown]:
    """Communicators whose transfers are slow beside those alike, and the ranks that they share."""
    alike: dict[tuple[int, int, int, int], dict[int, AnyArray]] = defaultdict(dict)
    for one in usable:
        group = logs.groups[one.group]
        if not group.whole or group.size < 2:
            continue  # without all ranks the shortest kernel may hold waiting
        pair, which = distinct(one)
        for at, (name, size) in enumerate(pair):
            alike[group.size, group.nodes, name, size][one.group] = one.transfer_ns[which == at]
    compared: dict[int, set[int]] = defaultdict(set)
    slow: dict[int, list[_Slowed]] = defaultdict(list)
    for (_, nodes, name, size), times in alike.items():
        if len(times) < 2:
            continue
        kind = _Alike(list(times), logs.names[name], size, list(times.values()))
        for number in times:
            compared[nodes > 1].add(number)
        for one_slow in _slowed(kind, comparisons):
            slow[one_slow.of].append(one_slow)
    worst = {
        number: max(several, key=lambda s: s.excess_ns * s.looked_at)
        for number, several in slow.items()
    }
    total = sum(float(times.sum()) for several in alike.values() for times in several.values())
    answer = []
    for across in (False, True):
        numbers = [n for n in worst if (logs.groups[n].nodes > 1) == across]
        cost = sum(worst[n].excess_ns * worst[n].looked_at for n in numbers)
        if not numbers or cost < _WORTH * total / max(len(compared[across]), 1):
            continue
        numbers.sort(key=lambda n: -worst[n].excess_ns * worst[n].looked_at)
        first = worst[numbers[0]]
        gpus, several = _shared(logs, numbers, compared[across])
        hosts = {logs.gpus[gpu].hostname for gpu in gpus}
        answer.append(
            Shown(
                "slow_communicator",
                gpus,
                numbers,
                looked_at=first.looked_at,
                showing=first.showing,
                excess_ns=first.excess_ns,
                share=cost / max(total, 1.0),
                cost_ns=cost,
                node=hosts.pop() if len(hosts) == 1 else "",
                name=first.alike.name,
                bytes=first.alike.bytes,
                score=first.score,
                bound=first.bound,
                ratio=first.ratio,
                several=several,
            )
        )
    return answer


def distinct(one: Collectives) -> tuple[list[tuple[int, int]], IntArray]:
    """(collective, size) of the distinct ones, and which each is."""
    pairs: dict[tuple[int, int], int] = {}
    which = [
        pairs.setdefault(pair, len(pairs))
        for pair in zip(one.name.tolist(), one.bytes.tolist(), strict=True)
    ]
    return list(pairs), np.array(which, np.int64)


def _shared(logs: Logs, slow: Sequence[int], compared: set[int]) -> tuple[list[int], bool]:
    """GPUs whose communicators of this kind are all slow, and whether whose link it is stays open.

    Where each is in one communicator only, all its ranks stand.
    """
    whole: dict[int, int] = defaultdict(int)
    slowed: dict[int, int] = defaultdict(int)
    for number in compared:
        for gpu in logs.groups[number].gpus:
            whole[gpu] += 1
            slowed[gpu] += number in slow
    found = sorted(gpu for gpu in whole if slowed[gpu] == whole[gpu])
    if not found:
        found = sorted({gpu for number in slow for gpu in logs.groups[number].gpus})
        return found, True
    crossing = all(whole[gpu] > 1 for gpu in found)
    hosts = {logs.gpus[gpu].hostname for gpu in found}
    return found, not crossing and not (len(slow) > 1 and len(hosts) == 1)


def _slow_pairs(logs: Logs, comparisons: int) -> list[Shown]:
    """Pairs of ranks whose messages take longer than those of the same size between others."""
    alike: dict[tuple[bool, int], dict[int, AnyArray]] = defaultdict(dict)
    for number, one in enumerate(logs.messages):
        group = logs.groups[one.group]
        hosts = {
            logs.gpus[group.gpus[group.inside.index(rank)]].hostname
            for rank in (one.sender, one.receiver)
        }
        for size in sorted(set(one.bytes.tolist())):
            alike[len(hosts) > 1, size][number] = one.time_ns[one.bytes == size]
    answer = []
    for (_, size), times in alike.items():
        kind = _Alike(list(times), "Send", size, list(times.values()))
        total = sum(float(t.sum()) for t in times.values())
        for slow in _slowed(kind, comparisons):
            one = logs.messages[slow.of]
            group = logs.groups[one.group]
            cost = slow.excess_ns * slow.looked_at
            if cost < _WORTH * total / len(times):
                continue
            pair = [group.gpus[group.inside.index(r)] for r in (one.sender, one.receiver)]
            answer.append(
                Shown("slow_pair", pair, [one.group], slow.looked_at, slow.showing, slow.excess_ns,
                      cost / max(total, 1.0), cost, name="Send", bytes=size, score=slow.score,
                      bound=slow.bound, ratio=slow.ratio)
            )  # fmt: skip
    return answer


def _ends_late(logs: Logs, one: Collectives, comparisons: int) -> list[Shown]:
    """Ranks whose kernels end after those of the others on the same machine; host timestamps tell.

    On one machine there is one clock; between machines nothing tells an end that is late from a
    clock that is.
    """
    group = logs.groups[one.group]
    found = []
    hosts: dict[str, list[int]] = defaultdict(list)
    for column, gpu in enumerate(group.gpus):
        hosts[logs.gpus[gpu].hostname].append(column)
    total = float(one.usual_ns.sum())
    for columns in hosts.values():
        end = one.end_ns[:, columns]
        rows = ~np.isnan(end).any(axis=1)
        if len(columns) < 3 or rows.sum() < LEAST_MATCHED:
            continue
        after = end[rows] - np.median(end[rows], axis=1, keepdims=True)
        last = np.argmax(after, axis=1)
        for at, column in enumerate(columns):
            excess = np.zeros(len(one.number))
            excess[rows] = after[:, at]
            mine = np.zeros(len(one.number), bool)
            mine[rows] = (last == at) & (after[:, at] >= NOTABLE_NS)
            cost = float(excess[mine].sum())
            odds = chance(int(mine.sum()), int(rows.sum()), 1 / len(columns))
            if cost >= _WORTH * total and odds * comparisons <= ALARMS:
                found.append(_shown(logs, one, "ends_late", [column], mine, excess, total))
    return found


def _early_ends(logs: Logs, seen: Seen) -> None:
    """Logs that end before those of the other ranks of a communicator.

    At least half of the ranks must end at the same number, as those do that wait: the logs of a job
    that still runs are copied one after the other, and end all over.
    """
    for (number, name), last in logs.last.items():
        group = logs.groups[number]
        if len(last) < 2:
            continue
        most = int(last.max())
        whole = last == most
        early = np.flatnonzero((most - last) > np.maximum(logs.lost[number, name], 0))
        if not len(early):
            continue
        if whole.mean() < 0.5:
            seen.uneven += 1
            continue
        first = int(last[early].min())
        never = early[among(last[early], [first])]
        gpus = [group.gpus[column] for column in never.tolist()]
        when = [int(logs.written_ns[gpu]) for gpu in gpus]
        seen.behind.append(
            Behind(
                number,
                logs.names[name],
                first + 1,
                most,
                gpus,
                [group.gpus[column] for column in np.flatnonzero(whole).tolist()],
                min(when),
            )
        )
    seen.behind.sort(key=lambda one: (one.since_ns, one.group, one.number))
