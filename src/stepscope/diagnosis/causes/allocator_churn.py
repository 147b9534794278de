"""Device memory is allocated and released inside the step."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure

_ID = "allocator_churn"


def detect(case: Case) -> Detection | None:
    """Idle time during allocation calls."""
    time = case.idle_ns(_ID)
    if not time:
        return None
    return Detection(
        time_ns=time,
        direct_ns=case.direct_ns(_ID),
        says="the GPU idles while the host allocates or releases memory inside the step",
        do=[
            "remove torch.cuda.empty_cache() from the loop",
            "keep shapes constant, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "leave headroom: near the memory limit the caching allocator releases and retries",
        ],
        figures=[
            idle_figure(_ID),
            Figure(
                "allocation_calls",
                "count",
                "SELECT count(*) FROM api_call WHERE regexp_matches(name, "
                "'^(cuda|hip)(Malloc|Free|HostAlloc)|^cuMem(Alloc|Free|Create|Release|Map|Unmap)') "
                "AND {process} AND {window}",
            ),
        ],
        where=case.place(_ID),
    )


CAUSE = Cause(
    id=_ID,
    title="Allocator churn",
    definition=(
        "cudaMalloc and cudaFree take 0.1 to several milliseconds, and cudaFree waits for the "
        "device. In a steady step there should be none."
    ),
    look_alikes=(
        "The first steps allocate by right: they are set aside as warm-up. Pinning host memory "
        "for a batch belongs to the input pipeline when an annotation says so."
    ),
    prediction="the step without the idle time during allocation calls",
    reference="PyTorch documentation: CUDA semantics, memory management",
    min_share=0.05,
    detect=detect,
)
