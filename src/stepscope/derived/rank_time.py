"""The ``rank_time`` table: where each rank's time goes between the same two moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.derived import DEVICE, DerivedTable
from stepscope.jobs.view import JobView

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "step": "number of the shared steady step",
    "start_ns": "begin of the step, ns since this trace's origin",
    "part": "compute, waiting (for the last rank, nothing covers it), transfer (not covered), "
    "missing (likely waiting for a rank that is not there), unmatched (communication without "
    "counterpart), copy, memset, or idle and the cause it is charged to. Beside these, alone is "
    "the part of compute in which no communication runs, blocking the part of transfer that other "
    "work was ready to follow, bubble the part of waiting that is in sends and receives",
    "time_ns": "time, ns; without alone, blocking and bubble the parts of a step sum to its length",
}


def time_table(job: JobView) -> pa.Table:
    """The ``rank_time`` table; without rows where nothing communicates."""
    import pyarrow as pa

    c = job.collectives
    if c is None or not len(c.parts):
        texts = {"part": pa.string()}
        return pa.schema([(name, texts.get(name, pa.int64())) for name in COLUMNS]).empty_table()
    parts = c.parts
    named = {
        name: getattr(parts, name)
        for name in ("compute", "waiting", "transfer", "missing", "unmatched", "copy", "memset",
                     "alone", "blocking", "bubble")
    }  # fmt: skip
    named |= {f"idle {cause}": time for cause, time in parts.idle.items()}
    steps, devices = parts.wall.shape
    start = np.stack([begin for begin, _ in c.own_windows], axis=1)
    ranks = c.matched.ranks
    repeat = len(named)
    codes = np.repeat(np.arange(repeat), steps * devices)

    def each(values: list[int]) -> object:
        return np.tile(np.tile(np.array(values, np.int64), steps), repeat)

    return pa.table(
        {
            "rank": each([rank.rank for rank in ranks]),
            "process_id": each([rank.process_id for rank in ranks]),
            "device": each([rank.device for rank in ranks]),
            "step": np.tile(np.repeat(np.arange(steps), devices), repeat),
            "start_ns": np.tile(start.reshape(-1), repeat),
            "part": pa.array(list(named)).take(pa.array(codes)),
            "time_ns": np.concatenate([time.reshape(-1) for time in named.values()]),
        }
    )


TABLE = DerivedTable(
    "rank_time",
    "One part of the time of one device in one steady step that all ranks share. The steps are cut "
    "at the same moments on all ranks, so that the parts can be compared.",
    COLUMNS,
    time_table,
)
