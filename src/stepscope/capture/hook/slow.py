"""Asks for a dump when an optimizer step took much longer than those before it. On request only."""

import os
import sys
import time
from collections import deque
from typing import Any

_STEPS = 50
"""Steps whose median is the usual length: enough to be steady, few enough to follow a change."""
_LEAST = 10
"""Steps before anything is judged: the first ones are compilation and allocation."""


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read, whatever the program's umask."""
    return os.open(path, flags, 0o600)


class SlowSteps:
    """Compares the time between steps of an optimizer.

    It is the host's time: where nothing in a step waits for the GPU, a GPU that becomes slow is
    seen some steps later, when its queue is full.
    """

    def __init__(self, folder: str, factor: float) -> None:
        self._folder = folder
        self._factor = factor
        self._followed: Any = sys.modules["_stepscope_hook"].Followed()
        self._since = 0.0
        self._steps = 0
        self._lengths: deque[float] = deque(maxlen=_STEPS)
        self._note(0)

    def after(self, optimizer: object, *_: Any) -> None:
        """After each step of any optimizer."""
        now = time.perf_counter()
        if self._followed.begins(optimizer):
            self._note(1)
        elif self._followed.counts(optimizer):
            length = now - self._since
            if self._followed.changed:
                self._lengths.clear()
            self._steps += 1
            if self._steps <= _LEAST:
                self._note(1 + self._steps)
            if len(self._lengths) >= _LEAST:
                usual = sorted(self._lengths)[len(self._lengths) // 2]
                if length > self._factor * usual:
                    self._ask(length, usual)
            self._lengths.append(length)
        else:
            return
        self._since = now

    def _note(self, steps: int) -> None:
        """Tell the launcher how many steps there were, as long as none can be judged."""
        hook: Any = sys.modules["_stepscope_hook"]
        hook.note(hook.STEPS_MADE.format(os.getpid()), str(steps))

    def _ask(self, length_s: float, usual_s: float) -> None:
        process = os.getpid()
        why = (
            f"step {self._steps} of process {process} took {length_s * 1e3:.0f} ms, "
            f"{length_s / usual_s:.1f} times the usual {usual_s * 1e3:.0f} ms"
        )
        base = f"{self._folder}/slow-{process}"
        if os.path.exists(f"{base}.request"):  # noqa: PTH110
            return  # the dump that is on its way shows this step, too
        try:
            with open(f"{base}.made", "w", encoding="utf-8", opener=_private) as file:
                file.write(why)
            os.replace(f"{base}.made", f"{base}.request")  # noqa: PTH105
        except OSError as error:
            print(f"stepscope: no dump: {error}", file=sys.stderr)
