"""Filters of the command line: a window of time, or the window of one NVTX range."""

from __future__ import annotations

import re

import numpy as np

from stepscope.tabular.attribution import range_ends, usable_ranges
from stepscope.tabular.source import Scope, Source
from stepscope.trace.errors import UsageError
from stepscope.trace.trace import Trace

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


def range_scope(trace: Trace, text: str) -> Scope | None:
    """The scope of ``range[@domain][/index]``; None when there is no such range.

    A range counts that carries exactly this text and domain (none for the default domain); the
    instances are numbered from 0 in order of start. A range of a process's main thread selects
    the whole process, one of another thread that thread's events and the process's GPU work.
    """
    name, domain, index = _split(text)
    source = Source(trace)
    ranges = usable_ranges(source)
    if not len(ranges):
        return None
    ranges = ranges.where(
        ranges.equals("name", (name,))
        & (ranges.equals("domain", (domain,)) if domain else ranges["domain"] < 0)
    )
    order = np.lexsort((ranges["id"], ranges["start_ns"]))
    if index >= len(order):
        return None
    row = order[index]
    process, thread = int(ranges["process_id"][row]), int(ranges["thread_id"][row])
    return Scope(
        int(ranges["start_ns"][row]),
        int(range_ends(source, ranges)[row]),
        process,
        None if process == thread else thread,
    )


def _split(text: str) -> tuple[str, str, int]:
    index = 0
    head, slash, tail = text.rpartition("/")
    if slash and tail.isdigit():
        text, index = head, int(tail)
    name, _, domain = text.partition("@")
    return name, domain, index
