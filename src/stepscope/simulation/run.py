"""The steps of a rank that are replayed, and when its host begins and ends them."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.activity import names as words
from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import among


@dataclass(frozen=True)
class Run:
    """A contiguous run of steps of one rank.

    Attributes:
        first: first step.
        last: last step.
        begin_ns: when the host begins it.
        end_ns: when the host begins the step after it.
        measured_ns: length on the device's timeline, in total.
    """

    first: int
    last: int
    begin_ns: int
    end_ns: int
    measured_ns: int

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1


def run_of(e: Explanation, first: int, last: int) -> Run:
    """The run of the given steps."""
    begins = e.steps.begin_ns
    if last + 1 < len(begins):
        end = int(begins[last + 1])
    elif e.steps.open_end:
        # nothing marks the end of the last step: the host's part ends with its last launch
        mine = e.gpu.enqueue_begin_ns >= begins[last]
        end = int(e.gpu.enqueue_end_ns[mine].max()) if mine.any() else e.steps.end_ns
    else:
        stopped = _stopped(e, int(begins[first]), int(begins[last]))
        end = _returned(e, int(begins[last]), e.steps.end_ns) if stopped is None else stopped
    measured = int(e.bounds_ns[last + 1] - e.bounds_ns[first])
    return Run(first, last, int(begins[first]), max(end, int(begins[last]) + 1), measured)


def _stopped(e: Explanation, begin_ns: int, last_ns: int) -> int | None:
    """When the host begins the synchronisation that ends the recording and not the step.

    Who stops a recording after so many steps waits for all that was enqueued, and so does who times
    these steps. The steps of the run go on without that. A loop that synchronises by itself does so
    in other steps, too.

    Args:
        e: the explained device.
        begin_ns: when the host begins the run.
        last_ns: when it begins the last step of it.
    """
    host = e.gpu.host
    if not len(host.api) or not len(e.gpu.ops):
        return None
    start = host.api["start_ns"]
    whole = host.api.matches("name", words.DEVICE_SYNC_CALL)
    whole &= among(host.api["thread_id"], host.launch_threads) & (start >= begin_ns)
    calls = start[whole]
    enqueued = int(e.gpu.enqueue_begin_ns.max())
    if not len(calls) or calls[0] < max(last_ns, enqueued) or calls[0] >= e.steps.end_ns:
        return None
    return int(calls[0])


def _returned(e: Explanation, begin_ns: int, end_ns: int) -> int:
    """When the host has returned from the calls that it makes in the last step.

    A synchronisation that ends the step returns some microseconds after the last kernel has ended;
    cut off there it would wait for nothing, and hold the end of the step whatever is changed.
    """
    host = e.gpu.host
    if not len(host.api):
        return end_ns
    start = host.api["start_ns"]
    mine = (
        (start >= begin_ns) & (start < end_ns) & among(host.api["thread_id"], host.launch_threads)
    )
    return max(end_ns, int(host.api["end_ns"][mine].max(initial=end_ns)))
