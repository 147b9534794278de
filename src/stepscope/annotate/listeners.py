"""Who listens: Stepscope's collector, a tool that reads NVTX, or torch.profiler."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

_NVTX_VARIABLES = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
Push = Callable[[str], object]
Pop = Callable[[], object]


class Library:
    """The collector's library in this process."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._push = self._library.stepscope_push
        self._push.argtypes = (ctypes.c_char_p,)
        self.pop: Pop = self._library.stepscope_pop
        self.start: Callable[[], object] = self._library.stepscope_start
        self.stop: Callable[[], object] = self._library.stepscope_stop

    def push(self, name: str) -> None:
        """Open a range."""
        self._push(name.encode("utf-8", "replace"))


def collector() -> Library | None:
    """The collector, where this program is recorded by it; None elsewhere."""
    if "STEPSCOPE_CAPTURE" not in os.environ:
        return None
    try:
        with open(os.environ["STEPSCOPE_CAPTURE"], encoding="utf-8") as lines:  # noqa: PTH123
            metadata = dict(line.rstrip("\n").partition("=")[::2] for line in lines)
        return Library(metadata["library"])
    except (OSError, KeyError, AttributeError):
        return None


def nvtx() -> tuple[Push, Pop] | None:
    """NVTX through torch, where a tool that reads it is there and torch is loaded."""
    if not any(os.environ.get(name) for name in _NVTX_VARIABLES):
        return None
    torch: Any = sys.modules.get("torch")
    try:
        return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    except AttributeError:
        return None


def torch_profiler() -> Callable[[str], Any] | None:
    """``record_function``, while torch.profiler records; None otherwise."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is not None and torch.autograd._profiler_enabled():
            record: Callable[[str], Any] = torch.autograd.profiler.record_function
            return record
    except AttributeError:
        pass
    return None
