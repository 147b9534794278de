"""Where the time of each step goes on a device: exact, in integer nanoseconds.

Identity (per device and step window)::

    wall = compute + exposed communication + exposed copy + memset-only + idle

Overlaps are resolved by that priority: communication counts as exposed only where no compute
kernel runs, a copy only where neither runs, and so on. What was hidden is reported beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.activity.device import Lane
from stepscope.intervals import overlap_per_window, subtract, union
from stepscope.intervals.algebra import Intervals, Ints
from stepscope.trace.frame import BoolArray, IntArray


@dataclass(frozen=True)
class Accounting:
    """Per window, ns; all arrays have one value a window.

    ``wall_ns == compute_ns + exposed_communication_ns + exposed_copy_ns + memset_ns + idle_ns``
    holds exactly. ``communication_ns`` and ``copy_ns`` are the full unions, hidden parts included;
    ``exposed_host_copy_ns`` is the time in which copies between host and device run and no kernel
    does.
    """

    wall_ns: IntArray
    compute_ns: IntArray
    exposed_communication_ns: IntArray
    exposed_copy_ns: IntArray
    memset_ns: IntArray
    idle_ns: IntArray
    communication_ns: IntArray
    copy_ns: IntArray
    exposed_host_copy_ns: IntArray


def host_device_copies(lane: Lane) -> BoolArray:
    """Copies that cross between host and device."""
    ops = lane.ops
    return ops.equals("kind", "memcpy") & ~ops.equals("copy_kind", "DtoD", "PtoP")


def account(lane: Lane, begin: Ints, end: Ints) -> Accounting:
    """Account for the device's time in each window ``[begin[i], end[i])``.

    Args:
        lane: the device.
        begin: window begins, ns.
        end: window ends, ns.
    """
    ops = lane.ops
    compute = lane.union_of(lane.is_compute)
    communication = lane.union_of(lane.is_communication)
    copy = lane.union_of(ops.equals("kind", "memcpy"))
    kernels = lane.union_of(lane.is_kernel)
    kernels_and_copies = union(ops["start_ns"][~ops.equals("kind", "memset")],
                               ops["end_ns"][~ops.equals("kind", "memset")])  # fmt: skip

    def inside(intervals: Intervals) -> IntArray:
        return overlap_per_window(intervals, begin, end)

    busy, kernel_ns = inside(lane.busy), inside(kernels)
    compute_ns, no_memset_ns = inside(compute), inside(kernels_and_copies)
    return Accounting(
        wall_ns=end - begin,
        compute_ns=compute_ns,
        exposed_communication_ns=kernel_ns - compute_ns,
        exposed_copy_ns=no_memset_ns - kernel_ns,
        memset_ns=busy - no_memset_ns,
        idle_ns=(end - begin) - busy,
        communication_ns=inside(communication),
        copy_ns=inside(copy),
        exposed_host_copy_ns=inside(subtract(lane.union_of(host_device_copies(lane)), kernels)),
    )
