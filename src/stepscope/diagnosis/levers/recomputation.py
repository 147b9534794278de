"""Forward passes that the backward pass computes again: activation checkpointing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.diagnosis.frameworks import is_jax
from stepscope.diagnosis.lever import Found, Lever, lever_rows, of_lever
from stepscope.intervals.distinct import distinct_values
from stepscope.kernels.kernels import changed
from stepscope.kernels.recomputation import HEAVY, Recomputed, recomputed
from stepscope.trace.frame import BoolArray

_ID: Final = "recomputation"

_HOST_BOUND: Final = 0.1
"""Share of the step in which the GPU waits for launches, from which on more is gained than kernels
and their launches tell: every tensor that a part of the model saves passes two hooks in Python, in
the forward pass and in the backward pass (``use_reentrant=False``). On a CPU with tensors of no
size that costs 1.3 to 2 times what the recorded forward pass costs; a vision transformer whose host
sets the pace took 0.52 times as long without it, where its kernels alone say 0.84 (an H100)."""

_LAUNCHES: Final = (
    "(SELECT c.thread_id, c.start_ns AS at, o.again FROM (SELECT thread_id, start_ns, "
    "correlation_id FROM api_call WHERE {process}) AS c JOIN (SELECT correlation_id, id IN (SELECT "
    f"gpu_op_id {lever_rows(_ID)}) AS again FROM gpu_op WHERE {{gpu}}) AS o USING (correlation_id))"
)
_KEPT_SQL: Final = (
    "SELECT coalesce(round(sum(CASE WHEN later.again AND (m.bytes > 0 OR earlier.again) THEN "
    f"m.bytes END) / {STEADY_STEPS}), 0)::BIGINT FROM (SELECT thread_id, time_ns, bytes FROM "
    "memory_event WHERE kind = 'cache' AND {gpu}) AS m "
    f"ASOF JOIN {_LAUNCHES} AS later ON m.thread_id = later.thread_id AND m.time_ns <= later.at "
    f"ASOF JOIN {_LAUNCHES} AS earlier ON m.thread_id = earlier.thread_id AND m.time_ns > "
    "earlier.at"
)
"""What PyTorch allocates for what is computed again, and does not release on the way, bytes a step.

An allocation belongs to the next launch of its thread. A release counts between two launches of
what is computed again: before the first one, others' tensors are released.
"""


def find(case: Case, taken: BoolArray) -> Found | None:
    """Forward operators in the backward pass; without operators, runs of kernels of both passes."""
    kernels = case.explanation.kernels
    if is_jax(case.explanation.gpu):
        return None  # XLA computes again inside of its program
    found = recomputed(kernels)
    if found is None:
        return None
    rows = found.rows[~taken[found.rows]]
    old = kernels.duration_ns[rows]
    # where memory is short, GEMMs and attention at least need not be computed twice
    cheap = float(old[~kernels.in_category(*HEAVY)[rows]].sum())
    memory = _memory(case, found)
    late = sum(case.idle_ns(cause) for cause in ("launch_bound", "profiler_overhead"))
    host_bound = late >= _HOST_BOUND * case.step_ns
    hooks = "; the host saves more than their launches: hooks in Python" if host_bound else ""
    how = "" if found.by_operators else ", as the order of the kernels tells,"
    return Found(
        repair=changed(rows, old, np.zeros(len(rows), np.int64), 0.0, cheap),
        message=(
            f"{{kernels_per_step}} kernels a step{how} compute forward "
            "passes again in the backward pass (activation checkpointing); they take "
            "{kernels_ns_per_step}, {share_of_forward} of what the forward pass takes, and go "
            f"where memory holds the activations{memory.sentence}{hooks}"
        ),
        recommendations=[
            "keep the activations where memory allows: no torch.utils.checkpoint.checkpoint around "
            "the layers; Hugging Face: TrainingArguments(gradient_checkpointing=False), and no "
            "activation_checkpointing in fsdp_config; Megatron: without --recompute-granularity",
            "checkpoint only as many layers as memory demands; with FSDP, check_fn of "
            "apply_activation_checkpointing chooses them; Megatron: --recompute-granularity full "
            "--recompute-method block --recompute-num-layers N",
            "keep the results of GEMMs and attention and compute the rest again: "
            "checkpoint(layer, x, use_reentrant=False, context_fn=partial("
            "create_selective_checkpoint_contexts, policy)) of torch.utils.checkpoint; Megatron: "
            "--recompute-granularity selective, which computes only the core of attention again",
        ],
        figures=[
            Figure(
                "share_of_forward",
                "share",
                f"SELECT coalesce(sum(end_ns - start_ns) FILTER ({of_lever(_ID)})::DOUBLE / "
                "nullif(sum(end_ns - start_ns) FILTER (phase = 'forward' AND category <> "
                "'communication'), 0), 0) FROM kernel_category WHERE steady AND {gpu}",
            ),
            *memory.figures,
        ],
        next_capture=memory.next_capture,
        at_least=host_bound,
    )


@dataclass(frozen=True)
class _Memory:
    """What a capture says of the memory that the activations need.

    Attributes:
        sentence: a template.
        figures: its figures.
        next_capture: what would tell more.
    """

    sentence: str
    figures: list[Figure]
    next_capture: str | None


def _memory(case: Case, found: Recomputed) -> _Memory:
    """What the activations take, and what the device has free, as far as the capture tells."""
    kept, (use, used_sql, used) = _kept_bytes(case, found), _used(case)
    whole = _whole_bytes(case)
    figures, sentence = [], ""
    if kept:
        figures.append(Figure("kept_bytes", "bytes", _KEPT_SQL))
        sentence = ", which take at most {kept_bytes}"
    if used and whole:
        figures.append(Figure("used_bytes", "bytes", used_sql))
        figures.append(Figure("memory_bytes", "bytes", f"SELECT max(memory_bytes) {_of(case)}"))
        sentence += f"; {use}"
    if not kept:
        sentence += "; what the activations take this capture does not tell"
    elif not (used and whole):
        sentence += "; what the device has free this capture does not tell"
    else:
        sentence += "; they seem to fit" if kept <= whole - used else "; they may not all fit"
    return _Memory(sentence, figures, None if kept else captures.MEMORY)


def _kept_bytes(case: Case, found: Recomputed) -> int:
    """What ``_KEPT_SQL`` gives; 0 where no allocations are recorded."""
    kernels = case.explanation.kernels
    gpu, who = kernels.gpu, kernels.attribution
    events = case.device.read(
        "memory_event", "process_id", "thread_id", "time_ns", "kind", "device", "bytes"
    )
    mine = events.equals("kind", "cache") & (events["process_id"] == gpu.process_id)
    events = events.take(mine & (events["device"] == gpu.device))
    again = np.zeros(len(gpu.ops), bool)
    again[found.rows] = True
    total = 0
    for thread in distinct_values(who.thread[found.rows]).tolist():
        rows = np.flatnonzero(who.thread == thread)
        rows = rows[np.argsort(gpu.enqueue_begin_ns[rows], kind="stable")]
        of_thread = events["thread_id"] == thread
        size = events["bytes"][of_thread]
        next_ = np.searchsorted(gpu.enqueue_begin_ns[rows], events["time_ns"][of_thread])
        inside = np.concatenate(([False], again[rows], [False]))
        total += int(size[inside[next_ + 1] & ((size > 0) | inside[next_])].sum())
    return total // case.explanation.n_steady


def _of(case: Case) -> str:
    """``FROM`` and ``WHERE`` of the device; some sources name no process there."""
    gpu = case.explanation.gpu
    rank = f"rank = {case.device.trace_rank} AND " if case.several_traces else ""
    process = f"coalesce(process_id, {gpu.process_id}) = {gpu.process_id}"
    return f"FROM device WHERE {rank}device = {gpu.device} AND {process}"


def _whole_bytes(case: Case) -> int:
    """Memory of the device, bytes; 0 where it is not known."""
    gpu = case.explanation.gpu
    table = case.device.read("device", "process_id", "device", "memory_bytes")
    mine = (table["process_id"] == gpu.process_id) | (table["process_id"] < 0)
    return int(table["memory_bytes"][mine & (table["device"] == gpu.device)].max(initial=0))


def _used(case: Case) -> tuple[str, str, int]:
    """The most memory in use: a sentence, the statement, and the bytes; 0 where none is known.

    Samples of NVML count all of the device's memory, PyTorch's allocator what it has reserved.
    Samples name the physical device, which is this one where they know no other.
    """
    gpu = case.explanation.gpu
    samples = case.device.read("metric_sample", "device", "metric", "value")
    samples = samples.take(samples.equals("metric", _SAMPLED))
    if len(samples) and len(distinct_values(samples["device"])) == 1:
        rank = f"rank = {case.device.trace_rank} AND " if case.several_traces else ""
        sql = f"SELECT max(value)::BIGINT FROM metric_sample WHERE {rank}metric = '{_SAMPLED}'"
        use = "of the device's {memory_bytes} at most {used_bytes} are in use"
        return use, sql, int(samples["value"].max())
    events = case.device.read(
        "memory_event", "process_id", "kind", "device", "total_reserved_bytes"
    )
    mine = events.equals("kind", "cache") & (events["process_id"] == gpu.process_id)
    mine &= events["device"] == gpu.device
    return (
        "of the device's {memory_bytes} PyTorch reserves {used_bytes}",
        "SELECT max(total_reserved_bytes) FROM memory_event WHERE kind = 'cache' AND {gpu}",
        int(events["total_reserved_bytes"][mine].max(initial=0)),
    )


_SAMPLED: Final = "memory_used_bytes"

LEVER = Lever(
    id=_ID,
    title="Recomputation",
    definition=(
        "Activation checkpointing keeps only what enters a part of the model, and computes its "
        "forward pass again when the backward pass needs what lies between. It trades time, at "
        "most that of one more forward pass, for memory: where memory holds the activations, "
        "these kernels need not run."
    ),
    differential=(
        "a gradient that is derived again (create_graph, a gradient penalty) repeats no forward "
        "pass. Other levers may change the same kernels: their gains are for a program that goes "
        "on checkpointing. What a compiler computes again inside of its kernels is not seen, nor, "
        "without operators, what is shorter than some kernels in a row or has no GEMM, convolution "
        "or attention."
    ),
    prediction=(
        "the step without these kernels and without the host's time for them. The activations are "
        "written by the forward pass today, too. At the upper end only GEMMs, convolutions and "
        "attention go, as where their results alone are kept. Collectives inside of what is "
        "computed again stay: those of sharded parameters are needed in any case. Whether memory "
        "suffices is not part of the prediction"
    ),
    reference="PyTorch: torch.utils.checkpoint; Chen et al., Training Deep Nets with Sublinear "
    "Memory Cost; Korthikanti et al., Reducing Activation Recomputation",
    find=find,
    refines=(
        "fusion_opportunity",
        "inefficient_kernel",
        "low_precision_unused",
        "memory_bound_kernels",
        "unfused_attention",
    ),
    order=0,
    claims=False,
)
