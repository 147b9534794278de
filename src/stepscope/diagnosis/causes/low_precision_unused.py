"""GEMMs run in single precision without tensor cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, Further
from stepscope.diagnosis.frameworks import in_jax
from stepscope.diagnosis.inside_kernels import detection, saved_time_sql
from stepscope.diagnosis.workloads import in_inference
from stepscope.simulation.settings.precision import Precision

_ID = "low_precision_unused"


@in_jax(
    "jax.config.update('jax_default_matmul_precision', 'tensorfloat32'): TF32 on tensor "
    "cores, same types in memory",
    "train in BF16: cast weights and activations inside the loss function, keep the master "
    "weights in FP32",
)
@in_inference(
    "run in 16 bit: model.to(torch.bfloat16), or torch.float16 where the GPU has no BF16; "
    "torch_dtype in from_pretrained, dtype in vLLM and SGLang",
    "quantise the weights: FP8 where the GPU has it, else INT8 or INT4 (AWQ, GPTQ)",
    "torch.set_float32_matmul_precision('high') where single precision must stay and the GPU has "
    "TF32",
)
def detect(case: Case) -> Detection | None:
    """Single-precision GEMMs and convolutions on the CUDA cores of a device with tensor cores."""
    found = case.explanation.inside_kernels.precision
    if found is None:
        return None
    tf32 = (
        ["torch.set_float32_matmul_precision('high'): TF32 on tensor cores, one line, same types "
         "(convolutions: torch.backends.cudnn.allow_tf32 = True)"]
        if found.peaks.tf32
        else []
    )  # fmt: skip
    sixteen = (
        "train in BF16: with torch.autocast('cuda', dtype=torch.bfloat16): around forward and loss"
        if found.peaks.bf16
        else "train in FP16 (this GPU's tensor cores have no BF16): with torch.autocast('cuda', "
        "dtype=torch.float16): around forward and loss, and torch.amp.GradScaler for the gradients"
    )
    detected = detection(
        case,
        _ID,
        found.repair,
        message=(
            "GEMMs run in single precision on the CUDA cores for "
            "{single_precision_share} of the kernel time, while the tensor cores, which would need "
            "{repaired_ns_per_step} instead of {kernels_ns_per_step}, stand idle"
            + ("; the rates of this GPU are derived from its architecture" * found.peaks.derived)
        ),
        recommendations=[
            *tf32,
            sixteen,
            "keep in single precision only what needs it (losses, norms, small reductions)",
        ],
        figures=[
            Figure(
                "single_precision_share",
                "share",
                "SELECT sum(end_ns - start_ns) FILTER (math = 'fp32') / sum(end_ns - start_ns) "
                "FROM kernel_category WHERE steady AND {gpu}",
            ),
        ],
    )
    # the first advice for inference is 16 bits, with weights that are stored so
    first_of_two = found.after == "tf32" and not case.explanation.workload.infers
    if not first_of_two:
        return detected
    return replace(detected, further=_BF16, texts={"first": _BF16.first, "further": _TYPE})


_TYPE: Final = "BF16"
_BF16: Final = Further(Precision("bf16"), f"autocast to {_TYPE}", "TF32", chosen_anyway=True)

CAUSE = Cause(
    id=_ID,
    title="Tensor cores unused",
    definition=(
        "GEMMs or convolutions take kernels that multiply in single precision on the "
        "CUDA cores (sgemm, simt, ffma), although the device has tensor cores. PyTorch "
        "multiplies so by default when inputs are float32."
    ),
    differential=(
        "inefficient_kernel is a GEMM that uses the right cores badly. Double precision and "
        "GEMMs on tensor cores (TF32, BF16, FP8) are not counted."
    ),
    prediction=(
        "the step replayed with these kernels in TF32: GEMMs at the share of the peak that their "
        "layout reaches, convolutions by their shapes (kernels/convolutions.py), or a share of "
        "their time where no shapes are recorded. Beside it the step under autocast to BF16 (the "
        "setting precision); the range reaches to it"
    ),
    reference=(
        "PyTorch: torch.set_float32_matmul_precision; NVIDIA datasheets in kernels/ceilings.py"
    ),
    min_share=0.05,
    time_sql=saved_time_sql(_ID),
    remedies=(
        "torch.set_float32_matmul_precision('high'): TF32 on tensor cores, one line",
        "train in BF16: torch.autocast('cuda', dtype=torch.bfloat16) around forward pass and loss",
    ),
    detect=detect,
)
