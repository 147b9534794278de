"""The device waits for the next batch."""

from __future__ import annotations

import math
from typing import Final

from stepscope.breakdown.recurrence import LATE, idle_by_step
from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.frameworks import in_cuda, in_jax
from stepscope.diagnosis.loader import Loader, loader_of
from stepscope.diagnosis.thread_states import with_thread_states
from stepscope.diagnosis.workloads import in_inference
from stepscope.gaps.untraced_cpu import (
    BATCH_PINNED,
    BATCH_UPLOADED,
    EVIDENCE,
    NAMED_INPUT,
    OS_WAIT,
)
from stepscope.simulation import LoadedBeside
from stepscope.trace.frame import IntArray

_ID = "input_starvation"
_MADE_ON_THREAD: Final = (
    "where the training thread makes the batch itself: make it on the GPU, compute only the part "
    "that the step uses, vectorise loops, or let another process or thread make the next one "
    "meanwhile"
)
_AWAY_FROM_THREAD: Final = (
    "move decoding and augmentation off the training thread, or prepare the data offline"
)
_AWAY_FROM_WORKERS: Final = (
    "give the workers less to do: decode and augment on the GPU, or prepare the data offline"
)
_SELDOM: Final = 0.34
"""Share of the steps up to which waits are the exception: prefetched batches cover the others."""
_LATE_STEPS: Final = (
    "SELECT count(*) FILTER (waited > 0.1 * most) FROM (SELECT waited, max(waited) OVER () AS most "
    "FROM (SELECT step, sum(end_ns - start_ns) AS waited FROM idle_gap "
    f"WHERE cause = '{_ID}' AND {{gpu}} GROUP BY step))"
)
_FROM = (
    "FROM step, (SELECT sum(end_ns - start_ns) AS waited FROM idle_gap "
    f"WHERE cause = '{_ID}' AND {{gpu}}) WHERE steady AND {{gpu}}"
)
_PERIOD = "sum(wall_ns) / count(*)"
_WAIT = "any_value(waited) / count(*)"
_WORK = "(sum(wall_ns) - any_value(waited)) / count(*)"


@with_thread_states(_ID)
@in_cuda(
    "read ahead: a thread that fills the next buffer while the GPU works on the last one",
    "pin those buffers (cudaHostAlloc) and upload by cudaMemcpyAsync: the copy overlaps as well",
    "read faster: in large pieces, mapped files, or past the host (GPUDirect Storage)",
)
@in_jax(
    "prepare batches in other processes or threads, some ahead: grain's "
    "DataLoader(worker_count=...), tf.data with prefetch, torch's DataLoader",
    "enqueue jax.device_put of the next batch before results of this step are read, so that"
    " the copy overlaps",
    "move decoding and augmentation off the training thread, or prepare the data offline",
)
@in_inference(
    "prepare the next request while the GPU works on this one: in worker processes or threads, "
    "such as num_workers and batch_size of a transformers pipeline",
    "preprocess on the GPU: the fast image and video processors of transformers (use_fast=True, "
    "device='cuda'), torchvision.transforms.v2 on CUDA tensors, torchcodec or DALI for decoding",
    "preprocess once and keep the result where inputs repeat",
    "pin the prepared tensors and copy with non_blocking=True, so that the copy overlaps too",
)
def detect(case: Case) -> Detection | None:
    """Idle time in which the training thread was getting input."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    segments = case.explanation.gaps.segments
    codes = set(segments["evidence"][case.explanation.segments_of(_ID)].tolist())
    weak = codes == {BATCH_UPLOADED}
    pinned = BATCH_PINNED in codes
    why = [EVIDENCE[c] for c in (NAMED_INPUT, OS_WAIT, BATCH_PINNED, BATCH_UPLOADED) if c in codes]
    where = case.place(_ID)
    inside = " in {range}" if where.range else " in {function}" if where.function else ""
    message = (
        f"the GPU waits while the CPU prepares its input{inside}"
        if case.explanation.workload.infers
        else f"the GPU waits for the next batch{inside}"
    )
    if why:
        message += f" ({why[0]})"
    loader = loader_of(case, pinned_on_main=pinned)
    figures = [
        idle_figure(_ID),
        Figure("work_ns_per_step", "ns_per_step", f"SELECT {_WORK} {_FROM}"),
        *loader.figures(),
    ]
    more, pace_text = _pace(loader, case.explanation.n_steady)
    figures += more
    message += pace_text
    limited_by_pinning = bool(loader.pinning_ns and loader.pinning_ns[0] > case.step_ns - time)
    if limited_by_pinning:
        message += (
            "; the one thread that copies {pinned_bytes_per_step} per step into pinned memory then "
            "limits it, with some {pinning_ns_per_step}"
        )
    waits = idle_by_step(case.explanation, _ID)
    late = int((waits > LATE * waits.max()).sum())
    seldom = late <= _SELDOM * len(waits)
    if seldom:
        figures += [
            Figure("late_steps", "count", _LATE_STEPS),
            Figure("steady_steps", "count", "SELECT count(*) FROM step WHERE steady AND {gpu}"),
        ]
        message += (
            "; nearly all of it lies in {late_steps} of {steady_steps} steps: a longer capture "
            "tells the mean step of today better, on which the gain depends"
        )
    used_up = loader.who == "workers" and _uses_up(waits)
    # steps that use up what was ready say nothing of the others
    rare = None if used_up else loader.brought(case.step_ns, time)
    if used_up:
        message += (
            "; the first steps had batches that were ready before the capture began, so that the "
            "run as a whole waits longer" + ("" if loader.lacks_cpus else " and gains more")
        )
    if weak:
        message += (
            "; whether the training thread waits for a batch, makes it itself (NumPy, Python), or "
            "does other work before it, the capture does not show"
            if loader.who == "unknown"
            else "; without annotations, other host work between steps looks the same"
        )
    recommendations = [
        "raise DataLoader(num_workers=...) until the wait disappears, with "
        "persistent_workers=True and prefetch_factor=4",
        _AWAY_FROM_WORKERS if loader.who == "workers" else _AWAY_FROM_THREAD,
        "keep pin_memory=True and copy with non_blocking=True, so that the copy overlaps too",
    ]
    if limited_by_pinning:
        recommendations.append(
            "send fewer bytes: images as uint8, which are made float and normalised on the GPU"
        )
    if loader.who == "main":
        recommendations[0] = (
            "the batch is prepared on the training thread itself: set DataLoader(num_workers=...), "
            "with persistent_workers=True and prefetch_factor=4"
        )
    elif weak and loader.who == "unknown":
        recommendations[0] = (
            "where a DataLoader makes the batches: raise num_workers until the wait disappears, "
            "with persistent_workers=True and prefetch_factor=4"
        )
        recommendations.insert(0, _MADE_ON_THREAD)
    if loader.lacks_cpus:
        recommendations[0] = (
            "make a batch cheaper for the CPUs, which are all in use: one thread a worker "
            "(OMP_NUM_THREADS=1, OPENBLAS_NUM_THREADS=1, cv2.setNumThreads(0)), data that is "
            "decoded beforehand, decoding and augmentation on the GPU, or more CPUs"
        )
    return Detection(
        time_ns=time,
        uncertain_ns=case.idle_ns("launch_bound"),
        direct_ns=case.direct_ns(_ID),
        message=message,
        recommendations=recommendations,
        texts=where.texts(),
        figures=figures,
        where=where,
        also=(LoadedBeside(round(min(time / max(case.step_ns - time, 1.0), 1.0), 3)),),
        rare=rare,
        supply_ns=_supply(loader, case.step_ns, time),
        at_least=used_up and not loader.lacks_cpus,
        next_capture=(
            captures.LONGER if used_up else captures.WAITS if weak or not codes - {-1} else None
        ),
    )


def _supply(loader: Loader, step_ns: float, waited_ns: float) -> tuple[float, float, float] | None:
    """What bringing input takes a step beside the work of the training thread, ns.

    Expected, least and most. Where workers lack CPUs, the repair gains between nothing and all:
    threads that wait for a CPU may have work of their own, or only wait for each other (spinning).
    Halfway, as a ratio, is expected.
    """
    pinning = loader.pinning_ns
    if not loader.lacks_cpus:
        return pinning
    least = pinning[1] if pinning else 0.0
    expected = math.sqrt(step_ns * max(step_ns - waited_ns, 0.0))
    return max(expected, pinning[0] if pinning else 0.0), least, step_ns


def _uses_up(waits: IntArray) -> bool:
    """Whether steps use up batches that were prepared ahead: late steps wait, early ones do not.

    A recording begins after a pause in which workers go on; what they prepared meanwhile covers the
    first steps. Half of the steps that hardly wait, then nearly all of the waiting, is that.
    """
    half = len(waits) // 2
    total = int(waits.sum())
    return half >= 2 and total > 0 and int(waits[:half].sum()) <= LATE * total


_NO_CPU: Final = (
    "; the workers' threads keep {worker_cpus} CPUs busy and find none free for "
    "{workers_without_cpu} of the time: more workers gain little before a batch takes less of them"
)


def _pace(loader: Loader, steps: int) -> tuple[list[Figure], str]:
    """At what pace batches come, and how many workers would keep up: figures and a template.

    Of a single step's batch it is not known how long its worker took: it may have been ready, or
    the workers have begun with it.
    """
    if loader.fetch_ns:
        pace_text = (
            "; one worker makes the batches and takes {fetch_ns} for each"
            if loader.workers == 1
            else "; {loader_workers} workers take {fetch_ns} for a batch each"
        ) + ", the rest of the step takes {work_ns_per_step}"
        if loader.lacks_cpus:
            return [], pace_text + _NO_CPU
        keep_up = ": {workers_needed} workers would keep up, given as many CPUs"
        return [loader.workers_needed(f"SELECT {_WORK} {_FROM}")], pace_text + keep_up
    if loader.who == "workers":
        if steps == 1:
            return [], (
                "; one step does not tell the pace of the workers, whose start may be part of it"
            )
        more = [
            Figure("batch_every_ns", "ns_per_step", f"SELECT {_PERIOD} {_FROM}"),
            Figure(
                "times_workers", "count", f"SELECT ceil(({_PERIOD}) / ({_WORK}))::BIGINT {_FROM}"
            ),
        ]
        pace_text = (
            "; the workers deliver a batch every {batch_every_ns}, the rest of the step takes "
            "{work_ns_per_step}: {times_workers} times as many would keep up"
        )
        return more, pace_text + (_NO_CPU if loader.lacks_cpus else "")
    if loader.who == "main":
        more = [
            Figure("loading_ns_per_step", "ns_per_step", f"SELECT {_WAIT} {_FROM}"),
            Figure(
                "workers_needed", "count", f"SELECT ceil(({_WAIT}) / ({_WORK}))::BIGINT {_FROM}"
            ),
        ]
        pace_text = (
            "; loading holds the training thread for at least {loading_ns_per_step}, the rest of "
            "the step takes {work_ns_per_step}: to keep up, that needs at least {workers_needed} "
            "workers"
        )
        return more, pace_text
    return [], ""


CAUSE = Cause(
    id=_ID,
    title="Input starvation",
    definition=(
        "The GPU is idle because the next batch is not ready: the training thread loads, decodes "
        "or waits for it, and enqueues the next step only afterwards."
    ),
    differential=(
        "host_compute is host work that is not loading: told apart by annotations (dataload, "
        "DataLoader.__next__), Python functions of the input pipeline, waits in the operating "
        "system where there is a loader, and by what the thread does next: pin a batch, or upload "
        "one as the first thing in a step of a training loop. cpu_offload uploads what came down "
        "before. blocking_copy is the "
        "upload itself. A slow loader that hides behind the GPU costs nothing and is not reported."
    ),
    prediction=(
        "the step without the idle time spent getting input; not less than one thread takes to "
        "copy the batch into pinned memory, where a loader with workers does; where the workers' "
        "threads find no CPU free, between that and today's step"
    ),
    reference="docs/how-it-works.md, idle time",
    min_share=0.05,
    remedies=(
        "raise DataLoader(num_workers=...) until the wait is gone, with persistent_workers=True"
        " and prefetch_factor=4",
        "move decoding and augmentation off the training thread, or prepare the data offline",
        "pin_memory=True, and copy with non_blocking=True",
    ),
    detect=detect,
)
