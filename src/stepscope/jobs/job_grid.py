"""What the heat map of a job shows: a value for each rank and step, and which values there are."""

from __future__ import annotations

import msgspec
import numpy as np

from stepscope.jobs.job import JobAnalysis, beyond_peers
from stepscope.trace.frame import AnyArray

LATE = "late"
"""What a rank needs beyond the median of its peers: the value that the map begins with."""

_IDLE = "idle:"

_PARTS = {
    "wall": ("step time", "from the begin of the step to its end on this rank"),
    "compute": ("compute", "compute kernels run"),
    "waiting": ("waits for other ranks", "nothing but collectives that wait for the last rank"),
    "transfer": ("exposed transfer", "nothing but communication that moves data"),
    "copy": ("copies", "nothing but copies"),
    "idle": ("idle, all causes", "nothing runs"),
}


class GridValue(msgspec.Struct, frozen=True):
    """A value that the heat map can show; all are times, ns.

    Attributes:
        key: what it is asked for by.
        title: its name.
        message: what it means.
        signed: whether it lies on both sides of zero.
    """

    key: str
    title: str
    message: str
    signed: bool = False


class JobGrid(msgspec.Struct, frozen=True):
    """The axes of the heat map; its rows are ``ranks`` of the diagnosis.

    Attributes:
        steps: number of each step in the first rank's capture; the columns.
        values: what can be shown.
    """

    steps: list[int]
    values: list[GridValue]


class GridCells(msgspec.Struct, frozen=True):
    """One value of the heat map.

    Attributes:
        value: which one.
        cells: times, ns; one list a rank.
    """

    value: str
    cells: list[list[int]]


def grid(job: JobAnalysis) -> JobGrid:
    """The axes of a job's heat map."""
    values = [
        GridValue(
            LATE,
            "needs beyond its peers",
            "what the rank needs for the step on its own account, beyond the median of its peers",
            signed=True,
        )
    ]
    values += [
        GridValue(key, *words)
        for key, words in _PARTS.items()
        if key == "wall" or _of(job, key).any()
    ]
    causes = job.times.parts.idle
    values += [
        GridValue(
            f"{_IDLE}{cause}",
            f"idle: {cause.replace('_', ' ')}",
            f"nothing runs, charged to {cause.replace('_', ' ')}",
        )
        for cause in sorted(causes, key=lambda cause: -int(causes[cause].sum()))
        if causes[cause].any()
    ]
    return JobGrid(job.times.numbers[:, 0].tolist(), values)


def cells(job: JobAnalysis, value: str) -> GridCells | None:
    """One value of each rank in each step; None where there is no such value."""
    known = value in {LATE, *_PARTS} or value.removeprefix(_IDLE) in job.times.parts.idle
    if not known:
        return None
    return GridCells(value, np.rint(_of(job, value).T).astype(np.int64).tolist())


def _of(job: JobAnalysis, value: str) -> AnyArray:
    """Values of the map, steps x ranks."""
    parts = job.times.parts
    if value == LATE:
        return beyond_peers(job.needs.device, job.role)
    if value == "idle":
        return sum(parts.idle.values(), np.zeros_like(parts.wall))
    if value.startswith(_IDLE):
        return parts.idle[value.removeprefix(_IDLE)]
    if value == "copy":
        return parts.copy + parts.memset
    found: AnyArray = getattr(parts, value)
    return found
