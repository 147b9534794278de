"""Put the traces of one job in order of their ranks, and say how the ranks were found."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.trace.trace import Job, Member, Trace

_RANK_IN_NAME = (
    re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE),
    # shorter words count where no letter stands before them: server12 and year2026 are no ranks
    re.compile(r"(?<![a-z])(?:r|worker|gpu|proc)[_\-.]?(\d+)", re.IGNORECASE),
)
_LONGEST_RANK = 7  # digits; longer numbers are dates and process ids


def assemble(traces: list[Trace]) -> Job:
    """Order traces by rank.

    The rank is what the trace's own metadata says (distributed info, environment), else a number
    in the file name after a word such as ``rank``, else the position in the given order. When two
    traces claim one rank, the given order decides for all.
    """
    if len(traces) == 1:
        meta = traces[0].meta
        return Job([Member(traces[0], meta.rank or 0, meta.rank_source or "only trace")], [])
    claims = [_claim(trace) for trace in traces]
    ranks = [rank for rank, _ in claims]
    if None in ranks or len(set(ranks)) < len(ranks):
        why = (
            "two traces claim the same rank"
            if None not in ranks
            else "not every trace says its rank"
        )
        members = [Member(t, i, "order of the paths") for i, t in enumerate(traces)]
        return Job(members, [f"ranks are numbered in the order of the paths, because {why}"])
    members = [
        Member(trace, rank or 0, source)
        for trace, (rank, source) in zip(traces, claims, strict=True)
    ]
    members.sort(key=lambda member: member.rank)
    sources = sorted({member.rank_source for member in members})
    remarks = [f"ranks are taken from {' and '.join(sources)}"]
    worlds = {trace.meta.world_size for trace in traces if trace.meta.world_size}
    if worlds and max(worlds) > len(traces):
        missing = sorted(set(range(max(worlds))) - {member.rank for member in members})
        remarks.append(f"{len(missing)} of {max(worlds)} ranks are missing: {_listed(missing)}")
    return Job(members, remarks)


def rank_in_name(name: str) -> int | None:
    """The rank that a file name states; None when it states none."""
    for pattern in _RANK_IN_NAME:
        found = pattern.findall(Path(name).name)
        if found and len(found[-1]) <= _LONGEST_RANK:
            return int(found[-1])
    return None


def _claim(trace: Trace) -> tuple[int | None, str]:
    if trace.meta.rank is not None:
        return trace.meta.rank, trace.meta.rank_source or "trace's metadata"
    named = rank_in_name(trace.path.name)
    return named, "file names"


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(n) for n in numbers[:8])
    return shown + (", ..." if len(numbers) > 8 else "")
