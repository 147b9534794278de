"""The step is made of kernels that wait for the device's memory."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure
from stepscope.diagnosis.inside_kernels import detection, saved_time_sql
from stepscope.diagnosis.workloads import in_inference
from stepscope.kernels.fusion import WAITING

_ID = "memory_bound_kernels"


@in_inference(
    "move fewer bytes: 16-bit or quantised weights, an FP8 cache of keys and values",
    "share one pass over the weights among more requests: larger batches, speculative decoding",
    "torch.compile the model, so that neighbours share one pass over memory",
)
def detect(case: Case) -> Detection | None:
    """Memory-bound categories dominate, and their known traffic is near the memory's speed."""
    found = case.explanation.inside_kernels.memory
    if found is None:
        return None
    peaks = case.explanation.kernels.peaks
    half = "BF16" if peaks is None or peaks.bf16 else "FP16"
    dtype = "bfloat16" if half == "BF16" else "float16"
    categories = ", ".join(f"'{category}'" for category in WAITING)
    return detection(
        case,
        _ID,
        found.repair,
        message=(
            "{memory_bound_share} of the kernel time goes to kernels that wait for the memory "
            "(elementwise, copies, normalisation, softmax), at {known_bytes_per_s} where the "
            "traffic is known"
        ),
        recommendations=[
            f"compute in {half}, which halves the bytes: torch.autocast('cuda', "
            f"dtype=torch.{dtype})",
            "torch.compile the model, so that neighbours share one pass over memory",
            "for convolutional networks: model.to(memory_format=torch.channels_last)",
            "check that shapes are large enough for the GEMMs to matter",
        ],
        figures=[
            Figure(
                "memory_bound_share",
                "share",
                f"SELECT sum(end_ns - start_ns) FILTER (category IN ({categories})) / "
                "sum(end_ns - start_ns) FROM kernel_category WHERE steady AND {gpu}",
            ),
            Figure(
                "known_bytes_per_s",
                "bytes_per_s",
                "SELECT sum(moved_bytes) * 1e9 / sum(end_ns - start_ns) FROM kernel_category WHERE "
                "moved_bytes IS NOT NULL AND gpu_op_id IN (SELECT gpu_op_id FROM kernel_repair "
                f"WHERE cause = '{_ID}' AND {{gpu}}) AND {{gpu}}",
            ),
        ],
        next_capture="stepscope run --backend ncu --examine CAPTURE --steps 1 -- python train.py",
    )


CAUSE = Cause(
    id=_ID,
    title="Memory-bound kernels",
    definition=(
        "Elementwise operations, copies, normalisation, softmax and reductions do next to no "
        "arithmetic for each byte. Where they make up most of the step and run near the memory's "
        "bandwidth, only fewer bytes help."
    ),
    differential=(
        "A transformer spends a fifth to two fifths of its time in such kernels, a convolutional "
        "network half: that is ordinary. fusion_opportunity names chains that can be merged. "
        "Kernels that are short rather than memory-bound do not come near the bandwidth: then it "
        "is launch_bound or small_kernels."
    ),
    prediction="the step with half of these kernels' traffic; a quarter less or more either way",
    reference="Williams et al., Roofline (CACM 2009)",
    min_share=0.15,
    time_sql=saved_time_sql(_ID),
    names_no_repair=True,
    remedies=(
        "torch.compile the model, so that neighbouring operations share one pass over memory",
        "compute in 16 bit, which halves the bytes",
        "convolutional networks: model.to(memory_format=torch.channels_last)",
    ),
    detect=detect,
)
