"""What is missing from a job, and what was assumed when it was matched."""

from __future__ import annotations

from stepscope.collectives.calls import JobCalls
from stepscope.collectives.clocks import SHARED_NS
from stepscope.collectives.pairs import by_wall_clock
from stepscope.collectives.result import RankOps
from stepscope.collectives.streams import Channel


def expected_size(job: JobCalls, channel: Channel, missing: list[int]) -> int:
    """How many ranks a communicator should have."""
    there = {p.rank for p in job.participants}
    if channel.point_to_point:
        return 2
    if len(there) == 1:
        return max(channel.size, 2, job.participants[0].world_size or 0)
    if not channel.declared and set(channel.ranks) == there:
        return channel.size + len(missing)  # a group of all ranks that are there has the others too
    return channel.size


def missing_ranks(job: JobCalls, found: list[Channel]) -> list[int]:
    """Ranks that are named somewhere and not there."""
    named: set[int] = set()
    for channel in found:
        named |= set(channel.ranks)
    for p in job.participants:
        named |= set(range(p.world_size or 0))
    return sorted(named - {p.rank for p in job.participants})


def remarks(
    job: JobCalls, ranks: list[RankOps], missing: list[int], impossible: int, n: int
) -> list[str]:
    """What could not be matched or had to be assumed, in sentences."""
    said = []
    unmatched = sum(rank.unmatched for rank in ranks) if len(ranks) > 1 else 0
    total = sum(len(calls) for calls in job.calls)
    if unmatched:
        most = max(ranks, key=lambda rank: rank.unmatched)
        said.append(
            f"{unmatched:,} of {total:,} communication kernels have no counterpart on another "
            f"rank (most on rank {most.rank}: {most.unmatched:,}): captures that begin or end at "
            "different times, lost records, or ranks that are not there"
        )
    if impossible:
        said.append(
            f"in {impossible:,} of {n:,} matched collectives one rank ends before another begins, "
            "so that the clocks or the matches are not to be trusted there"
        )
    moved = [rank for rank in ranks if abs(rank.offset_ns - _wall(job, rank, ranks)) > SHARED_NS]
    if moved:
        said.append(
            "the clocks of ranks "
            + ", ".join(str(rank.rank) for rank in moved[:8])
            + (", ..." if len(moved) > 8 else "")
            + " were set by the ends of collectives, because their wall clocks disagree or are "
            "unknown"
        )
    if missing:
        several = len(missing) > 1
        said.append(
            f"rank{'s' if several else ''} {', '.join(map(str, missing[:8]))}"
            + (", ..." if len(missing) > 8 else "")
            + f" {'are' if several else 'is'} not there: what looks like a transfer may be "
            f"waiting for {'them' if several else 'it'}; add "
            f"{'their captures' if several else 'its capture'}"
        )
    return said


def _wall(job: JobCalls, rank: RankOps, ranks: list[RankOps]) -> float:
    number = next(i for i, r in enumerate(ranks) if r is rank)
    line = by_wall_clock(job.participants[0], job.participants[number])
    return line.offset_ns if line else float("inf")
