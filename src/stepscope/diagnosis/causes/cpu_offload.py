"""Gradients, optimizer states or activations travel to the CPU and back in every step."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.diagnosis.frameworks import in_jax
from stepscope.diagnosis.workloads import in_inference
from stepscope.kernels.fusion import ADAM_PASSES
from stepscope.simulation import Free, FuseOps, RemoveOps

_ID = "cpu_offload"
UPDATE_NS: Final = 250_000
"""What a fused update on the device takes the host, ``UPDATE_TENSOR_NS`` more for each tensor:
its states and their groups are looked up in Python. Fused AdamW of 47 programs with 6 to 167
tensors took 0.22 to 1.4 ms a step, 0.45 to 0.7 ms with 50 (torch 2.11, by its range in recordings of
torch.profiler, in which it is two operators)."""

UPDATE_TENSOR_NS: Final = 6_000

MOSTLY: Final = 0.5
"""Part of what goes down that comes up again with hardly a kernel in between, or of the idle time
that lies between the last copy down and the next one up, from which on the host works on what came
down. Activations come back later."""

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
    on_host = idle >= copies
    message = (
        "{down_bytes} per step go to the CPU in {downs} copies, and as many bytes come back in the "
        "same sizes: what is offloaded to the CPU"
    )
    if on_host:
        message += (
            "; the GPU idles {host_ns_per_step} per step meanwhile, nearly all of it while the "
            "host works on the data, as an optimizer on the CPU does"
            if idle >= 2 * copies
            else "; the GPU idles {host_ns_per_step} per step meanwhile"
        )
    # the update on the device instead: every tensor moved a few times, at the memory's speed
    speed = e.kernels.attainable_bandwidth
    between = float(offload.between_ns.sum()) / e.n_steady
    again = float(np.minimum(offload.down_bytes, offload.up_bytes).sum()) / e.n_steady
    updates = between > 0 and (again >= MOSTLY * down or between >= MOSTLY * idle)
    update = ADAM_PASSES * down / speed * 1e9 if speed else 0.0
    tensors = float(offload.downs.sum()) / e.n_steady
    on_device = round(UPDATE_NS + UPDATE_TENSOR_NS * tensors)
    copied = tuple(e.gpu.ops["id"][offload.rows].tolist())
    return Detection(
        time_ns=idle + copies,
        direct_ns=case.direct_ns(_ID) + copies,
        uncertain_ns=case.idle_ns("launch_bound") + case.idle_ns("host_sync"),
        time_sql=(
            "SELECT round((coalesce((SELECT sum(end_ns - start_ns) FROM idle_gap "
            f"WHERE cause = '{_ID}' AND {{gpu}}), 0) "
            f"+ (SELECT sum(exposed_copy_ns) {_OF_JOURNEYS})) / count(*))::BIGINT "
            "FROM step WHERE steady AND {gpu}"
        ),
        message=message,
        texts=where.texts(),
        recommendations=[
            "keep parameters, gradients and optimizer states on the GPU where they fit: no "
            "offload_optimizer in the DeepSpeed configuration, no CPUOffload in FSDP, "
            "torch.optim.AdamW(..., fused=True) on the GPU",
            "where they do not fit: shard them over more GPUs (FSDP, ZeRO), keep the states in 8 "
            "or 16 bit, or recompute activations instead of offloading them",
            "where they must be offloaded: pinned buffers that are kept, copies on a side stream "
            "while the backward pass goes on, and a vectorised update (DeepSpeedCPUAdam)",
        ],
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


CAUSE = Cause(
    id=_ID,
    title="CPU offload",
    definition=(
        "Gradients, optimizer states, parameters or activations are copied to the host and back "
        "in every step. The copies, and what the host computes on the data in between, such as "
        "the optimizer's update, keep the GPU waiting."
    ),
    differential=(
        "input_starvation is a batch that goes up and does not come down; checkpoint_stall reads "
        "the state back in a few steps and uploads nothing; blocking_copy sends data one way. "
        "Offloaded data has the same sizes down and up in one step: at least four tensors of two "
        "sizes, or any where a range says optimizer or offload."
    ),
    prediction=(
        "the step without these copies and the idle time around them; where the host worked on "
        "the data, plus a fused update on the GPU, which moves each tensor seven times at the "
        "memory's speed and takes the host a quarter of a millisecond and 6 us a tensor"
    ),
    reference="Ren et al., ZeRO-Offload (USENIX ATC 2021); PyTorch: FSDP CPUOffload",
    min_share=0.05,
    remedies=(
        "keep parameters, gradients and optimizer states on the GPU where they fit",
        "where they do not fit, shard them over the GPUs first (FSDP, ZeRO); offload last",
    ),
    detect=detect,
)
