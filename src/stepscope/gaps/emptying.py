"""Silences of the host that end as PyTorch's allocator gives its cache back: garbage collections.

``torch.cuda.empty_cache()`` releases all unused blocks, one call after another. It is called right
behind ``gc.collect()``, without which tensors in reference cycles are kept, and a collection of all
generations takes far longer than the releases. No capture shows it where collections are not
recorded, but what ends in such a series of releases is no work that a step needs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline
from stepscope.activity.host import HostTimeline
from stepscope.intervals import stab_innermost
from stepscope.intervals.distinct import among
from stepscope.trace.frame import BoolArray

MANY_RELEASES: Final = 4
"""So many releases in a row give a cache back; one or two make room for a large tensor."""


def with_collections(timeline: HostTimeline, gpu: GpuTimeline, step_label: str) -> HostTimeline:
    """The timeline with silences before the allocator's cache is emptied labelled as allocation.

    Args:
        timeline: what the host did.
        gpu: the device.
        step_label: name or stem of the ranges that mark steps; they say nothing about a part.
    """
    if not len(timeline.quiet[0]) or not gpu.ops.matches("name", words.TORCH_NAME).any():
        return timeline
    ends = _before_emptying(timeline, gpu)
    ends &= ~_named_apart(timeline, gpu, step_label)
    if not ends.any():
        return timeline
    return timeline.with_silences(ends, h.ALLOCATION)


def _before_emptying(timeline: HostTimeline, gpu: GpuTimeline) -> BoolArray:
    """Silences that the first of many releases ends."""
    api = gpu.host.api
    mine = np.flatnonzero(among(api["thread_id"], gpu.host.launch_threads))
    releases = api.matches("name", words.RELEASE_CALL)[mine]
    # the first call from each on that releases nothing
    other = np.append(np.flatnonzero(~releases), len(mine))
    first = np.searchsorted(api["start_ns"][mine], timeline.quiet[1])
    in_a_row = other[np.searchsorted(other[:-1], first)] - first
    return np.asarray(in_a_row >= MANY_RELEASES, np.bool_)


def _named_apart(timeline: HostTimeline, gpu: GpuTimeline, step_label: str) -> BoolArray:
    """Silences in a range that ends before the releases: it names other work."""
    start, end = timeline.quiet
    ranges = gpu.host.ranges
    if not len(ranges):
        return np.zeros(len(start), bool)
    telling = ~np.append(words.marking_steps(ranges.texts["name"], step_label), True)
    rows = np.flatnonzero(telling[ranges["name"]] & (ranges["thread_id"] == gpu.host.main_thread))
    if not len(rows):
        return np.zeros(len(start), bool)
    inner = stab_innermost(ranges["start_ns"][rows], ranges["end_ns"][rows], (start + end) // 2)
    until = np.where(inner >= 0, ranges["end_ns"][rows][inner], np.iinfo(np.int64).max)
    return np.asarray(until <= end, np.bool_)
