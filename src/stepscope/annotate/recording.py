"""When to record, said by the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepscope.annotate import listeners, ranges

Schedule = Callable[[int], object]
"""From the number of a step to whether it is recorded: a bool, or torch.profiler's action."""


def schedule(*, wait: int = 0, warmup: int = 0, active: int = 10, repeat: int = 1) -> Schedule:
    """Record ``active`` steps after ``wait + warmup`` others, ``repeat`` times (0: for ever).

    The arguments are those of ``torch.profiler.schedule``, whose result :func:`profile` takes, too.

    Raises:
        ValueError: a number is negative, or nothing would be recorded.
    """
    if min(wait, warmup, repeat) < 0 or active < 1:
        raise ValueError("wait, warmup and repeat must not be negative, active must be at least 1")
    length = wait + warmup + active

    def wanted(number: int) -> bool:
        round_, place = divmod(number, length)
        return place >= wait + warmup and (not repeat or round_ < repeat)

    return wanted


def _wants(action: object) -> bool:
    # torch.profiler's actions: NONE, WARMUP, RECORD, RECORD_AND_SAVE
    name = getattr(action, "name", None)
    return name.startswith("RECORD") if isinstance(name, str) else bool(action)


class profile:  # noqa: N801 - reads like torch.profiler.profile, which it stands beside
    """Record some steps only, as told by :func:`~stepscope.annotate.step`.

    ``with stepscope.profile(schedule=stepscope.schedule(wait=5, active=10)):`` around the loop.
    Run the program with ``stepscope run --paused``, or with ``nsys profile -c cudaProfilerApi``.
    Without a recorder nothing happens.

    Args:
        schedule: which steps, counted from the program's first; by default the whole block.
    """

    def __init__(self, schedule: Schedule | None = None) -> None:
        self._schedule = schedule
        self._on = False
        self._library = listeners.collector()

    def __enter__(self) -> profile:
        if self._schedule is None:
            self._switch(on=True)
        else:
            ranges.watch_steps(self._at)
        return self

    def __exit__(self, *_: object) -> None:
        ranges.unwatch_steps(self._at)
        ranges.end_steps()
        self._switch(on=False)

    def step(self) -> int:
        """As :func:`stepscope.annotate.step`; scripts written for torch.profiler call it here."""
        return ranges.step()

    def _at(self, number: int) -> None:
        assert self._schedule is not None
        self._switch(on=_wants(self._schedule(number)))

    def _switch(self, *, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        torch: Any = sys.modules.get("torch")
        gpu = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        if gpu:
            torch.cuda.synchronize()  # what was launched before belongs to the steps before
        if self._library is not None:
            (self._library.start if on else self._library.stop)()
        elif gpu:
            (torch.cuda.profiler.start if on else torch.cuda.profiler.stop)()
