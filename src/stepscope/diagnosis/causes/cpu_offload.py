"""State or computation is on the CPU, and what it needs travels there in every step."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.diagnosis.frameworks import in_jax
from stepscope.diagnosis.workloads import in_inference
from stepscope.gaps.offload import (
    COMES_BACK,
    GRADIENT,
    OFFLOAD_EVIDENCE,
    STAYS_DOWN,
    Offload,
)
from stepscope.kernels.fusion import ADAM_PASSES
from stepscope.simulation import Free, FuseOps, RemoveOps

_ID = "cpu_offload"
UPDATE_NS: Final = 250_000
"""What a fused update on the device takes the host, and ``UPDATE_TENSOR_NS`` more for each tensor:
its states and their groups are looked up in Python. That is within 19 % of what fused AdamW took in
half of 48 programs with 6 to 167 tensors, and within 40 % in nine of ten (torch 2.11, by its range
in recordings of torch.profiler, in which it is two operators)."""

UPDATE_TENSOR_NS: Final = 6_000

MOSTLY: Final = 0.5
"""Part of what goes down that comes up again with hardly a kernel in between, or of the idle time
that lies between the last copy down and the next one up, from which on the host works on what came
down. Activations come back later."""

AVERAGE_PASSES: Final = 3
"""How often an average of weights on the device moves each of them: it reads the weight and the
average, and writes the average."""

_WHAT: Final = {
    COMES_BACK: "{down_bytes} per step go to the CPU in {downs} copies, and as many bytes come "
    "back in the same sizes: what is offloaded to the CPU",
    STAYS_DOWN: "{down_bytes} per step go to the CPU in {downs} copies one after the other, of the "
    "same sizes in every step, and nothing comes back: an average, statistics or a copy of the "
    "model's tensors that the CPU keeps",
    GRADIENT: "the CPU computes {up_bytes} in each step that the GPU goes on with, and gets as "
    "many bytes of gradients back: a part of the model, and its update, are on the CPU",
}

_ADVICE: Final = {
    COMES_BACK: (
        "keep parameters, gradients and optimizer states on the GPU where they fit: no "
        "offload_optimizer in the DeepSpeed configuration, no CPUOffload in FSDP, "
        "torch.optim.AdamW(..., fused=True) on the GPU",
        "where they do not fit: shard them over more GPUs (FSDP, ZeRO), keep the states in 8 "
        "or 16 bit, or recompute activations instead of offloading them",
        "where they must be offloaded: pinned buffers that are kept, copies on a side stream "
        "while the backward pass goes on, and a vectorised update (DeepSpeedCPUAdam)",
    ),
    STAYS_DOWN: (
        "keep averages and statistics of the weights on the GPU, and update them there in a few "
        "kernels: torch._foreach_lerp_, or AveragedModel of torch.optim.swa_utils with "
        "get_ema_multi_avg_fn",
        "where they do not fit, or results are collected: every N steps instead of in each",
        "else copy into pinned buffers that are kept, on a side stream (non_blocking=True), and "
        "let another thread work on them",
    ),
    GRADIENT: (
        "move this part of the model to the GPU with its optimizer where it fits (an embedding in "
        "16 bit takes half, sharded over GPUs a part)",
        "where it does not fit: sparse gradients (sparse=True, SparseAdam), so that the CPU "
        "updates only the rows of the batch, or a cache of the rows in use on the GPU",
        "let it overlap: look up the next batch while the GPU works on this one",
    ),
}

_OF_JOURNEYS = f"FROM host_event WHERE cause = '{_ID}' AND {{gpu}}"


def _a_step(column: str) -> str:
    return f"SELECT round(sum({column}) / {STEADY_STEPS})::BIGINT {_OF_JOURNEYS}"


@in_jax(
    "keep optimizer state and activations on the device where they fit: no memory_kind="
    "'pinned_host' in their sharding, fewer policies that offload in jax.checkpoint",
    "shard the state over the devices of the job instead of sending it to the host",
    "let the copies overlap with compute: offload by layers, not all at once",
)
@in_inference(
    "keep weights, activations and the cache of keys and values on the GPU: quantise them, or "
    "shard the model over more GPUs (tensor parallelism), before anything goes to the host",
    "lower the number of requests at once, so that the cache fits and no block is swapped out",
    "where it must be offloaded: pinned buffers, and copies on a side stream ahead of their use",
)
def detect(case: Case) -> Detection | None:
    """Idle time and exposed copies while data goes to the host and comes back."""
    e = case.explanation
    offload = e.offload
    if not len(offload):
        return None
    copies = float(offload.copy_ns.sum()) / e.n_steady
    idle = case.idle_ns(_ID)
    down = float(offload.down_bytes.sum()) / e.n_steady
    where = case.place(_ID)
    evidence = _mostly(offload)
    # the update on the device instead: every tensor moved a few times, at the memory's speed
    speed = e.kernels.attainable_bandwidth
    between = float(offload.between_ns.sum()) / e.n_steady
    again = float(np.minimum(offload.down_bytes, offload.up_bytes).sum()) / e.n_steady
    updates = between > 0 and (again >= MOSTLY * down or between >= MOSTLY * idle)
    updates = evidence == STAYS_DOWN or (updates and evidence == COMES_BACK)
    passes = AVERAGE_PASSES if evidence == STAYS_DOWN else ADAM_PASSES
    update = passes * down / speed * 1e9 if speed else 0.0
    tensors = float(offload.downs.sum()) / e.n_steady
    on_device = round(UPDATE_NS + UPDATE_TENSOR_NS * tensors)
    copied = tuple(e.gpu.ops["id"][offload.rows].tolist())
    return Detection(
        time_ns=idle + copies,
        direct_ns=case.direct_ns(_ID) + copies,
        uncertain_ns=case.idle_ns("launch_bound") + case.idle_ns("host_sync"),
        work_ns=idle,
        time_sql=(
            "SELECT round((coalesce((SELECT sum(end_ns - start_ns) FROM idle_gap "
            f"WHERE cause = '{_ID}' AND {{gpu}}), 0) "
            f"+ (SELECT sum(exposed_copy_ns) {_OF_JOURNEYS})) / count(*))::BIGINT "
            "FROM step WHERE steady AND {gpu}"
        ),
        message=_message(evidence, idle, copies),
        texts=where.texts(),
        recommendations=[*_ADVICE[evidence]],
        figures=[
            idle_figure(_ID),
            Figure("downs", "per_step", _a_step("reads")),
            Figure("down_bytes", "bytes", _a_step("read_bytes")),
            Figure("ups", "per_step", _a_step("uploads")),
            Figure("up_bytes", "bytes", _a_step("upload_bytes")),
            Figure("host_ns_per_step", "ns_per_step", _a_step("idle_ns")),
            Figure("offload_copies_ns_per_step", "ns_per_step", _a_step("exposed_copy_ns")),
        ],
        where=where,
        change=Free(_ID),
        also=(
            FuseOps(copied, round(update), case.rank, on_device)
            if updates
            else RemoveOps(copied, case.rank),
        ),
    )


def _mostly(offload: Offload) -> int:
    """What tells most of the bytes that go down: index into ``OFFLOAD_EVIDENCE``."""
    weight = np.bincount(
        offload.evidence, weights=offload.down_bytes, minlength=len(OFFLOAD_EVIDENCE)
    )
    return int(weight.argmax())


def _message(evidence: int, idle_ns: float, copies_ns: float) -> str:
    message = _WHAT[evidence]
    if idle_ns < copies_ns:
        return message
    message += "; the GPU idles {host_ns_per_step} per step meanwhile"
    if idle_ns >= 2 * copies_ns and evidence == COMES_BACK:
        message += ", nearly all of it while the host works on the data, as an optimizer on the "
        message += "CPU does"
    return message


CAUSE = Cause(
    id=_ID,
    title="CPU offload",
    definition=(
        "Gradients, optimizer states, parameters or activations are copied to the host and back "
        "in every step, or an average of the weights or a layer of the model is kept there. The "
        "copies, and what the host computes on the data, such as the optimizer's update, keep the "
        "GPU waiting."
    ),
    differential=(
        "input_starvation is a batch that goes up and does not come down; checkpoint_stall reads "
        "the state back in a few steps and uploads nothing; blocking_copy sends data one way, "
        "host_sync reads a value. "
        "Offloaded data has the same sizes down and up in one step: at least four tensors of two "
        "sizes, or any where a range says optimizer or offload, or what the main thread sends up "
        "and autograd's thread, with its gradient, down. State that the CPU keeps goes down only: "
        "at least eight tensors in a row, of several sizes that are the same in every step."
    ),
    prediction=(
        "the step without these copies and the idle time around them; where the host worked on "
        "the data, plus a fused update on the GPU, which moves each tensor seven times (three "
        "times for an average of the weights) at the memory's speed and takes the host a quarter "
        "of a millisecond and 6 us a tensor"
    ),
    reference="Ren et al., ZeRO-Offload (USENIX ATC 2021); PyTorch: FSDP CPUOffload",
    min_share=0.05,
    remedies=(
        "keep parameters, gradients and optimizer states on the GPU where they fit",
        "where they do not fit, shard them over the GPUs first (FSDP, ZeRO); offload last",
    ),
    detect=detect,
)
