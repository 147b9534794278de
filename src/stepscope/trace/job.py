"""Put the traces of one job in order of their ranks, and say how the ranks were found."""

from __future__ import annotations

from typing import NamedTuple

from stepscope.trace.one_job import apart_message, claimed_rank, refuse_unrelated
from stepscope.trace.trace import RankTrace, Trace

BY_ORDER = "order of the paths"
"""Source of a rank that nothing but the order of the captures tells."""


class Assembled(NamedTuple):
    """The traces that were captured together.

    Attributes:
        rank_traces: the ranks, in order.
        warnings: what was assumed when they were assigned, in sentences.
    """

    rank_traces: list[RankTrace]
    warnings: list[str]


def assemble(traces: list[Trace], *, apart: bool = False) -> Assembled:
    """Order traces by rank.

    The rank is what the trace's own metadata says (distributed info, environment), else a number
    in the file name after a word such as ``rank``, else the position in the given order. When two
    file names claim one rank, the given order decides for all.

    Args:
        traces: the traces.
        apart: each is looked at by itself, so they need not be of one job.

    Raises:
        UsageError: they cannot be ranks of one job.
    """
    if not apart:
        refuse_unrelated(traces)
    if len(traces) == 1:
        meta = traces[0].meta
        return Assembled(
            [RankTrace(traces[0], meta.rank or 0, meta.rank_source or "only trace")], []
        )
    claims = [claimed_rank(trace) for trace in traces]
    ranks = [rank for rank, _ in claims]
    if None in ranks or len(set(ranks)) < len(ranks):
        why = (
            "two traces claim the same rank"
            if None not in ranks
            else "not every trace says its rank"
        )
        rank_traces = [RankTrace(t, i, BY_ORDER) for i, t in enumerate(traces)]
        return Assembled(
            rank_traces, [f"ranks are numbered in the order of the paths, because {why}"]
        )
    rank_traces = [
        RankTrace(trace, rank or 0, source)
        for trace, (rank, source) in zip(traces, claims, strict=True)
    ]
    rank_traces.sort(key=lambda rank_trace: rank_trace.rank)
    sources = sorted({rank_trace.rank_source for rank_trace in rank_traces})
    warnings = [f"ranks are taken from {' and '.join(sources)}"]
    warnings += apart_message(traces)
    worlds = {trace.meta.world_size for trace in traces if trace.meta.world_size}
    if worlds and max(worlds) > len(traces):
        missing = sorted(set(range(max(worlds))) - {rank_trace.rank for rank_trace in rank_traces})
        warnings.append(f"{len(missing)} of {max(worlds)} ranks are missing: {_listed(missing)}")
    return Assembled(rank_traces, warnings)


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(n) for n in numbers[:8])
    return shown + (", ..." if len(numbers) > 8 else "")
