"""Whether traces can be the ranks of one job, judged by what they say of themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stepscope.trace.errors import UsageError
from stepscope.trace.trace import Trace

APART_NS: Final = 10_000_000_000
"""Time between two captures from which on they are not of the same moment. Ranks step together, so
their captures overlap; clocks that NTP keeps differ by milliseconds, rarely by a second."""

_RANK_IN_NAME = (
    re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE),
    # shorter words count where no letter stands before them: server12 and year2026 are no ranks
    re.compile(r"(?<![a-z])(?:r|worker|gpu|proc)[_\-.]?(\d+)", re.IGNORECASE),
)
_LONGEST_RANK = 7  # digits; longer numbers are dates and process ids
_ADVICE = (
    "give the captures of one job only, or one capture; stepscope compare BEFORE AFTER is for "
    "several runs"
)


def rank_in_name(name: str) -> int | None:
    """The rank that a file name states; None when it states none."""
    for pattern in _RANK_IN_NAME:
        found = pattern.findall(Path(name).name)
        if found and len(found[-1]) <= _LONGEST_RANK:
            return int(found[-1])
    return None


def claimed_rank(trace: Trace) -> tuple[int | None, str]:
    """The rank that a trace claims, and where: in its metadata, else in its file's name."""
    if trace.meta.rank is not None:
        return trace.meta.rank, trace.meta.rank_source or "trace's metadata"
    return rank_in_name(trace.path.name), "file names"


def refuse_unrelated(traces: Sequence[Trace]) -> None:
    """Refuse traces that cannot be ranks of one job.

    These are: of jobs of different sizes, more than the job has ranks, two of the same rank, or
    captures far apart in time that claim no ranks. Ranks that claim to be different ones may be
    far apart: the clocks of their machines may be wrong, and their collectives tell.

    Raises:
        UsageError: they cannot.
    """
    if len(traces) < 2:
        return
    worlds = {t.meta.world_size: t for t in traces if t.meta.world_size}
    if len(worlds) > 1:
        (few, one), (many, other) = sorted(worlds.items(), key=lambda item: item[0])[:2]
        raise UsageError(
            f"these are not the ranks of one job: {one.path} is of a job of {_ranks(few)}, "
            f"{other.path} of one of {_ranks(many)}; {_ADVICE}"
        )
    seen: dict[int, Trace] = {}
    for trace in traces:
        rank = trace.meta.rank
        if rank is None:
            continue
        if rank in seen:
            raise UsageError(
                f"these are not the ranks of one job: {seen[rank].path} and {trace.path} are both "
                f"of rank {rank}; {_ADVICE}"
            )
        seen[rank] = trace
    for world, trace in worlds.items():
        if len(traces) > world:
            raise UsageError(
                f"these are not the ranks of one job: they are {len(traces)} captures, and "
                f"{trace.path} is of a job of {_ranks(world)}; {_ADVICE}"
            )
    claims = [claimed_rank(trace)[0] for trace in traces]
    if None in claims or len(set(claims)) < len(claims):
        _refuse_apart(traces)


def _apart(traces: Sequence[Trace]) -> tuple[int, Trace, Trace] | None:
    """Time between captures of another moment, ns, the earlier and the later one; None for none."""
    timed = [(*span, trace) for trace in traces if (span := _span_ns(trace)) is not None]
    if len(timed) < 2:
        return None
    first = min(timed, key=lambda item: item[1])
    last = max(timed, key=lambda item: item[0])
    apart_ns = last[0] - first[1]
    return (apart_ns, first[2], last[2]) if apart_ns > APART_NS else None


def apart_message(traces: Sequence[Trace]) -> list[str]:
    """What to remark where ranks that were taken for one job are of another moment."""
    found = _apart(traces)
    if found is None:
        return []
    return [
        f"{found[2].path.name} began {_long(found[0])} after {found[1].path.name} had ended: the "
        "clocks of their machines differ, or they are captures of different runs"
    ]


def _refuse_apart(traces: Sequence[Trace]) -> None:
    found = _apart(traces)
    if found is not None:
        apart_ns, first, last = found
        raise UsageError(
            f"these are not the ranks of one job: {last.path} began {_long(apart_ns)} after "
            f"{first.path} had ended; {_ADVICE}. Where they are, and only clocks differ, put "
            "the rank into each file's name, as in NAME.rank0.EXTENSION"
        )


def same_job(one: Trace, other: Trace) -> bool:
    """Whether two traces are different ranks of one job, captured at the same time."""
    (ours, _), (theirs, _) = claimed_rank(one), claimed_rank(other)
    if ours is None or theirs is None or ours == theirs:
        return False
    if one.meta.world_size != other.meta.world_size or one.meta.world_size == 1:
        return False
    spans = _span_ns(one), _span_ns(other)
    if spans[0] is None or spans[1] is None:
        return False  # nothing tells the moment
    return max(spans[0][0], spans[1][0]) < min(spans[0][1], spans[1][1])


def refuse_ranks_as_runs(runs: Sequence[Sequence[Trace]]) -> None:
    """Refuse ranks of one job that are given as runs of their own.

    Args:
        runs: the traces of each run.

    Raises:
        UsageError: two runs are single traces of different ranks of one job.
    """
    alone = [traces[0] for traces in runs if len(traces) == 1]
    for number, trace in enumerate(alone):
        same = [trace, *(other for other in alone[number + 1 :] if same_job(trace, other))]
        if len(same) > 1:
            ranks = sorted({claimed_rank(t)[0] or 0 for t in same})
            listed = ", ".join(map(str, ranks[:8])) + (", ..." if ranks[8:] else "")
            raise UsageError(
                f"{same[0].path} and {same[1].path} are ranks of one job (ranks {listed}, captured "
                "at the same time), not runs: give each run as a folder of its ranks, or to "
                "compare as --before RANK0 --before RANK1 ... --after RANK0 ...; diagnose takes "
                "the ranks of one job as they are"
            )


def _span_ns(trace: Trace) -> tuple[int, int] | None:
    """Begin and end of a capture, ns since 1970; None where it does not know the time of day."""
    meta = trace.meta
    if meta.origin_epoch_ns is None:
        return None
    return meta.origin_epoch_ns + meta.window_start_ns, meta.origin_epoch_ns + meta.window_end_ns


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


def _long(ns: int) -> str:
    seconds = ns / 1e9
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 10_800 else f"{seconds / 3600:.0f} hours"
