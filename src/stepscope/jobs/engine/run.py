"""A task over many inputs: what was done before is not done again, what fails stops nobody."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepscope.jobs.engine import cluster as dask
from stepscope.jobs.engine import pool
from stepscope.jobs.engine.work import DONE, NO_ROOM, Item, Outcome, Task
from stepscope.trace import progress
from stepscope.trace.errors import StorageError

_MAGIC: Final = b"PAR1"
"""What a Parquet file begins and ends with; before the end stands the length of its footer."""


@dataclass(frozen=True)
class Engine:
    """Where the work is done.

    Attributes:
        jobs: processes of this machine; 0: as many as cores and memory allow.
        cluster: address of a Dask scheduler, to work there instead.
        scheduler_file: instead of the address, the file that the scheduler wrote.
    """

    jobs: int = 0
    cluster: str = ""
    scheduler_file: str = ""

    def perform(self, task: Task, works: Sequence[pool.Work]) -> Iterator[tuple[int, Outcome]]:
        """(number, outcome) of every input, as they end."""
        if self.cluster or self.scheduler_file:
            yield from dask.perform_all(task, works, self.cluster, self.scheduler_file)
            return
        left = list(works)
        workers = self.jobs or pool.size([item for _, item, _ in left])
        if not self.jobs:
            yield from pool.perform_small(task, left, workers)
        yield from pool.perform_all(task, left, min(workers, len(left)))


def _is_whole(file: Path) -> bool:
    """Whether a result of an earlier run is there, and a Parquet file from begin to end.

    A machine that lost power may have kept a file's name and not what it holds.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(4)
            stream.seek(-8, os.SEEK_END)
            tail = stream.read(8)
            size = stream.tell()
    except OSError:
        return False
    footer = int.from_bytes(tail[:4], "little")
    return head == tail[4:] == _MAGIC and 0 < footer <= size - 12


@dataclass(frozen=True)
class Mapped:
    """What became of all inputs, in their order.

    Attributes:
        files: the result of each; it exists where the outcome says ``done``.
        outcomes: of each.
        reused: how many were there from an earlier, interrupted run.
    """

    files: list[Path]
    outcomes: list[Outcome]
    reused: int


def mapped(
    task: Task, items: Sequence[Item], folder: Path, engine: Engine, *, doing: str = "Reading"
) -> Mapped:
    """Do a task on every input, one Parquet file each.

    Args:
        task: what is done.
        items: the inputs.
        folder: where the files are kept; what is there of an earlier run is used.
        engine: where it is done.
        doing: word for the line of progress.

    Raises:
        StorageError: the folder cannot be written, or the cluster is gone.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write {folder}: {error.strerror}; choose another folder"
        ) from error
    files = [folder / f"{task.key(item)}.parquet" for item in items]
    outcomes = [Outcome(DONE) if _is_whole(file) else None for file in files]
    reused = sum(outcome is not None for outcome in outcomes)
    works = [
        (number, item, files[number])
        for number, item in enumerate(items)
        if outcomes[number] is None
    ]
    if works:
        ends = engine.perform(task, works)
        numbers = range(1, len(works) + 1)
        for _ in progress.each(numbers, doing, lambda _: "captures"):
            number, outcome = next(ends)
            if outcome.state == NO_ROOM:
                raise StorageError(f"{outcome.message}; make room, then run the same again")
            outcomes[number] = outcome
    return Mapped(files, [outcome for outcome in outcomes if outcome is not None], reused)
