"""Processes of this machine: each does one task at a time, and its death costs only that task."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from stepscope.jobs.engine.work import KILLED, Item, Outcome, Task, perform

Work = tuple[int, Item, Path]
"""Number of an input, the input, and the file to write."""

_LEAST_BYTES: Final = 1 << 30
"""Memory that a process is given at least: reading a capture takes some hundred MB."""
_OF_INPUT: Final = 2
"""How many times the size of its input."""
_SMALL_BYTES: Final = 32 << 20
"""Inputs up to this size may be done by the process itself: they cannot take its memory."""
_START_S: Final = 0.8
"""What starting other processes takes, with the libraries that they load, s."""
_FIRST: Final = 2
"""Inputs that tell how long the others take; the first one loads libraries, too."""


def size(inputs: Sequence[Item]) -> int:
    """How many processes: one a core, but no more than there are inputs or memory for."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # no such notion on macOS
        cores = os.cpu_count() or 1
    largest = max((item.bytes for item in inputs), default=0)
    each = max(_LEAST_BYTES, _OF_INPUT * largest)
    return max(1, min(cores, len(inputs), available_bytes() // each))


def available_bytes() -> int:
    """Memory that is free for new processes: of the machine, and of the container's limit."""
    found = [64 << 30]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) << 10)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        found.append(limit - int((group / "memory.current").read_text(encoding="ascii")))
    return max(min(found), 0)


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, context: multiprocessing.context.BaseContext) -> None:
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)  # type: ignore[attr-defined]
        self.process.start()
        other.close()
        self.work: Work | None = None

    def give(self, task: Task, work: Work) -> None:
        self.work = work
        with contextlib.suppress(OSError):  # it has died: its pipe says so next
            self.pipe.send((task, work[1], work[2]))

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection) -> None:
    """Do what comes through the pipe until it is closed, also by the death of its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it, and ends this process
    while True:
        try:
            task, item, output = pipe.recv()
        except (EOFError, OSError):
            return
        outcome = perform(task, item, output)
        try:
            pipe.send(outcome)
        except OSError:
            return


def perform_small(task: Task, works: list[Work], workers: int) -> Iterator[tuple[int, Outcome]]:
    """(number, outcome) of the first inputs, as long as other processes would gain nothing.

    Captures that were imported before answer in some hundredths of a second each: most jobs are
    done before another process could begin. What was done is taken out of ``works``.

    Args:
        task: the task.
        works: inputs.
        workers: processes that would do the rest.
    """
    done, left, gained = 0, sum(item.bytes for _, item, _ in works), 0.0
    while works and (done < _FIRST or gained < _START_S):
        number, item, output = works[0]
        if not 0 < item.bytes <= _SMALL_BYTES:
            return
        began = time.monotonic()
        del works[0]
        yield number, perform(task, item, output)
        done, left = done + 1, left - item.bytes
        gained = (time.monotonic() - began) / item.bytes * left * (1 - 1 / max(workers, 1))


def perform_all(task: Task, works: Sequence[Work], workers: int) -> Iterator[tuple[int, Outcome]]:
    """(number, outcome) of every input, as they end.

    What a killed process had in work is tried once more after everything else, alone: where the
    memory was too little for several at a time, it may do for one.

    Args:
        task: the task.
        works: inputs.
        workers: number of processes; with 1, this process does it all itself.
    """
    if workers <= 1:
        for number, item, output in works:
            yield number, perform(task, item, output)
        return
    killed: list[Work] = []
    for work, outcome in _once(task, works, workers):
        if outcome.state == KILLED:
            killed.append(work)
        else:
            yield work[0], outcome
    for work, outcome in _once(task, killed, 1):
        yield work[0], outcome


def _once(task: Task, works: Sequence[Work], workers: int) -> Iterator[tuple[Work, Outcome]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([task.function.partition(":")[0]])
    waiting = list(reversed(works))
    team: list[_Worker] = []
    try:
        while waiting or any(worker.work for worker in team):
            for worker in team:
                if waiting and worker.work is None:
                    worker.give(task, waiting.pop())
            while waiting and len(team) < workers:
                team.append(_Worker(context))
                team[-1].give(task, waiting.pop())
            busy = {worker.pipe: worker for worker in team if worker.work}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                assert worker.work is not None
                try:
                    outcome = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    outcome = Outcome(KILLED, _why(worker.process.exitcode))
                    team.remove(worker)
                work, worker.work = worker.work, None
                yield work, outcome
    finally:
        for worker in team:
            worker.end()


def _why(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = "; that is how Linux ends what takes too much memory" if code == -9 else ""
        return f"its process was ended by {name}{memory}: try it alone, or with --jobs 1"
    return f"its process ended with code {code}"
