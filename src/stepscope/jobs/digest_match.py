"""The collectives of many digests, matched as those of full captures are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import Calls, GroupName, JobCalls, Participant
from stepscope.collectives.clocks import Line
from stepscope.collectives.communicators import Channel, Stated, channels, with_payloads
from stepscope.collectives.match import Matched, assembled, match_calls
from stepscope.collectives.pairs import by_wall_clock, with_exchanges
from stepscope.intervals.distinct import distinct_values, where_common, with_inverse
from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_make import group_ranks
from stepscope.trace.frame import AnyArray, Frame, IntArray

if TYPE_CHECKING:
    from stepscope.activity.device import GpuTimeline

EXACT: Final = 32
"""Up to so many devices are matched as full captures are: each pair is looked at."""

_LAGS: Final = 64
"""Operations by which one capture may begin earlier, beyond their difference in number."""

_LOOKED_AT: Final = 24
"""Operations that are compared to find that."""

_GOLDEN: Final = 0.6180339887498949
"""Square numbers times it, without what is whole, are spread over the unit interval like chance."""

_TRUST: Final = 1e-3
"""How far a wall clock that is off counts beside ends that vary: it is right to milliseconds, ends
of collectives to microseconds."""

_SAME: Final = 0.9

_DRIFT: Final = 1e-3
"""Clocks of computers drift by some parts in a hundred thousand."""


@dataclass(frozen=True)
class _Origin:
    """Where the calls of a digest come from: what the matching asks of a device."""

    process_id: int
    device: int


def _nothing(table: str, *columns: str) -> Frame:
    """A digest holds no canonical table."""
    raise KeyError(table, columns)


def job_calls_of(digests: Sequence[Digest]) -> JobCalls:
    """The calls of all digests, with codes that are comparable over them."""
    tokens: dict[str, int] = {}
    groups: dict[str, int] = {}
    names: list[GroupName] = []
    clocks: dict[object, int] = {}
    participants, calls, details, before = [], [], [], []
    for number, digest in enumerate(digests):
        facts = digest.facts
        clock = facts["capture_digest"] or number
        participants.append(
            Participant(
                rank=digest.rank,
                gpu=cast("GpuTimeline", _Origin(facts["process_id"] or 0, facts["device"] or 0)),
                read=_nothing,
                clock=clocks.setdefault(clock, len(clocks)),
                epoch_ns=facts["origin_epoch_ns"],
                machine=digest.hostname,
                world_size=facts["world_size"],
            )
        )
        texts = digest.texts("calls", "group")
        for text in dict.fromkeys(texts):
            if text and text not in groups:
                groups[text] = len(groups)
                names.append(GroupName(group_ranks(text), text))
        start = digest.ints("calls", "start_ns")
        looks = digest.texts("calls", "looks")
        calls.append(
            Calls(
                op=np.arange(len(start)),
                stream=digest.ints("calls", "stream"),
                start_ns=start,
                end_ns=start + digest.ints("calls", "duration_ns"),
                kind=np.array(
                    [kinds.CODE.get(k, kinds.UNKNOWN) for k in digest.texts("calls", "kind")],
                    np.int64,
                ),
                token=np.array([tokens.setdefault(t, len(tokens)) for t in looks], np.int64),
                group=np.array([groups.get(text, -1) for text in texts], np.int64),
                sequence=digest.ints("calls", "sequence"),
                bytes=digest.ints("calls", "bytes"),
                size=digest.ints("calls", "size"),
                stated=np.asarray(digest.lists["calls"]["stated"], bool),
            )
        )
        own = {t: i for i, t in enumerate(dict.fromkeys(digest.texts("calls", "communicator")))}
        own.pop("", None)
        numbers = {text: i for i, text in enumerate(own)}
        codes = [numbers.get(text, -1) for text in digest.texts("calls", "communicator")]
        size = digest.ints("calls", "nccl_bytes")
        details.append(Stated(np.array(codes, np.int64), size, list(numbers)))
        before.append(digest.ints("calls", "kernels_before"))
    job = JobCalls(participants, calls, names)
    return with_exchanges(with_payloads(job, details), before)


def match_digests(digests: Sequence[Digest]) -> Matched | None:
    """Match the collectives of digests; None where none of them communicates."""
    job = job_calls_of(digests)
    if len(digests) <= EXACT or not any(len(calls) for calls in job.calls):
        return match_calls(job)
    return _match_many(job)


def _match_many(job: JobCalls) -> Matched:
    """The same for many ranks: each communicator against one of its members, never all pairs.

    Communicators that nothing names are those of the streams in the order of their use: all ranks
    of a job of this size run one program.
    """
    named = _with_streams(job)
    found = [c for c in channels_named(named) if len(c.members) > 1]
    ordinals = [_ordinals(named, channel) for channel in found]
    lines = _lines(named, found, ordinals)
    instance_of = [np.full(len(calls), -1, np.int64) for calls in named.calls]
    channel_of: list[IntArray] = []
    made = 0
    for number, (channel, ordinal) in enumerate(zip(found, ordinals, strict=True)):
        whole = np.concatenate(ordinal)
        _, inverse = with_inverse(whole)
        count = int(inverse.max(initial=-1)) + 1
        place = 0
        for (device, rows), own in zip(channel.members, ordinal, strict=True):
            instance_of[device][rows] = made + inverse[place : place + len(own)]
            place += len(own)
        channel_of.append(np.full(count, number))
        made += count
    # what only one member has is matched with nobody
    members = np.bincount(np.concatenate([own[own >= 0] for own in instance_of]), minlength=made)
    kept = np.flatnonzero(members > 1)
    renumbered = np.full(made + 1, -1, np.int64)
    renumbered[kept] = np.arange(len(kept))
    instance_of = [renumbered[own] for own in instance_of]
    numbers = np.concatenate(channel_of)[kept] if channel_of else np.empty(0, np.int64)
    return assembled(named, found, lines, instance_of, numbers)


def channels_named(job: JobCalls) -> list[Channel]:
    """The communicators that have names, as :func:`channels` finds them."""
    return channels(job) if len(job.participants) == 1 else _declared(job)


def _declared(job: JobCalls) -> list[Channel]:
    """Communicators by their code, each rank looked at once."""
    members: dict[int, list[tuple[int, IntArray]]] = {}
    for device, calls in enumerate(job.calls):
        group = np.where(calls.point_to_point, -1, calls.group)
        for code in distinct_values(group[group >= 0]).tolist():
            members.setdefault(code, []).append((device, np.flatnonzero(group == code)))
    found = []
    for code, own in sorted(members.items()):
        there = tuple(sorted({job.participants[d].rank for d, _ in own}))
        stated = max(int(job.calls[d].size[rows].max()) for d, rows in own)
        name = job.groups[code]
        ranks = name.ranks or there
        found.append(Channel(own, ranks, max(stated, len(ranks)), bool(name.ranks)))
    return found


def _with_streams(job: JobCalls) -> JobCalls:
    """The job with a name for each communicator that has none: the place of its stream."""
    from dataclasses import replace

    if all((calls.group[~calls.point_to_point] >= 0).all() for calls in job.calls):
        return job
    groups = list(job.groups)
    codes: dict[int, int] = {}
    changed = []
    for calls in job.calls:
        rows = np.flatnonzero(~calls.point_to_point & (calls.group < 0))
        group = calls.group.copy()
        order: dict[int, int] = {}
        for row, stream in zip(rows.tolist(), calls.stream[rows].tolist(), strict=True):
            place = order.setdefault(stream, len(order))
            if place not in codes:
                codes[place] = len(groups)
                groups.append(GroupName((), f"stream {place}"))
            group[row] = codes[place]
        changed.append(replace(calls, group=group))
    return JobCalls(job.participants, changed, groups)


def _ordinals(job: JobCalls, channel: Channel) -> list[IntArray]:
    """Number of each member's operations inside the communicator, comparable over its members."""
    if all((job.calls[d].sequence[rows] >= 0).all() for d, rows in channel.members):
        # several operations of one number (a coalesced one) are told by their order
        return [_unique_numbers(job.calls[d].sequence[rows]) for d, rows in channel.members]
    base, base_rows = channel.members[0]
    found = [np.arange(len(base_rows))]
    for device, rows in channel.members[1:]:
        found.append(np.arange(len(rows)) + _lag(job, base, base_rows, device, rows))
    return found


def _unique_numbers(sequence: IntArray) -> IntArray:
    again = np.zeros(len(sequence), np.int64)
    same = np.diff(sequence) == 0
    for row in np.flatnonzero(same).tolist():
        again[row + 1] = again[row] + 1
    return sequence * 4096 + np.minimum(again, 4095)


def _lag(job: JobCalls, a: int, rows_a: IntArray, b: int, rows_b: IntArray) -> int:
    """By how many operations a member's count lags behind another's.

    They look the same and their ends differ by one constant and a drift, the nearest to what the
    wall clocks tell where several fit. The mean tells how far from that they are: operations follow
    each other evenly inside a step, so that most ends fit a wrong count, too, but not those at the
    edges of steps.
    """
    first, second = job.calls[a], job.calls[b]
    line = by_wall_clock(job.participants[a], job.participants[b])
    prior = line.offset_ns if line is not None else None
    token_a, end_a = first.token[rows_a], first.end_ns[rows_a]
    token_b, end_b = second.token[rows_b], second.end_ns[rows_b]
    low = max(len(rows_a), len(rows_b)) - min(len(rows_a), len(rows_b)) + _LAGS
    lags = np.arange(-low, low + 1)
    at = _scattered(len(rows_b))
    other = at[None, :] + lags[:, None]
    there = (other >= 0) & (other < len(rows_a))
    other = np.clip(other, 0, len(rows_a) - 1)
    enough = there.sum(axis=1) >= max(3, len(at) // 2)
    same = ((token_a[other] == token_b[at]) & there).sum(axis=1) >= _SAME * there.sum(axis=1)
    apart = np.where(there, end_a[other] - end_b[at], np.nan)
    fits = np.flatnonzero(enough & same)
    if not len(fits):
        return 0
    apart = apart[fits]
    middle = _middle(apart)
    away = apart - middle[:, None] - _drift(apart, end_b[at])
    cost = np.nansum(np.abs(away - _middle(away)[:, None]), axis=1) / there[fits].sum(axis=1)
    if prior is not None:
        cost = cost + _TRUST * np.abs(middle - prior)
    return int(lags[fits[int(np.argmin(cost))]])


def _scattered(count: int) -> IntArray:
    """Rows to look at, ascending, without a period.

    As many operations apart as a step has, they would all be the same one of their steps, and any
    count that stays inside a step would fit.
    """
    if count <= _LOOKED_AT:
        return np.arange(count)
    bounds = np.arange(_LOOKED_AT + 1) * count // _LOOKED_AT
    within = np.arange(_LOOKED_AT) ** 2 * _GOLDEN % 1.0  # one in each of as many stretches
    found: IntArray = bounds[:-1] + (within * np.diff(bounds)).astype(np.int64)
    return found


def _drift(apart: AnyArray, at_ns: IntArray) -> AnyArray:
    """What the clocks drift apart up to each time, from the earlier to the later half; a row each.

    Args:
        apart: differences of the ends, lags x operations, ns; NaN where there is none.
        at_ns: when they are.
    """
    half = len(at_ns) // 2
    if half < 4:
        return np.zeros_like(apart)
    length = float(np.median(at_ns[half:]) - np.median(at_ns[:half]))
    slope = (_middle(apart[:, half:]) - _middle(apart[:, :half])) / max(length, 1.0)
    slope = np.nan_to_num(slope)  # where a half has nothing
    slope[np.abs(slope) > _DRIFT] = 0.0  # no clock drifts so fast: it was set
    found: AnyArray = slope[:, None] * (at_ns - at_ns[half])[None, :]
    return found


def _middle(values: AnyArray) -> AnyArray:
    """The lower median of each row without its NaNs; NaN where it has nothing else."""
    ordered = np.sort(values, axis=1)  # NaN comes last
    known = np.count_nonzero(~np.isnan(values), axis=1)
    found: AnyArray = ordered[np.arange(len(values)), np.maximum(known - 1, 0) // 2]
    return found


def _lines(job: JobCalls, found: list[Channel], ordinals: list[list[IntArray]]) -> list[Line]:
    """The conversion of each device's clock to the job's, communicator by communicator."""
    n = len(job.participants)
    lines: list[Line | None] = [None] * n
    by_clock: dict[int, Line] = {}
    order = sorted(range(len(found)), key=lambda k: -len(found[k].members))
    todo = [k for k in order if not found[k].point_to_point]
    if not todo:
        return [by_wall_clock(job.participants[0], p) or Line() for p in job.participants]
    first = found[todo[0]].members[0][0]
    lines[first] = Line()
    by_clock[job.participants[first].clock] = Line()
    while todo:
        progress = False
        for k in list(todo):
            channel, numbers = found[k], ordinals[k]
            known = [m for m, (d, _) in enumerate(channel.members) if lines[d] is not None]
            if not known:
                continue
            todo.remove(k)
            progress = True
            base, base_rows = channel.members[known[0]]
            base_line = cast("Line", lines[base])
            base_end = base_line.to(job.calls[base].end_ns[base_rows])
            for m, (device, rows) in enumerate(channel.members):
                if lines[device] is not None:
                    continue
                clock = job.participants[device].clock
                if clock not in by_clock:
                    i, j = where_common(numbers[known[0]], numbers[m])
                    own = job.calls[device].end_ns[rows][j]
                    by_clock[clock] = _fitted(own, base_end[i])
                lines[device] = by_clock[clock]
        if not progress:  # ranks that no communicator connects with the rest keep the wall clock
            device = found[todo[0]].members[0][0]
            lines[device] = by_wall_clock(job.participants[first], job.participants[device])
            lines[device] = lines[device] or Line()
    return [
        line or by_wall_clock(job.participants[first], p) or Line()
        for line, p in zip(lines, job.participants, strict=True)
    ]


def _fitted(own: IntArray, there: IntArray) -> Line:
    """The line through the ends of the same operations on two clocks, without outliers."""
    if not len(own):
        return Line()
    apart: AnyArray = (there - own).astype(np.float64)
    offset = float(np.median(apart))
    at = int(np.median(own))
    drift = 0.0
    half = len(own) // 2
    if half >= 4:
        length = float(np.median(own[half:]) - np.median(own[:half]))
        if length > 0:
            drift = float(np.median(apart[half:]) - np.median(apart[:half])) / length
    left = apart - offset - drift * (own - at)
    if drift and np.median(np.abs(left)) >= np.median(np.abs(apart - offset)):
        drift, left = 0.0, apart - offset
    residual = 1.4826 * float(np.median(np.abs(left)))
    return Line(offset, drift, at, residual, len(own))
