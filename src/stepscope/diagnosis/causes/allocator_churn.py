"""Device memory is allocated and released inside the step."""

from __future__ import annotations

import re

import numpy as np

from stepscope.activity import names as words
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.frameworks import is_jax, is_torch
from stepscope.gaps.emptying import MANY_RELEASES
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.units import Unit

_ID = "allocator_churn"


_ALLOCATES = "^(cuda|hip)(Malloc|HostAlloc)|^cuMem(Alloc|Create|Map)"
_RELEASES = words.RELEASE_CALL.pattern
_FAR_LONGER = 2
"""Releases wait for the device as long as it works: idle time is what the calls take, or less."""
_MANY = 8  # a step that releases so many blocks gives the whole cache back


def detect(case: Case) -> Detection | None:
    """Idle time during allocation calls, and what is late after the waits they force."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    e = case.explanation
    api = e.gpu.host.api
    inside = (api["start_ns"] >= e.begin_ns) & (api["start_ns"] < e.end_ns)
    released, allocated = (
        int((inside & api.matches("name", re.compile(pattern))).sum()) / e.n_steady
        for pattern in (_RELEASES, _ALLOCATES)
    )
    message = "the GPU idles while the host allocates and releases memory inside the step"
    emptied = min(released, allocated) >= _MANY
    framework = is_torch(case) or is_jax(e.gpu)
    if emptied or not framework:
        message += (
            "; {releases} releases and {allocations} allocations in all these steps take "
            "{in_calls_ns} of the host's time"
        )
    one_by_one = framework and emptied and _released_one_by_one(case)
    if one_by_one:
        message += (
            ": blocks are given back one or a few at a time between launches, as when the "
            "allocator keeps no cache (PYTORCH_NO_CUDA_MEMORY_CACHING)"
        )
    elif emptied and framework:
        message += (
            ": the allocator's cache is emptied again and again, by torch.cuda.empty_cache() "
            "or because memory is nearly full"
        )
    in_calls = float((api["end_ns"] - api["start_ns"])[
        inside & api.matches("name", words.ALLOCATION_CALL)
    ].sum()) / e.n_steady  # fmt: skip
    collects = framework and released >= MANY_RELEASES and time > _FAR_LONGER * in_calls
    if collects:
        message += (
            "; most of the time passes before the releases, without a CUDA call, as it does while "
            "gc.collect() looks through all objects"
        )
    recommendations = [
        "allocate before the loop and use the buffers again; release them behind it",
        "where sizes change: one buffer of the largest size, or cudaMallocAsync and cudaFreeAsync, "
        "which take from a pool and do not wait for the device",
        "cudaFree waits for the device: what is released in between keeps the next launch back",
    ]
    if framework:
        recommendations = [
            "remove torch.cuda.empty_cache() from the loop"
            + (", and gc.collect() before it" if collects else " (and gc.collect() with it)"),
            "keep shapes constant, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "leave headroom: near the memory limit the caching allocator releases and retries",
        ]
    if one_by_one:
        recommendations = [
            "unset PYTORCH_NO_CUDA_MEMORY_CACHING (PYTORCH_NO_HIP_MEMORY_CACHING): it is for "
            "debugging",
            "where it is not set: take torch.cuda.empty_cache() out of what runs for each operator",
        ]
    return Detection(
        time_ns=time,
        direct_ns=case.direct_ns(_ID),
        uncertain_ns=case.idle_ns("launch_bound"),
        message=message,
        recommendations=recommendations,
        figures=[
            idle_figure(_ID),
            _calls("allocations", "count(*)", "count", _ALLOCATES),
            _calls("releases", "count(*)", "count", _RELEASES),
            _calls(
                "in_calls_ns",
                "coalesce(sum(end_ns - start_ns), 0)::BIGINT",
                "ns",
                f"{_ALLOCATES}|{_RELEASES}",
            ),
        ],
        where=case.place(_ID),
    )


def _released_one_by_one(case: Case) -> bool:
    """Whether a step gives back few blocks in each of many places.

    A cache gives back all that is free at once, in one place for each time that it is emptied.
    """
    e = case.explanation
    api = e.gpu.host.api
    inside = (api["start_ns"] >= e.begin_ns) & (api["start_ns"] < e.end_ns)
    releases = np.sort(api["start_ns"][inside & api.matches("name", words.RELEASE_CALL)])
    launches = np.sort(e.gpu.enqueue_begin_ns)
    # releases with as many launches before them are in one place
    places = len(distinct_values(np.searchsorted(launches, releases)))
    return places >= _MANY * e.n_steady and len(releases) < _MANY * places


def _calls(name: str, value: str, unit: Unit, pattern: str) -> Figure:
    return Figure(
        name,
        unit,
        f"SELECT {value} FROM api_call WHERE regexp_matches(name, '{pattern}') "
        "AND {process} AND {window}",
    )


CAUSE = Cause(
    id=_ID,
    title="Allocator churn",
    definition=(
        "cudaMalloc and cudaFree take 0.1 to several milliseconds, and cudaFree waits for the "
        "device. In a steady step there should be none: PyTorch keeps released blocks in a cache. "
        "Where the cache is emptied each step, every block is asked for again."
    ),
    differential=(
        "The wait inside cudaFree is not host_sync: it goes with the call. launch_bound has late "
        "launches without such calls. "
        "A silence of the host that ends as PyTorch's cache is given back is gc.collect(), which "
        "is called there, and belongs to it, unless a range of its own says otherwise. "
        "The first steps allocate by right: they are set aside as warm-up. Pinning host memory "
        "for a batch belongs to the input pipeline when an annotation says so."
    ),
    prediction=(
        "the step without the idle time during allocation calls, and in collections of garbage "
        "right before the cache is emptied"
    ),
    reference="PyTorch documentation: CUDA semantics, memory management",
    min_share=0.05,
    remedies=(
        "take torch.cuda.empty_cache() out of the loop, and gc.collect() with it",
        "keep shapes the same from step to step, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "`stepscope memory CAPTURE` shows what was allocated and by whom, where allocations are"
        " recorded",
        "unset PYTORCH_NO_CUDA_MEMORY_CACHING: without a cache each tensor is allocated and given "
        "back",
    ),
    detect=detect,
)
