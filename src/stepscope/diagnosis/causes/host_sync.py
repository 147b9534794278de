"""The host waits for the device in the middle of the step and loses its run-ahead."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.diagnosis.frameworks import in_cuda, in_jax
from stepscope.diagnosis.own_waits import mostly_of_ddp
from stepscope.diagnosis.result import Location
from stepscope.gaps.waiting import PLAIN, READ, UPLOAD, Waiting
from stepscope.intervals.distinct import among, distinct_rows, with_inverse
from stepscope.kernels.categories import classify
from stepscope.kernels.nan_checks import ANY, nan_checks
from stepscope.simulation import Change, RemoveOps
from stepscope.trace.frame import IntArray

_ID = "host_sync"

_KEEP: Final = (
    "keep values on the GPU: collect losses and norms as tensors and call .item() once every N "
    "steps, after the step"
)
_NORMS: Final = (
    "replace a .item() or .norm().item() per parameter by torch.nn.utils.clip_grad_norm_ or "
    "torch._foreach_norm, which need no read-back"
)
_SYNCHRONIZE: Final = (
    "drop torch.cuda.synchronize() from the loop; order streams with events instead"
)
_SHAPES: Final = (
    "avoid data-dependent shapes (tensor[mask], nonzero()) inside the step; use torch.where or a "
    "fixed capacity"
)
_SCALARS: Final = (
    "make small tensors on the GPU (torch.full((), x, device='cuda'), torch.arange(..., "
    "device='cuda')), or keep them in pinned memory and copy with non_blocking=True: a tensor made "
    "on the CPU makes .to('cuda') wait"
)
_FIND: Final = "find the calls: torch.cuda.set_sync_debug_mode('warn') prints where each one is"
_RESULTS: Final = (
    "read results (tokens, scores) one step later, from a copy with non_blocking=True, and decide "
    "on the GPU what the next step needs (sampling, masks, lengths)"
)
_ANOMALY: Final = (
    "switch anomaly detection off: torch.autograd.set_detect_anomaly(False), no detect_anomaly(); "
    "it is for finding where a NaN comes from"
)
_SHAPED: Final = re.compile(r"nonzero|masked_select|index|unique|repeat_interleave")
_HALF: Final = 0.5
_SAID: Final = {READ: " to read a value", UPLOAD: " to upload a value", PLAIN: ""}


@in_cuda(
    "wait only where the host needs a result: a stream runs its work in order without "
    "cudaDeviceSynchronize between two launches",
    "order streams by cudaEventRecord and cudaStreamWaitEvent, which do not keep the host",
    "read values back by cudaMemcpyAsync into pinned memory and look at them an iteration later, "
    "or decide on the device (conditional nodes of a CUDA graph)",
    "pass small values as arguments of the kernel, or upload them from pinned memory: a copy from "
    "pageable memory waits",
)
@in_jax(
    "read no values in the step: float(loss), .item(), np.asarray() and print() of an array"
    " wait for the device; read every N steps, or those of the step before",
    "keep block_until_ready() out of the loop; it is for measuring",
    "find the calls: jax.transfer_guard_device_to_host('disallow') raises where a value is read",
)
def detect(case: Case) -> Detection | None:
    """Idle time left by synchronisations, and by the launches that are late after them."""
    time = case.idle_ns(_ID)
    waiting = case.explanation.waiting
    if not time or mostly_of_ddp(case):
        return None
    rows = _main_call(case, waiting)
    where = _place(case, waiting, rows)
    texts = where.texts()
    figures = [idle_figure(_ID), _SYNC_CALLS, _SCALAR_READS]
    kind = PLAIN
    if len(rows):
        kind = waiting.kind[int(rows[0])]
        name = case.explanation.gpu.host.api.text("name", int(waiting.call[rows[0]]))
        texts["call"] = name
        figures += _call_figures(name)
        message = f"the host waits for the GPU in {{call}}{_SAID[kind]}"
        operator = _most(waiting.operator[rows], waiting.waited_ns[rows])
        if operator is not None:
            text = waiting.operators.text("name", operator)
            where = Location(where.range, text, where.source, where.function)
            texts["operator"] = repr(text)
            message += ", called by {operator}"
        message += " ({calls_per_step} per step, {waited_ns_per_step} in them)"
        ended = _ended_by(case, waiting, rows)
        if _elsewhere(case, waiting, rows):
            message += (
                "; for most of that time the GPU runs nothing that the capture holds, so that what "
                "is waited for began before the capture, or runs in another process"
            )
        elif ended:
            texts["until"] = ended
            message += ", mostly until {until} has ended"
        message += "; the launch queue drains, and the GPU is idle until new work arrives"
    else:
        message = (
            "the host stops to wait for the GPU or to read a value from it, the launch queue "
            "drains, and the GPU is idle until new work arrives"
        )
    message += ", most of it in {range}" if where.range else ""
    checks = _nan_checks(case, waiting, rows) if kind == READ else rows[:0]
    if len(checks):
        figures.append(_CHECKS)
        message += (
            "; {nan_checks_per_step} times a step it is asked whether a gradient holds NaN, as "
            "torch.autograd.detect_anomaly does behind each operator of the backward pass; the "
            "prediction is without these kernels, too"
        )
    return Detection(
        time_ns=time,
        uncertain_ns=case.idle_ns("launch_bound"),
        direct_ns=case.direct_ns(_ID),
        message=message,
        texts=texts,
        recommendations=[
            *([_ANOMALY] if len(checks) else []),
            *_advice(
                kind,
                where.operator or "",
                texts.get("call", ""),
                infers=case.explanation.workload.infers,
            ),
        ],
        also=_without(case, checks) if len(checks) else (),
        figures=figures,
        where=where,
        next_capture=(None if where.source or where.function or where.range else captures.STACKS),
    )


_SYNC_CALLS = Figure(
    "sync_calls",
    "count",
    "SELECT count(*) FROM api_call WHERE regexp_matches(name, "
    "'^(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize') AND {process} AND {window}",
)
_SCALAR_READS = Figure(
    "scalar_reads",
    "count",
    "SELECT count(*) FROM gpu_op WHERE kind = 'memcpy' AND copy_kind = 'DtoH' "
    "AND coalesce(bytes, 0) <= 65536 AND {gpu} AND {window}",
)


_CHECKS = Figure(
    "nan_checks_per_step",
    "per_step",
    f"SELECT count(*) / {STEADY_STEPS} FROM gpu_op WHERE regexp_matches(name, '{ANY}') AND {{gpu}} "
    "AND {window}",
)


def _nan_checks(case: Case, waiting: Waiting, rows: IntArray) -> IntArray:
    """Operations that check gradients for NaN, where at least half of the waits are for them."""
    checks = nan_checks(case.explanation.kernels)
    of_checks = among(waiting.op[rows], checks.tolist())
    return checks if of_checks.sum() >= _HALF * len(rows) > 0 else checks[:0]


def _without(case: Case, rows: IntArray) -> tuple[Change, ...]:
    ids = case.explanation.gpu.ops["id"][rows].tolist()
    return (RemoveOps(tuple(ids), case.rank),)


def _main_call(case: Case, waiting: Waiting) -> IntArray:
    """Rows of the waits of the call and kind that wait longest in all."""
    if not len(waiting.call):
        return waiting.call
    names = case.explanation.gpu.host.api["name"][waiting.call].astype(np.int64)
    kinds = with_inverse(np.asarray(waiting.kind))[1]
    group = with_inverse(names * 4 + kinds)[1]
    waited = np.bincount(group, weights=waiting.waited_ns)
    if not waited.any():
        waited = np.bincount(group).astype(float)
    rows = np.flatnonzero(group == int(np.argmax(waited)))
    plain = case.explanation.gpu.host.api.text("name", int(waiting.call[rows[0]]))
    return rows if re.fullmatch(r"\w+", plain) else rows[:0]


def _call_figures(name: str) -> list[Figure]:
    """How often a call is made, and how long it takes, a step; copies only where they are small."""
    of_call = f"FROM api_call WHERE name = '{name}' AND {{process}} AND {{window}}"
    if "emcpy" in name:
        of_call += (
            " AND correlation_id IN (SELECT correlation_id FROM gpu_op WHERE kind = 'memcpy' "
            "AND copy_kind IN ('DtoH', 'HtoD') AND coalesce(bytes, 0) <= 65536 AND {process})"
        )
    return [
        Figure("calls_per_step", "per_step", f"SELECT count(*) / {STEADY_STEPS} {of_call}"),
        Figure(
            "waited_ns_per_step",
            "ns_per_step",
            f"SELECT round(coalesce(sum(end_ns - start_ns), 0) / {STEADY_STEPS})::BIGINT {of_call}",
        ),
    ]


def _place(case: Case, waiting: Waiting, rows: IntArray) -> Location:
    """Where the waiting calls are made; where that is not known, where the GPU idles after them."""
    idle = case.place(_ID)
    if not len(rows):
        return idle
    api, calls = case.explanation.gpu.host.api, waiting.call[rows]
    found = case.explanation.places.of(api["start_ns"][calls], api["end_ns"][calls])
    return Location(
        found.range or idle.range,
        found.operator,
        found.source,
        found.function or idle.function,
    )


def _elsewhere(case: Case, waiting: Waiting, rows: IntArray) -> bool:
    """Whether the device is idle for most of the waiting, as far as the capture tells."""
    api, calls = case.explanation.gpu.host.api, waiting.call[rows]
    whole = int((api["end_ns"][calls] - api["start_ns"][calls]).sum())
    most = whole >= _HALF * case.idle_ns(_ID) * case.explanation.n_steady
    return most and int(waiting.waited_ns[rows].sum()) < _HALF * whole


def _ended_by(case: Case, waiting: Waiting, rows: IntArray) -> str:
    """The operation that most of the waiting was for, by name and stream; empty if unknown."""
    ops = case.explanation.gpu.ops
    rows = rows[waiting.op[rows] >= 0]
    if not len(rows):
        return ""
    names, streams = ops["name"][waiting.op[rows]], ops["stream"][waiting.op[rows]]
    first, group = distinct_rows((names, streams))
    weight = np.bincount(group, weights=waiting.waited_ns[rows])
    best = int(np.argmax(weight))
    if not weight[best] or 3 * weight[best] < waiting.waited_ns[rows].sum():
        return ""
    label = classify(ops.texts["name"][int(names[first[best]])]).label
    return f"{label!r} on stream {int(streams[first[best]])}"


def _most(codes: IntArray, weight: IntArray) -> int | None:
    """The row whose name most of the weight has; None where there is none."""
    known = codes >= 0
    if not known.any():
        return None
    return int(codes[known][int(np.argmax(weight[known]))])


def _advice(kind: str, operator: str, call: str, *, infers: bool) -> list[str]:
    """What to change, most effective first, for a kind of wait in a call."""
    if kind == UPLOAD:
        return [_SCALARS, _FIND]
    shaped = [_SHAPES] if _SHAPED.search(operator) else []
    if infers and "DeviceSynchronize" in call:  # a program asks for that, no result does
        return [_SYNCHRONIZE, _RESULTS, *shaped, _FIND]
    if infers:
        return [*shaped, _RESULTS, *([] if shaped else [_SHAPES]), _SYNCHRONIZE, _SCALARS, _FIND]
    if kind == READ:
        return [*shaped, _KEEP, _NORMS, *([] if shaped else [_SHAPES]), _SYNCHRONIZE, _FIND]
    return [_SYNCHRONIZE, _KEEP, _NORMS, _SHAPES, _FIND]


CAUSE = Cause(
    id=_ID,
    title="Host synchronisation",
    definition=(
        "The training thread blocks on the GPU inside the step (cudaStreamSynchronize, .item(), a "
        "data-dependent shape). While it waits it enqueues nothing, so the queue is empty when it "
        "returns and the GPU idles until the next launches arrive."
    ),
    differential=(
        "launch_bound has the same late launches but no wait before them: the host never ran "
        "ahead. blocking_copy waits for a large transfer, not for a scalar. A synchronisation that "
        "finds the device already idle cost nothing: then host_compute or input_starvation is "
        "what made it idle."
    ),
    prediction=(
        "the step without the gaps that begin inside a blocking call, end with the scalar it "
        "reads, or follow it, up to the time it made the host wait"
    ),
    reference="PyTorch performance tuning guide: avoid unnecessary CPU-GPU synchronisation",
    min_share=0.05,
    remedies=(
        "keep values on the GPU: collect losses as tensors, and call .item() every N steps, "
        "after the step",
        "torch.nn.utils.clip_grad_norm_ instead of a .norm().item() for each parameter",
        "no data-dependent shapes (tensor[mask], nonzero()) in the step; torch.where, or a "
        "fixed capacity",
        "find the calls: torch.cuda.set_sync_debug_mode('warn') prints where each one is",
    ),
    detect=detect,
)
