"""The host waits for the device in the middle of the step and loses its lead."""

from __future__ import annotations

import msgspec

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.diagnosis.frameworks import in_jax

_ID = "host_sync"


@in_jax(
    "read no values in the step: float(loss), .item(), np.asarray() and print() of an array"
    " wait for the device; read every N steps, or those of the step before",
    "keep block_until_ready() out of the loop; it is for measuring",
    "find the calls: jax.transfer_guard_device_to_host('disallow') raises where a value is read",
)
def detect(case: Case) -> Detection | None:
    """Idle time left by synchronisations, and by the launches that are late after them."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    where = case.place(_ID)
    e = case.explanation
    if line := e.places.of_waits(e.begin_ns, e.end_ns):
        where = msgspec.structs.replace(
            where, source=line
        )  # where it waits; the idle time comes after that
    inside = ", most of it in {range}" if where.range else ""
    return Detection(
        time_ns=time,
        unsure_ns=case.idle_ns("launch_bound"),
        direct_ns=case.direct_ns(_ID),
        says=(
            "the host stops to wait for the GPU or to read a value from it, the queue runs dry, "
            f"and the GPU idles until new work arrives{inside}"
        ),
        texts=where.texts(),
        do=[
            "keep values on the GPU: collect losses and norms as tensors and call .item() once "
            "every N steps, after the step",
            "replace a .item() or .norm().item() per parameter by torch.nn.utils.clip_grad_norm_ "
            "or torch._foreach_norm, which need no read-back",
            "drop torch.cuda.synchronize() from the loop; order streams with events instead",
            "avoid data-dependent shapes (tensor[mask], nonzero()) inside the step; use "
            "torch.where or a fixed capacity",
            "find the calls: torch.cuda.set_sync_debug_mode('warn') prints where each one is",
        ],
        figures=[
            idle_figure(_ID),
            Figure(
                "sync_calls",
                "count",
                "SELECT count(*) FROM api_call WHERE regexp_matches(name, "
                "'^(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize') AND {process} AND {window}",
            ),
            Figure(
                "scalar_reads",
                "count",
                "SELECT count(*) FROM gpu_op WHERE kind = 'memcpy' AND copy_kind = 'DtoH' "
                "AND bytes <= 65536 AND {lane} AND {window}",
            ),
        ],
        where=where,
        next_capture=None if where.source or where.range else captures.STACKS,
    )


CAUSE = Cause(
    id=_ID,
    title="Host synchronisation",
    definition=(
        "The training thread blocks on the GPU inside the step (cudaStreamSynchronize, .item(), a "
        "data-dependent shape). While it waits it enqueues nothing, so the queue is empty when it "
        "returns and the GPU idles until the next launches arrive."
    ),
    look_alikes=(
        "launch_bound has the same late launches but no wait before them: the host never had a "
        "lead. blocking_copy waits for a large transfer, not for a scalar. A synchronisation that "
        "finds the device already idle cost nothing: then host_compute or input_starvation is "
        "what made it idle."
    ),
    prediction=(
        "the step without the gaps that begin inside a blocking call, end with the scalar it "
        "reads, or follow it, up to the time it made the host wait"
    ),
    reference="PyTorch performance tuning guide: avoid unnecessary CPU-GPU synchronisation",
    min_share=0.05,
    detect=detect,
)
