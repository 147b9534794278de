"""The threads that launch kernels on one core.

Autograd runs the backward pass on a thread of its own, and the system moves either thread where it
likes. Each move and each wake-up on another core costs, on virtual machines above all, whose cores
share physical ones.
"""

from __future__ import annotations

import functools
import os

from .base import Try

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .base import Change

TRY = Try(
    "one-core",
    summary="after the first step the thread that makes it and autograd's stay on one core, which "
    "was the quickest just then; of several ranks on a machine each has another one. Other "
    "threads, workers and new processes go where they like",
    eases=("launch_bound",),
    lines="os.sched_setaffinity(t, {core}) after the first step, for t = 0 (the thread of the "
    "loop) and for each number in /proc/self/task whose comm begins with pt_autograd; another core "
    "for each rank, and workers and threads of the program started before",
    refused="Refused where threads cannot be kept on a core (not Linux). Changes nothing where the "
    "process may use one core only. Threads that a library in C++ starts later stay on that core, "
    "too.",
    automatic=None,
)
_TASKS = "/proc/self/task"
_BACKWARD = "pt_autograd"
_TURNS = 20_000
"""Of the loop by which cores are compared: a millisecond."""
_ROUNDS = 4
"""A neighbour that computes now and then is met in one of them."""
_PARALLEL = 1 << 20
"""Numbers that PyTorch adds with all its threads, which then are there before one is bound."""


def after_step(change: Change, number: int) -> None:
    """A step has ended."""
    if number != 1:
        return
    if not hasattr(os, "sched_setaffinity") or not os.path.isdir(_TASKS):  # noqa: PTH112
        change.refuse("this system does not keep a thread on a core")
        return
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) == 1:
        change.left("the process may use one core only")
        return
    change.torch.zeros(_PARALLEL).add_(1)
    try:
        core, bound = bind(share_of(sorted(everywhere), *_place(os.environ)))
    except BaseException:
        os.sched_setaffinity(0, everywhere)
        raise
    start_others_on(everywhere)
    change.applied()
    change.note(f"the thread of the steps and {bound - 1} of autograd's stay on core {core}")


def bind(cores: list[int]) -> tuple[int, int]:
    """Keep this thread and autograd's on the quickest of some cores; it, and how many they are."""
    core, threads = quickest(cores), [0, *_backward_threads()]
    for thread in threads:
        os.sched_setaffinity(thread, {core})
    return core, len(threads)


def _place(variables: Mapping[str, str]) -> tuple[int, int]:
    """The rank on this machine, and how many there are; as if alone where that is not told."""
    rank, ranks = (variables.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    known = rank.isdigit() and ranks.isdigit() and int(rank) < int(ranks)
    return (int(rank), int(ranks)) if known else (0, 1)


def share_of(cores: list[int], rank: int, ranks: int) -> list[int]:
    """The cores that a rank chooses from: in as many parts as there are ranks, if that many."""
    if ranks > len(cores):
        return cores
    return cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]


def quickest(cores: list[int]) -> int:
    """The core on which the slowest of some loops takes the least; this thread is on the last."""
    slowest = dict.fromkeys(cores, 0)
    for _ in range(_ROUNDS):
        for core in cores:
            os.sched_setaffinity(0, {core})
            _loop_ns()  # its clock and its caches
            slowest[core] = max(slowest[core], _loop_ns())
    return min(cores, key=slowest.__getitem__)


def _loop_ns() -> int:
    import time

    began, total = time.perf_counter_ns(), 0
    for i in range(_TURNS):
        total += i * i
    return time.perf_counter_ns() - began


def _backward_threads() -> list[int]:
    found = []
    for task in os.listdir(_TASKS):  # noqa: PTH208 - pathlib costs start-up
        try:
            with open(f"{_TASKS}/{task}/comm", errors="replace") as file:  # noqa: PTH123
                if file.read().startswith(_BACKWARD):
                    found.append(int(task))
        except OSError:  # it has ended
            continue
    return found


def start_others_on(everywhere: set[int]) -> None:
    """Threads and processes that the program starts from now on may run on all cores again."""
    import multiprocessing.process
    import subprocess
    import threading

    def free(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def started(*arguments: Any, **named: Any) -> Any:
            bound = os.sched_getaffinity(0)
            os.sched_setaffinity(0, everywhere)
            try:
                return start(*arguments, **named)
            finally:
                os.sched_setaffinity(0, bound)

        return started

    for kind, name in (
        (threading.Thread, "start"),
        (multiprocessing.process.BaseProcess, "start"),
        (subprocess.Popen, "__init__"),
    ):
        setattr(kind, name, free(getattr(kind, name)))
