"""Logs of NCCL Inspector put together: which operations of the ranks are one collective.

NCCL counts the collectives of a communicator by name, so id, name and number make one of them. A
kernel's time in the log includes waiting: of the ranks of one collective the one that comes last
has the shortest, which is the transfer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from stepscope.intervals.distinct import with_inverse
from stepscope.trace.frame import AnyArray, IntArray
from stepscope.trace.recorded import LoggedOperations, LoggedRank

JOINT: Final = frozenset({"AllReduce", "AllGather", "AllGatherV", "ReduceScatter", "All2All"})
"""Collectives that end on no rank before all have begun. The root of a broadcast goes on as soon as
its data are on their way, so that its short kernel says nothing about when it came."""

_PRESENT: Final = 2 / 3
"""Share of a communicator's logs that must hold a collective: logs lose some lines."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of the job: a process, or one of the ranks that a process has in a communicator.

    Attributes:
        hostname: its machine.
        process: process id there.
        rank: its rank in the job; -1 where nothing tells.
        inside: rank inside the communicator and its name, for a rank that nothing tells.
    """

    hostname: str
    process: int
    rank: int
    inside: str

    @property
    def text(self) -> str:
        """The GPU in a sentence."""
        where = f"{self.hostname}, process {self.process}" if self.hostname else "unknown host"
        return f"rank {self.rank} ({where})" if self.rank >= 0 else f"{self.inside} ({where})"


@dataclass(frozen=True)
class Group:
    """One communicator.

    Attributes:
        id: its id.
        name: its name in a sentence.
        size: ranks that it has.
        nodes: machines that it spans.
        gpus: position among all GPUs of each rank that left a log, by rank inside.
        inside: rank inside of each of these.
    """

    id: str
    name: str
    size: int
    nodes: int
    gpus: list[int]
    inside: list[int]

    @property
    def whole(self) -> bool:
        """Whether all its ranks left a log."""
        return len(self.gpus) == self.size

    @property
    def missing(self) -> list[int]:
        """Ranks inside it that left none."""
        return sorted(set(range(self.size)) - set(self.inside))


@dataclass(frozen=True)
class Collectives:
    """The collectives of one communicator, one a row, one column a rank that left a log.

    Attributes:
        group: position of the communicator.
        name: of the collectives, position in the names of all.
        number: their count, as NCCL counts them by name.
        bytes: message size, B.
        time_ns: time of the kernels, ns; NaN where a log lacks it.
        end_ns: when the host saw them end, on the clock of each machine, ns since the first end of
            all; NaN where not logged.
    """

    group: int
    name: IntArray
    number: IntArray
    bytes: IntArray
    time_ns: AnyArray
    end_ns: AnyArray

    def joint(self, names: Sequence[str]) -> Collectives:
        """Those that end on no rank before all have begun."""
        return self.some(np.array([name in JOINT for name in names] or [False])[self.name])

    def some(self, rows: AnyArray) -> Collectives:
        """Some of them."""
        return Collectives(
            self.group, self.name[rows], self.number[rows], self.bytes[rows],
            self.time_ns[rows], self.end_ns[rows],
        )  # fmt: skip

    @property
    def transfer_ns(self) -> AnyArray:
        """From the last begin to the end, ns."""
        found: AnyArray = np.nanmin(self.time_ns, axis=1)
        return found

    @property
    def waiting_ns(self) -> AnyArray:
        """What a rank waits in each, mean of the ranks, ns."""
        found: AnyArray = np.nanmean(self.time_ns, axis=1) - self.transfer_ns
        return found

    @property
    def usual_ns(self) -> AnyArray:
        """Time of the kernel, median of the ranks, ns."""
        found: AnyArray = np.nanmedian(self.time_ns, axis=1)
        return found


@dataclass(frozen=True)
class Messages:
    """Messages from one rank to another of a communicator, in their order.

    Attributes:
        group: position of the communicator.
        sender: rank inside it.
        receiver: likewise.
        bytes: size, B.
        time_ns: the shorter of the kernels of both sides, ns: the later one waits for nobody.
    """

    group: int
    sender: int
    receiver: int
    bytes: IntArray
    time_ns: AnyArray


@dataclass(frozen=True)
class Logs:
    """All logs of a job.

    Attributes:
        gpus: the GPUs.
        groups: the communicators.
        names: collectives by name.
        collectives: those of each communicator that has some in the logs of several ranks.
        messages: between two ranks.
        last: (communicator, name) -> last number of each rank that left a log, -1 for none.
        lost: (communicator, name) -> longest run of numbers, of those that others have, that each
            rank lacks before its last one.
        written_ns: when the last line of each GPU was written, ns since 1970; 0 where unknown.
        unpaired: pairs of ranks whose messages do not match one to one.
        warnings: what was assumed or odd.
        operations: lines.
        by_host: whether some kernels were timed on the call only.
    """

    gpus: list[Gpu]
    groups: list[Group]
    names: list[str]
    collectives: list[Collectives]
    messages: list[Messages]
    last: dict[tuple[int, int], IntArray]
    lost: dict[tuple[int, int], IntArray]
    written_ns: IntArray
    unpaired: int = 0
    warnings: list[str] = field(default_factory=list)
    operations: int = 0
    by_host: bool = False


@dataclass(frozen=True)
class _Rows:
    """The operations of all logs; ``rank`` is the position in ``ranks``."""

    ranks: list[LoggedRank]
    names: list[str]
    columns: dict[str, AnyArray]


def matched(logs: Sequence[LoggedOperations], known: dict[tuple[str, int], int]) -> Logs:
    """Match the operations of logs.

    Args:
        logs: the logs.
        known: (machine, process) -> rank in the job, as digests tell.
    """
    warnings: list[str] = []
    rows = _together(logs, warnings)
    warnings += _dropped(logs)
    gpus, groups, where = _who(rows.ranks, known)
    c = rows.columns
    collectives = []
    last: dict[tuple[int, int], IntArray] = {}
    lost: dict[tuple[int, int], IntArray] = {}
    single = c["peer"] < 0
    group_of = np.array([group for group, _ in where], np.int64)
    column_of = np.array([column for _, column in where], np.int64)
    order = np.flatnonzero(single)
    order = order[np.argsort(group_of[c["rank"][order]], kind="stable")]
    bounds = np.searchsorted(group_of[c["rank"][order]], np.arange(len(groups) + 1))
    for number, group in enumerate(groups):
        own = order[bounds[number] : bounds[number + 1]]
        if not len(own):
            continue
        found, logged = _matrix(c, own, column_of, number, len(group.gpus))
        _ends(found, logged, last, lost)
        enough = (~np.isnan(found.time_ns)).sum(axis=1) >= max(2, _PRESENT * len(group.gpus))
        if enough.any():
            collectives.append(found.some(enough))
    messages, unpaired = _messages(c, ~single, group_of, column_of, groups, rows.names)
    gpu_of = np.array([groups[group].gpus[column] for group, column in where], np.int64)
    written = np.zeros(len(gpus), np.int64)
    np.maximum.at(written, gpu_of[c["rank"]], c["dumped_ns"])
    return Logs(
        gpus, groups, rows.names, collectives, messages, last, lost, written, unpaired, warnings,
        len(c["rank"]), bool((~c["timed"]).any()),
    )  # fmt: skip


def _dropped(logs: Sequence[LoggedOperations]) -> list[str]:
    """What the plugin itself says that the logs lack."""
    lacking = [log for log in logs if log.dropped]
    if not lacking:
        return []
    kinds: dict[str, int] = {}
    for log in lacking:
        for kind, count in log.dropped.items():
            kinds[kind] = kinds.get(kind, 0) + count
    worst = max(lacking, key=lambda log: sum(log.dropped.values()))
    counts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()))
    return [
        f"NCCL Inspector dropped at least {sum(kinds.values()):,} records ({counts}) that "
        f"{len(lacking):,} of {len(logs):,} logs therefore lack, most of them {worst.path}; write "
        "more often (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS), or raise "
        "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE and NCCL_INSPECTOR_DUMP_P2P_RING_SIZE"
    ]


def _together(logs: Sequence[LoggedOperations], warnings: list[str]) -> _Rows:
    """The rows of all logs; of a rank that two logs hold, those of the first."""
    ranks: list[LoggedRank] = []
    names: dict[str, int] = {}
    first: dict[tuple[str, int, int], str] = {}
    columns: dict[str, list[AnyArray]] = {}
    for log in logs:
        places = np.full(len(log.ranks), -1, np.int64)
        for at, rank in enumerate(log.ranks):
            taken = first.setdefault((rank.communicator, rank.size, rank.rank), log.path)
            if taken != log.path:
                warnings.append(
                    f"{log.path} and {taken} both hold rank {rank.rank} of communicator "
                    f"{rank.communicator}; the first counts"
                )
                continue
            places[at] = len(ranks)
            ranks.append(rank)
        named = np.array([names.setdefault(name, len(names)) for name in log.names], np.int64)
        keep = places[log.rank] >= 0
        columns.setdefault("rank", []).append(places[log.rank][keep])
        columns.setdefault("name", []).append(named[log.name][keep])
        for name in ("number", "peer", "bytes", "time_ns", "timed", "dumped_ns", "end_ns"):
            columns.setdefault(name, []).append(getattr(log, name)[keep])
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    seen = whole["end_ns"] > 0
    if seen.any():  # nanoseconds since 1970 are too many digits for floating point
        first_end = whole["end_ns"][seen].min()
        whole["end_ns"] = np.where(seen, whole["end_ns"] - first_end, -1)
    return _Rows(ranks, list(names), whole)


def _who(
    ranks: Sequence[LoggedRank], known: dict[tuple[str, int], int]
) -> tuple[list[Gpu], list[Group], list[tuple[int, int]]]:
    """GPUs, communicators, and (communicator, column in it) of each rank of the logs."""
    keys = [(rank.communicator, rank.size) for rank in ranks]
    times = Counter(
        (rank.hostname, rank.process, *key) for rank, key in zip(ranks, keys, strict=True)
    )
    # a process of several GPUs has several ranks in a communicator: which is which elsewhere, no
    # log tells
    several = {(host, process) for (host, process, *_), n in times.items() if n > 1}
    units: dict[tuple[object, ...], int] = {}
    unit_of = []
    for rank, key in zip(ranks, keys, strict=True):
        process = (rank.hostname, rank.process)
        name = (*process, *key, rank.rank) if process in several else process
        unit_of.append(units.setdefault(name, len(units)))
    members: dict[tuple[str, int], list[int]] = {}
    for at, key in enumerate(keys):
        members.setdefault(key, []).append(at)
    job_rank = _job_ranks(ranks, unit_of, members, len(units), known)
    first: dict[int, LoggedRank] = {}
    for at, unit in enumerate(unit_of):
        first.setdefault(unit, ranks[at])
    gpus = [
        Gpu(one.hostname, one.process, job_rank.get(unit, -1),
            f"rank {one.rank} of communicator {one.name or one.communicator}")
        for unit, one in sorted(first.items())
    ]  # fmt: skip
    groups, where = [], [(0, 0)] * len(ranks)
    for number, (key, own) in enumerate(members.items()):
        own.sort(key=lambda at: ranks[at].rank)
        for column, at in enumerate(own):
            where[at] = (number, column)
        inside = [unit_of[at] for at in own]
        groups.append(
            Group(
                key[0],
                _group_name(ranks[own[0]], [gpus[unit].rank for unit in inside]),
                key[1],
                ranks[own[0]].nodes,
                inside,
                [ranks[at].rank for at in own],
            )
        )
    return gpus, groups, where


def _job_ranks(
    ranks: Sequence[LoggedRank],
    unit_of: Sequence[int],
    members: dict[tuple[str, int], list[int]],
    units: int,
    known: dict[tuple[str, int], int],
) -> dict[int, int]:
    """Rank in the job of each GPU: as digests tell, or as in a communicator that holds them all."""
    stated = {}
    for at, unit in enumerate(unit_of):
        rank = known.get((ranks[at].hostname, ranks[at].process))
        if rank is not None:
            stated[unit] = rank
    if len(stated) == units and len(set(stated.values())) == units:
        return stated
    for (_, size), own in sorted(members.items(), key=lambda one: -one[0][1]):
        if size >= units and len({unit_of[at] for at in own}) == units:
            return {unit_of[at]: ranks[at].rank for at in own}
    return {}


def _group_name(one: LoggedRank, ranks: Sequence[int]) -> str:
    from stepscope.jobs.digest_make import short_group

    named = f"{one.name} ({one.communicator})" if one.name else one.communicator
    if len(ranks) == one.size and all(rank >= 0 for rank in ranks):
        return f"{short_group(','.join(map(str, ranks)))} ({one.name or one.communicator})"
    return named


def _matrix(
    c: dict[str, AnyArray], own: IntArray, column_of: IntArray, group: int, width: int
) -> tuple[Collectives, AnyArray]:
    """The collectives of one communicator, and which rank has logged which."""
    column, name, number = column_of[c["rank"][own]], c["name"][own], c["number"][own]
    # a captured graph may repeat a number: the n-th time on one rank is the n-th on the others
    order = np.lexsort((np.arange(len(own)), number, name, column))
    same = np.zeros(len(own), bool)
    same[1:] = (
        (column[order][1:] == column[order][:-1])
        & (name[order][1:] == name[order][:-1])
        & (number[order][1:] == number[order][:-1])
    )
    begins = np.maximum.accumulate(np.where(same, 0, np.arange(len(own))))
    repeat = np.empty(len(own), np.int64)
    repeat[order] = np.arange(len(own)) - begins
    # numbers may be anything: they are counted before they are packed into one key
    numbers, at = with_inverse(number)
    key = (name * len(numbers) + at) * (int(repeat.max(initial=0)) + 1) + repeat
    _, row = with_inverse(key)
    rows = int(row.max(initial=-1)) + 1
    shape = (rows, width)
    time, end = np.full(shape, np.nan), np.full(shape, np.nan)
    good = c["timed"][own] & (c["time_ns"][own] > 0)
    time[row[good], column[good]] = c["time_ns"][own][good]
    seen = c["end_ns"][own] >= 0
    end[row[seen], column[seen]] = c["end_ns"][own][seen]
    names, counts, sizes = (np.zeros(rows, np.int64) for _ in range(3))
    names[row], counts[row] = name, number
    np.maximum.at(sizes, row, c["bytes"][own])
    logged = np.zeros(shape, bool)
    logged[row, column] = True
    return Collectives(group, names, counts, sizes, time, end), logged


def _ends(
    found: Collectives,
    logged: AnyArray,
    last: dict[tuple[int, int], IntArray],
    lost: dict[tuple[int, int], IntArray],
) -> None:
    """How far each rank came, and how many lines in a row its log lacks before that."""
    for name in sorted(set(found.name.tolist())):
        own = np.flatnonzero(found.name == name)
        own = own[np.argsort(found.number[own], kind="stable")]
        there = logged[own]
        ends = np.full(there.shape[1], -1, np.int64)
        gaps = np.zeros(there.shape[1], np.int64)
        for column in range(there.shape[1]):
            at = np.flatnonzero(there[:, column])
            if len(at):
                ends[column] = found.number[own][at[-1]]
                gaps[column] = int(np.diff(at).max(initial=1)) - 1
        last[found.group, name], lost[found.group, name] = ends, gaps


def _messages(
    c: dict[str, AnyArray],
    which: AnyArray,
    group_of: IntArray,
    column_of: IntArray,
    groups: Sequence[Group],
    names: Sequence[str],
) -> tuple[list[Messages], int]:
    """Messages matched in their order: the n-th that one sends is the n-th that the other takes."""
    own = np.flatnonzero(which)
    sends = np.array([name == "Send" for name in names] or [False])[c["name"][own]]
    lists: dict[tuple[int, int, int, bool], list[int]] = {}
    number = c["number"][own]
    for at in np.lexsort((number, c["rank"][own])).tolist():
        row = own[at]
        rank = c["rank"][row]
        group = int(group_of[rank])
        self_, peer = groups[group].inside[int(column_of[rank])], int(c["peer"][row])
        pair = (self_, peer) if sends[at] else (peer, self_)
        lists.setdefault((group, *pair, bool(sends[at])), []).append(int(row))
    found, unpaired = [], 0
    for (group, sender, receiver, sent), rows in lists.items():
        if not sent or sender == receiver:
            continue
        others = lists.get((group, sender, receiver, False))
        if others is None or len(others) != len(rows):
            unpaired += 1
            continue
        a, b = np.array(rows), np.array(others)
        same = (c["bytes"][a] == c["bytes"][b]) & c["timed"][a] & c["timed"][b]
        time = np.minimum(c["time_ns"][a], c["time_ns"][b]).astype(float)
        if same.any():
            found.append(Messages(group, sender, receiver, c["bytes"][a][same], time[same]))
    return found, unpaired
