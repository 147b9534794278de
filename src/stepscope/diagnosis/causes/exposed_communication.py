"""Data moves between the GPUs while none of them computes."""

from __future__ import annotations

from typing import Final, Literal

from stepscope.collectives.job import Collectives
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure
from stepscope.diagnosis.collective_figures import (
    PACE,
    bandwidth_figure,
    busiest_use,
    position,
)
from stepscope.simulation import OverlapCommunication, WithoutTransfers
from stepscope.trace.frame import IntArray

_ID = "exposed_communication"

# What every device transfers at least while other work is ready to follow. The least of all devices
# counts: on one that has to wait anyway, a transfer that nothing covers costs nothing.
_TIME_SQL = "SELECT min(blocking_ns) FROM rank_pace"

_ADVICE = {
    "data_parallel": [
        "let the all-reduce begin while the backward pass still computes: smaller buckets "
        "(DistributedDataParallel(bucket_cap_mb=25), the default), static_graph=True, "
        "gradient_as_bucket_view=True, and no all-reduce of one's own behind backward()",
        "send less: gradients in bf16 (a DDP communication hook), or accumulate gradients over "
        "several batches under no_sync()",
    ],
    "sharded_data_parallel": [
        "prefetch: fully_shard every layer and set_modules_to_forward_prefetch and "
        "set_modules_to_backward_prefetch (FSDP1: backward_prefetch=BACKWARD_PRE, "
        "forward_prefetch=True)",
        "gather less often: reshard_after_forward=False where memory allows, larger batches, or "
        "shard inside a machine only (HSDP)",
    ],
    "tensor_parallel": [
        "its all-reduces stand on the compute path: use fewer ranks in the tensor-parallel group, "
        "or sequence parallelism, which halves what stands there",
        "overlap it with the GEMMs (asynchronous tensor parallelism in torch.compile, "
        "symmetric memory), and keep the group inside one NVLink domain",
    ],
    "pipeline_parallel": [
        "send activations while the next micro-batch computes: overlapped sends and receives "
        "(Megatron: --overlap-p2p-communication with interleaved stages), on a stream of their own",
        "keep neighbouring stages inside one machine, or next to each other in the network",
    ],
    "embedding_parallel": [
        "start the all-to-all of the next batch's lookups while this one computes (TorchRec: "
        "TrainPipelineSparseDist)",
        "place the tables so that every rank looks up and sends as much, and send in fp16 or int8",
    ],
    "context_parallel": [
        "send the next block before computing with this one, and wait for it only afterwards "
        "(batch_isend_irecv, then attention, then wait)",
        "shard over fewer GPUs, inside one NVLink domain",
    ],
    "sequence_parallel": [
        "overlap the all-to-alls with attention head by head, or use ring attention, whose "
        "messages hide under the attention of the block before",
        "shard over fewer GPUs, inside one NVLink domain, and send in bf16",
    ],
    "expert_parallel": [
        "overlap the all-to-all with the shared experts or the other half of the batch",
        "limit the tokens an expert may get, and keep the groups inside one NVLink domain",
    ],
}
_NO_SYNC: Final = (
    "sum gradients once a step: all micro-batches but the last inside no_sync(), forward pass and "
    "backward pass both (DistributedDataParallel decides in the forward pass)"
)
_STAYS: Final = (
    "keep the weights gathered from the first micro-batch to the last one, where memory allows: "
    "reshard_after_forward=False and set_reshard_after_backward(last), or fewer, larger "
    "micro-batches (FSDP1: SHARD_GRAD_OP under no_sync())"
)
_SPARE: Final = {
    "broadcast": (
        "no sum of gradients but a broadcast, as of buffers before each forward pass",
        (
            "DistributedDataParallel(broadcast_buffers=False), where buffers are the same on every "
            "rank anyway: frozen or quantised weights, constant tables, statistics that no loss "
            "needs; or keep such tensors out of the buffers",
            "broadcast once before training what never changes",
        ),
    ),
    "all-gather": (
        "no sum of gradients but an all-gather, as of results for a metric or a loss over all "
        "samples",
        (
            "gather less: reduce on each rank before (classes instead of scores, sums and counts "
            "instead of values), in 16 bits, and metrics every some steps or at the end",
        ),
    ),
    "all-reduce": (
        "a sum of as many bytes as were summed before, once more behind the backward pass",
        (
            "sum gradients once: DistributedDataParallel has averaged them when backward() "
            "returns, and an all-reduce of one's own adds nothing",
            "weights, and their means over time, are equal on all ranks where gradients are: "
            "they need no sum",
        ),
    ),
}
"""Of ``Collectives.spare_transfers`` what each sort is, and what to do."""

_OTHERWISE = [
    "let communication begin as soon as its data is ready, on its own stream, and wait for it only "
    "where the result is used",
    "send less or in larger pieces, and compare the bus bandwidth with what nccl-tests reaches on "
    "the same machines",
]

_GATHERED: Final = [
    "gather what the other ranks use and no more: borders instead of whole parts, keys and values "
    "before heads are repeated, what a rank's experts get, in 16 bits",
    "reduce on each rank before gathering, or split the work so that the next operation needs no "
    "gather",
    "begin the gather of the next part while this one computes, on its own stream",
]
"""Instead of what the group is likely for, where compute waits for gathers of activations."""

_OF: Final[dict[str, Literal["gradients", "path"]]] = {
    "data_parallel": "gradients",
    "sharded_data_parallel": "gradients",
    "tensor_parallel": "path",
    "sequence_parallel": "path",
    "context_parallel": "path",
}
"""What is communicated, as far as that limits what it can hide behind."""


def detect(case: Case) -> Detection | None:
    """Transfers that no compute covers although other work was ready."""
    c = case.job.view.collectives
    me = position(case)
    if c is None or c.alone or not len(c.parts):
        return None
    time = float(c.parts.blocking.mean(axis=0).min())
    # where a rank is missing, what is not likely to be waiting for it may still be
    if not time or float(c.parts.missing.mean(axis=0).max()) > time:
        return None
    use = busiest_use(c)
    compute = case.explanation.steady_total("compute_ns") / case.explanation.n_steady
    alone = float(c.parts.alone.mean(axis=0)[me])
    message = (
        "data moves for {communication_ns} per step; {exposed_ns} of that is exposed (no compute "
        "runs beside it), and for {blocking_ns} work was ready and waited for it on every rank; "
        "{alone_ns} of compute per step has no communication beside it"
    )
    figures = _figures()
    bandwidth = bandwidth_figure(c)
    if bandwidth is not None:
        figures.append(bandwidth)
        message += "; the bus bandwidth is {bus_bandwidth}"
    replicated = use == "data_parallel"
    repeated = c.repeated_sums if replicated else []
    sort, spare = c.spare_transfers if replicated and not repeated else ("", [])
    again = c.repeated_gathers if use == "sharded_data_parallel" else []
    activations = not spare and not again and c.gathers_activations
    advice = _GATHERED if activations else _ADVICE.get(use, _OTHERWISE)
    if spare:
        what, first = _SPARE[sort]
        message += f"; most of what is exposed is {what}; the prediction is for a step without it"
        advice = [*first, *_OTHERWISE[:1]]
    if repeated:
        message += (
            "; each of a step's backward passes sums the gradients, where those of the last would "
            "do; the prediction is for that"
        )
    if again:
        message += (
            "; weights are gathered again for each micro-batch, though gradients are summed once; "
            "the prediction is for weights that stay gathered"
        )
    left_out = (
        _without(case, repeated, "sums of gradients")
        or _without(case, spare, f"{sort}s")
        or _without(case, again, "gathers of weights")
    )
    return Detection(
        time_ns=time,
        direct_ns=min(time, alone),
        message=message,
        recommendations=[
            *([_NO_SYNC] if repeated else []),
            *([_STAYS] if again else []),
            *advice,
        ],
        figures=figures,
        floor_ns=max(compute, _hosts_need(case, c, "expected")),
        least_floor_ns=max(compute, _hosts_need(case, c, "low")),
        next_capture=_next(c, sized=bandwidth is not None),
        change=next(
            iter(left_out), OverlapCommunication("any" if activations else _OF.get(use, "any"))
        ),
        also=tuple(left_out[1:]),
        alternative=OverlapCommunication("any") if spare or again else None,
        # what a rank waits for another one stays
        max_gain_ns=None if left_out else time,
    )


def _without(case: Case, rows: list[IntArray], what: str) -> list[WithoutTransfers]:
    """Certain transfers of each rank, left out; none where there are none."""
    return [
        WithoutTransfers(tuple(each.explanation.gpu.ops["id"][mine].tolist()), each.rank, what)
        for each, mine in zip(case.job.cases, rows, strict=bool(rows))
    ]


def _hosts_need(case: Case, c: Collectives, bound: Literal["expected", "low"]) -> float:
    """What the slowest host needs for a step without waiting, ns; at most the step.

    Waiting for a neighbour whose host is slow is no fault of the schedule. The lower bound takes
    away the most that the capturing tool may have added.
    """
    need = 0.0
    for other, pace in zip(case.job.cases, c.paces, strict=True):
        tool = other.explanation.tool
        less = pace.recording_ns * (2 if bound == "low" else 1)
        less += tool.most_ns if tool is not None and bound == "low" else 0.0
        need = max(need, pace.need_ns - less)
    return min(need, case.step_ns)


def _figures() -> list[Figure]:
    waits = "FROM collective_wait WHERE step IS NOT NULL AND {gpu}"
    return [
        Figure(
            "communication_ns",
            "ns_per_step",
            f"SELECT round(sum(transfer_ns) / (SELECT steps FROM {PACE}))::BIGINT {waits}",
        ),
        Figure("exposed_ns", "ns_per_step", f"SELECT transfer_ns FROM {PACE}"),
        Figure("blocking_ns", "ns_per_step", _TIME_SQL),
        Figure("alone_ns", "ns_per_step", f"SELECT alone_ns FROM {PACE}"),
        Figure("waiting_ns", "ns_per_step", f"SELECT waiting_ns FROM {PACE}"),
        Figure("collectives", "count", f"SELECT count(*) {waits}"),
    ]


def _next(c: Collectives, *, sized: bool) -> str | None:
    if not c.matched.complete:
        return "the same capture of the ranks that are missing"
    return None if sized else "torch.profiler, which records message sizes, for the bandwidth"


CAUSE = Cause(
    id=_ID,
    title="Exposed communication",
    definition=(
        "Collectives move data while the device has nothing else to compute, although other work "
        "was ready to follow. Only the transfer counts, from the moment the last rank has joined. "
        "Exposed is what has no compute beside it, blocking the part of that for which other work "
        "was ready; the second is what it costs."
    ),
    differential=(
        "straggler, load_imbalance and pipeline_bubble make GPUs wait inside collectives, which "
        "looks the same on one rank: only the matched captures of the ranks tell waiting from "
        "transferring. Where "
        "the host is late anyway (launch_bound), a transfer costs nothing and does not count. The "
        "last bucket of a data-parallel step cannot be hidden; it is below the threshold."
    ),
    prediction=(
        "the step without the exposed transfer, at best by as much as there is compute without "
        "communication beside it. What rather is not sent than hidden (gathers of activations that "
        "compute waits for, tokens of experts) goes nearly as a whole, and what a data-parallel "
        "step can do without (broadcasts of buffers, gathers of results, gradients summed once "
        "more) with all that it slows; "
        "where a step sums its gradients in several backward passes, or gathers weights again for "
        "each micro-batch (kernels/accumulation.py), the step with the sums of the last one, or "
        "the first gathers, alone, and without what the others slow beside them"
    ),
    reference="NCCL and PyTorch DDP documentation on overlap; nccl-tests for bandwidths",
    # the transfer of one DDP bucket at the end of the backward pass takes 1 to 2 % of a step
    min_share=0.03,
    time_sql=_TIME_SQL,
    remedies=(
        "let it start while the backward pass still computes: DistributedDataParallel's "
        "buckets, FSDP's prefetch",
        "send less: reduce in 16 bit, or accumulate gradients over several batches (no_sync())",
        "`stepscope comm CAPTURES` compares the bandwidth with what the links give",
    ),
    detect=detect,
)
