"""Which events count: those of a window of time, of a process, of a thread."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.trace.errors import UsageError

_UNITS_NS = {
    "": 1,
    "ns": 1,
    "nsec": 1,
    "us": 10**3,
    "usec": 10**3,
    "ms": 10**6,
    "msec": 10**6,
    "s": 10**9,
    "sec": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "hour": 3600 * 10**9,
}
_PART = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([a-z]*)")
_LIMIT_NS = (1 << 63) - 1


@dataclass(frozen=True)
class Scope:
    """Which events count; everything by default.

    An event counts when it begins in the window, ends in it, or spans it; durations are never
    clipped.

    Attributes:
        start_ns: begin of the window (inside).
        end_ns: end of the window (outside).
        process_id: only events of this process.
        thread_id: only events of this thread, in tables that name threads.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    process_id: int | None = None
    thread_id: int | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Scope()


def parse_time(text: str) -> int:
    """A time such as ``1s2ms`` or ``2.5ms``, ns.

    Raises:
        UsageError: it is not one.
    """
    total, position = 0.0, 0
    exact = 0
    while position < len(text):
        part = _PART.match(text, position)
        if not part or part[2] not in _UNITS_NS:
            break
        position = part.end()
        factor = _UNITS_NS[part[2]]
        if re.fullmatch(r"[+-]?\d+", part[1]):
            exact += int(part[1]) * factor
        else:
            total += float(part[1]) * factor
    if not text or position < len(text):
        raise UsageError(f"{text!r} is no time; write 1s2ms or 2.5ms (units ns, us, ms, s, m, h)")
    found = exact + round(total)
    return max(-_LIMIT_NS, min(_LIMIT_NS, found))


def time_scope(text: str) -> Scope:
    """The scope of ``[start]/[end]``.

    Raises:
        UsageError: it is not one, or the end comes first.
    """
    start, slash, end = text.partition("/")
    if not slash or not (start or end):
        raise UsageError(f"a window is [start]/[end], as in 1s/1500ms, not {text!r}")
    low = parse_time(start) if start else None
    high = parse_time(end) if end else None
    if low is not None and high is not None and low > high:
        raise UsageError(f"the window {text!r} ends before it begins")
    return Scope(low, high)
