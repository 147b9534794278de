"""What one rank does, as a list of items that can be replayed.

An *item* is something the host does in program order that matters to the device: it enqueues a GPU
operation, waits for one, or begins a step. All other host time is the *work* before an item.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.gaps.idle import CAUSES
from stepscope.trace.frame import BoolArray, IntArray

LAUNCH = 0
WAIT = 1
MARK = 2

C = {cause: column for column, cause in enumerate(CAUSES)}
"""Column of each cause in :attr:`Program.work_ns`."""

QUEUE_DEPTH = 1024
"""Launches that a stream holds before a launching call has to wait. Not documented by NVIDIA;
1022 or 1023 operations were outstanding on an H200 whenever a launch blocked."""


@dataclass(frozen=True)
class Program:
    """The items of a run of whole steps, in host order; arrays have one value an item.

    References to other items are item numbers. A negative number ``-k`` is the k-th item from the
    end of the run before: the run is replayed several times in a row.

    Attributes:
        kind: ``LAUNCH``, ``WAIT`` or ``MARK``.
        op: row of ``lane.ops``; -1 for other items.
        at_ns: measured begin of the item's call.
        work_ns: host time before the item by cause, one column a cause of ``gaps.CAUSES``; that of
            the first item is the host time after the last one.
        call_ns: host time inside the item's call, without waiting.
        recording_ns: part of both that is the estimated cost of recording.
        recording_silent_ns: of that, what was recorded during long silences.
        stream: number of the operation's stream.
        latency_ns: from the begin of the call to the earliest start of the operation.
        turnaround_ns: from the end of the predecessor on the stream to the earliest start.
        delay_ns: further delay of the start that nothing explains.
        duration_ns: of the operation; of a matched collective the transfer.
        hosted: whether the enqueueing call is known.
        blocks: the call waits for its own operation.
        wait_cause: cause of the wait of an item that waits (a column), else -1.
        return_ns: from the end of what an item waits for to the return of its call; may be
            negative for a copy whose call returns while the last piece is under way.
        instance: id of the matched collective; -1 for none.
        depends: operation item -> items on other streams that must have ended, with the
            turnaround from each, ns.
        waits: waiting item -> items that must have ended.
        inferred: operation items whose dependencies were inferred, not recorded.
        behind: item whose operation must have started before the call goes on: the one that is
            the depth of the launch queue before it on its stream.
        communication: operation items that are communication kernels.
    """

    kind: IntArray
    op: IntArray
    at_ns: IntArray
    work_ns: IntArray
    call_ns: IntArray
    recording_ns: IntArray
    recording_silent_ns: IntArray
    stream: IntArray
    latency_ns: IntArray
    turnaround_ns: IntArray
    delay_ns: IntArray
    duration_ns: IntArray
    hosted: BoolArray
    blocks: BoolArray
    wait_cause: IntArray
    return_ns: IntArray
    instance: IntArray
    depends: dict[int, tuple[tuple[int, int], ...]]
    waits: dict[int, tuple[int, ...]]
    inferred: frozenset[int]
    behind: IntArray
    communication: BoolArray

    def __len__(self) -> int:
        return len(self.kind)
