"""How much time and memory a statement may take, and its end when it takes more."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from stepscope.trace.errors import LimitError, UsageError

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

TIMEOUT: Final = "STEPSCOPE_QUERY_TIMEOUT"
MEMORY: Final = "STEPSCOPE_QUERY_MEMORY"
DEFAULT_TIMEOUT_S: Final = 300.0
LONGEST_TIMEOUT_S: Final = 1e6
LEAST_MEMORY_BYTES: Final = 32 << 20
"""DuckDB needs some memory to read a table at all."""
_POLL_S: Final = 0.02
_GRACE_S: Final = 1.0
"""DuckDB looks for an interrupt between pieces of work; some functions work long on one piece."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Limits:
    """What a statement may take.

    Attributes:
        timeout_s: seconds.
        memory_bytes: bytes, of what it computes and of its answer.
    """

    timeout_s: float
    memory_bytes: int

    def within(self, timeout_s: float | None) -> Limits:
        """The same with other seconds, where any are given.

        Raises:
            UsageError: they are no time.
        """
        if timeout_s is None:
            return self
        return replace(self, timeout_s=_seconds("--timeout", timeout_s))


def from_environment() -> Limits:
    """The limits that the environment sets, else the usual ones: 300 s, half of the memory.

    Raises:
        UsageError: a variable holds no such limit.
    """
    text = os.environ.get(TIMEOUT, "").strip()
    try:
        timeout_s = _seconds(TIMEOUT, float(text)) if text else DEFAULT_TIMEOUT_S
    except ValueError as error:
        raise UsageError(f"{TIMEOUT} is {text[:40]!r}, no number of seconds; give 60") from error
    return Limits(timeout_s, _memory_bytes(os.environ.get(MEMORY, "").strip()))


def _seconds(name: str, value: float) -> float:
    if not 0 < value <= LONGEST_TIMEOUT_S:  # a NaN is refused, too
        raise UsageError(
            f"{name} is {value:g}; give seconds above 0, up to {LONGEST_TIMEOUT_S:,.0f}"
        )
    return value


def _memory_bytes(text: str) -> int:
    if not text:
        return max(LEAST_MEMORY_BYTES, _machine_bytes() // 2)
    match = _SIZE.fullmatch(text)
    found = float(match[1]) * _UNITS[match[2].upper()] if match else 0.0
    if not LEAST_MEMORY_BYTES <= found < 1 << 60:
        raise UsageError(
            f"{MEMORY} is {text[:40]!r}; give a size of at least {size(LEAST_MEMORY_BYTES)}, "
            "such as 4GB"
        )
    return int(found)


def _machine_bytes() -> int:
    """Memory of the machine, or of the container that this runs in."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found = min(found, int(Path("/sys/fs/cgroup", name).read_text()))
    return found


def size(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / (1 << 30):.3g} GB" if count >= 1 << 30 else f"{count / (1 << 20):.3g} MB"


def limited(work: Callable[[], T], connection: duckdb.DuckDBPyConnection, limits: Limits) -> T:
    """Run a statement, and end it when it takes too much or Ctrl+C comes.

    It runs in a thread of its own, so that this one hears Ctrl+C. What does not heed the interrupt
    is left behind, which the error says: its connection must not be used again.

    Raises:
        LimitError: it took too much.
    """
    task = _Task(work)
    task.start()
    ends, before = time.monotonic() + limits.timeout_s, _resident_bytes()
    try:
        while not task.over(_POLL_S):
            if time.monotonic() > ends:
                raise too_long(limits)
            if _resident_bytes() - before > limits.memory_bytes:
                raise too_large(limits)
    except BaseException as error:
        until = time.monotonic() + _GRACE_S
        while not task.over(_POLL_S) and time.monotonic() < until:
            connection.interrupt()
        if isinstance(error, LimitError):
            error.left_running = not task.over(0)
        raise
    return task.result()


class _Task(Generic[T]):
    """Something that runs in a thread which does not keep the process alive."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._found: list[T] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stepscope-query", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:
            self._failure = error

    def over(self, timeout_s: float) -> bool:
        """Whether it has ended, at once or within a time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        if self._failure is not None:
            raise self._failure
        return self._found[0]


def too_long(limits: Limits) -> LimitError:
    """The error for a statement that takes too long."""
    return LimitError(
        f"the statement was ended after {limits.timeout_s:g} s; ask for less, or allow more with "
        f"--timeout or {TIMEOUT}"
    )


def too_large(limits: Limits) -> LimitError:
    """The error for a statement that needs too much memory."""
    return LimitError(
        f"the statement was ended: it needs more than {size(limits.memory_bytes)} of memory; ask "
        f"for less, or allow more with {MEMORY}"
    )


def _resident_bytes() -> int:
    """Memory that this process holds; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - fifty times a second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
