"""Copies between host and device that nothing hides."""

from __future__ import annotations

import math
from dataclasses import replace

from stepscope.breakdown.recurrence import LARGE_BYTES, of_idle_time, uneven_copies_ns
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.frameworks import in_cuda, in_jax
from stepscope.diagnosis.workloads import in_inference

_ID = "blocking_copy"
_PAGEABLE = "(src_memory = 'pageable' OR dst_memory = 'pageable')"
_OTHERS = "cause IN ('checkpoint_stall', 'cpu_offload')"


@in_cuda(
    "pin the host's buffers once: cudaHostAlloc, or cudaHostRegister for memory that is there",
    "copy by cudaMemcpyAsync on a stream of its own, in parts, so that one part moves while "
    "another is computed",
    "copy less: keep on the device what does not change and what the next kernel needs, and read "
    "back results alone",
)
@in_jax(
    "enqueue jax.device_put of the next batch before results of this step are read: the "
    "copy then overlaps with the step",
    "keep on the device what does not change, and do not wait for copies (block_until_ready)",
    "copy less: smaller types (uint8, bfloat16), converted inside the jitted function",
)
@in_inference(
    "where weights stay in host memory (CPU offload, a device_map that does not fit): keep more of "
    "them on the GPU, quantised if need be, and upload those of the next layer from pinned memory "
    "on another stream while this one computes",
    "keep on the GPU what the next step needs: the cache of keys and values, sampled tokens, "
    "positions; raise the memory that the cache may take rather than swap it to the host",
    "pin the host buffers that inputs and results pass through, and copy with non_blocking=True",
    "read results one step later, so that the copy overlaps with the next step",
)
def detect(case: Case) -> Detection | None:
    """Exposed host-device copies, and the idle time that waiting for them leaves."""
    copies = case.explanation.copies
    # copies that save state are the checkpoint's, those that come back the offload's
    copied = case.explanation.steady_total("exposed_host_copy_ns")
    copied -= int(case.explanation.stalls.copy_ns.sum())
    copied -= int(case.explanation.offload.copy_ns.sum())
    exposed = copied / case.explanation.n_steady
    time = exposed + case.idle_ns(_ID)
    if not copies.count or not time:
        return None
    where = case.place(_ID)
    pageable = copies.pageable_bytes > copies.bytes / 2
    message = (
        "copies from or to pageable memory block the host and run while the GPU does nothing else"
        if pageable
        else "copies between host and device run while the GPU does nothing else"
    )
    recommendations = [
        "pin the host memory: DataLoader(pin_memory=True), or tensor.pin_memory() once for buffers "
        "that are used again",
        "copy with tensor.to(device, non_blocking=True)",
        "copy the next batch on a side stream while the current step computes",
        "copy less: keep on the device what does not change, send smaller types (uint8, bf16), "
        "read results back rarely",
    ]
    if not pageable:
        # copies that keep neither host nor device waiting are asynchronous already
        recommendations = recommendations[1 if case.idle_ns(_ID) else 2 :]
    uneven = uneven_copies_ns(case.explanation)
    if uneven:
        message += (
            "; copies of one size take {quick_copy_ns} to {slow_copy_ns}: pages of host memory "
            "that were not used before are mapped meanwhile, as it happens in some steps or all"
        )
    in_window = "kind = 'memcpy' AND copy_kind IN ('HtoD', 'DtoH') AND {gpu} AND {window}"
    figures = [
        idle_figure(_ID),
        Figure(
            "exposed_host_copy_ns",
            "ns",
            "SELECT sum(exposed_host_copy_ns)::BIGINT FROM step WHERE steady AND {gpu}",
        ),
        Figure(
            "copies_of_other_causes_ns",
            "ns",
            "SELECT coalesce(sum(exposed_copy_ns), 0)::BIGINT FROM host_event "
            f"WHERE {_OTHERS} AND {{gpu}}",
        ),
        Figure("copies", "count", f"SELECT count(*) FROM gpu_op WHERE {in_window}"),
        Figure("copied_bytes", "bytes", f"SELECT sum(bytes)::BIGINT FROM gpu_op WHERE {in_window}"),
        Figure(
            "pageable_bytes",
            "bytes",
            f"SELECT coalesce(sum(bytes), 0)::BIGINT FROM gpu_op WHERE {in_window} AND {_PAGEABLE}",
        ),
    ]
    if uneven:
        figures += [
            Figure(name, "ns", _of_uneven(f"quantile_disc(ns, {part})", in_window))
            for name, part in (("quick_copy_ns", 0.1), ("slow_copy_ns", 0.9))
        ]
    rare = of_idle_time(case.explanation, _ID)
    return Detection(
        time_ns=time,
        uncertain_ns=case.idle_ns("launch_bound"),
        direct_ns=exposed + case.direct_ns(_ID),
        time_sql=(
            "SELECT round((sum(exposed_host_copy_ns) + coalesce((SELECT sum(end_ns - start_ns) "
            f"FROM idle_gap WHERE cause = '{_ID}' AND {{gpu}}), 0) "
            "- coalesce((SELECT sum(exposed_copy_ns) FROM host_event "
            f"WHERE {_OTHERS} AND {{gpu}}), 0)) / count(*))::BIGINT "
            "FROM step WHERE steady AND {gpu}"
        ),
        message=message,
        recommendations=recommendations,
        figures=figures,
        where=where,
        rare=replace(rare, chance=math.hypot(rare.chance, uneven / time)),
    )


def _of_uneven(value: str, in_window: str) -> str:
    """A statement on the large copies of the size of which some take longest over others."""
    return (
        f"SELECT {value}::BIGINT FROM (SELECT end_ns - start_ns AS ns, bytes FROM gpu_op "
        f"WHERE {in_window} AND {_PAGEABLE} AND bytes >= {LARGE_BYTES}) GROUP BY bytes "
        "ORDER BY quantile_disc(ns, 0.9) - quantile_disc(ns, 0.1) DESC, bytes LIMIT 1"
    )


CAUSE = Cause(
    id=_ID,
    title="Blocking copy",
    definition=(
        "Data moves between host and device while the GPU computes nothing. A copy from pageable "
        "memory is staged by the driver and blocks the calling thread; the launch queue drains "
        "meanwhile, and the first launches afterwards are late."
    ),
    differential=(
        "host_sync reads a scalar (up to 64 KiB): its cost is the waiting, not the transfer. "
        "input_starvation is the preparation of the batch before its copy. A copy that overlaps "
        "with kernels is not exposed and costs nothing."
    ),
    prediction=(
        "the step with pinned copies that nobody waits for, in the order of their stream and at "
        "the bandwidth of the capture's pinned copies, or of the device's bus; at best they are "
        "hidden, as on a stream of their own. Where no copy keeps the host waiting, uploads "
        "between kernels move to that stream: nothing else is left to repair"
    ),
    reference="NVIDIA CUDA best practices: pinned memory, asynchronous transfers",
    min_share=0.05,
    remedies=(
        "upload from page-locked memory: DataLoader(pin_memory=True), then .to('cuda', "
        "non_blocking=True)",
        "read results less often, and into page-locked buffers that are kept",
        "make on the GPU what need not come from the CPU: masks, positions, random numbers",
    ),
    detect=detect,
)
