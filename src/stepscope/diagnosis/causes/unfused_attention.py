"""Attention is computed step by step, with the scores written to memory each time."""

from __future__ import annotations

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure
from stepscope.diagnosis.inside_kernels import detection, saved_time_sql

_ID = "unfused_attention"


def detect(case: Case) -> Detection | None:
    """Softmax kernels between GEMMs, with scale, mask and dropout in between."""
    found = case.explanation.inside_kernels.attention
    if found is None:
        return None
    operators = case.explanation.kernels.attribution.operators.texts.get("name", [])
    falls_back = any("scaled_dot_product_attention_math" in name for name in operators)
    members = f"SELECT gpu_op_id FROM kernel_repair WHERE cause = '{_ID}' AND {{gpu}}"
    return detection(
        case,
        _ID,
        found.repair,
        message=(
            "attention runs as {kernels_per_step} separate kernels per step (GEMM, scale, mask, "
            "softmax, GEMM), each of which writes the whole matrix of scores to memory for the "
            "next one to read; that takes {kernels_ns_per_step}, fused some "
            "{repaired_ns_per_step}"
        ),
        recommendations=[
            *(
                [
                    "scaled_dot_product_attention falls back to separate kernels here: "
                    "torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) says why (type, "
                    "mask, head size)"
                ]
                if falls_back
                else []
            ),
            "call torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=...) instead "
            "of the GEMMs, the mask and the softmax; is_causal=True and no mask where each token "
            "sees all earlier ones and no later one",
            *(
                [
                    "make the learnt bias contiguous before it is the attn_mask "
                    "(bias.contiguous() where it was permuted): the fused kernel takes no other, "
                    "and without it nothing is gained"
                ]
                if found.biased
                else []
            ),
            "in Hugging Face models: from_pretrained(..., attn_implementation='sdpa') or "
            "'flash_attention_2'",
            "for masks and biases that it does not take: "
            "torch.nn.attention.flex_attention, compiled",
        ],
        figures=[
            Figure(
                "softmax_kernels",
                "count",
                "SELECT count(*) FROM kernel_category WHERE category = 'softmax' AND {gpu} AND "
                f"{{window}} AND gpu_op_id IN ({members})",
            ),
            Figure(
                "attention_products_ns",
                "ns",
                "SELECT sum(end_ns - start_ns)::BIGINT FROM kernel_category WHERE category = "
                "'matmul' "
                f"AND {{gpu}} AND {{window}} AND gpu_op_id IN ({members})",
            ),
        ],
    )


CAUSE = Cause(
    id=_ID,
    title="Unfused attention",
    definition=(
        "Scores of all pairs of positions are computed by one kernel, and scaled, masked, "
        "normalised and multiplied with the values by others. Each writes and reads a matrix that "
        "grows with the square of the sequence. A fused kernel keeps it on the chip."
    ),
    differential=(
        "fusion_opportunity is about other chains of elementwise kernels. A classifier's softmax "
        "(no GEMM follows), a router's (top-k and indexing follow) and the loss's log-softmax "
        "are no attention."
    ),
    prediction=(
        "the step without everything between the GEMMs and the copies that lay out operands and "
        "results, and with what fused attention takes for these heads, positions, mask and "
        "dropout (kernels/fused_attention.py), which shapes or launches tell; else a share of the "
        "GEMMs' time"
    ),
    reference="Dao et al., FlashAttention (NeurIPS 2022); PyTorch: scaled_dot_product_attention",
    min_share=0.05,
    time_sql=saved_time_sql(_ID),
    remedies=(
        "torch.nn.functional.scaled_dot_product_attention, or FlashAttention",
        "where it is used already: torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) "
        "says why it falls back",
    ),
    detect=detect,
)
