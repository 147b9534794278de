"""The reference page about kernels: categories, arithmetic, thresholds, data-sheet peaks."""

from __future__ import annotations

from stepscope.kernels import (
    attention,
    efficiency,
    fusion,
    kernels,
    layouts,
    merging,
    precision,
    tiles,
)
from stepscope.kernels.categories import CATEGORIES, MATHS
from stepscope.kernels.ceilings import PRODUCTS
from tools.docs.markdown import code, constants, prose, table


def kernels_page() -> list[str]:
    """Parts of the page on kernels."""
    parts = [
        "# Kernels",
        "What Stepscope reads from kernels: columns `category` and `math` of "
        "[`kernel_category`](tables.md#kernel_category), and what the "
        "[causes](causes.md) inside kernels use.",
        "## Categories",
        table(("category", "holds"), [(code(name), doc) for name, doc in CATEGORIES.items()]),
        "## Arithmetic",
        table(("math", "means"), [(code(name), doc) for name, doc in MATHS.items()]),
        "## Thresholds and estimates",
    ]
    rows = [
        (code(name), f"{value:,.6g}", prose(doc))
        for module in (kernels, fusion, merging, attention, layouts, efficiency, precision, tiles)
        for name, (value, doc) in constants(module).items()
        if isinstance(value, int | float) and doc
    ]
    parts += [
        table(("constant", "value", "meaning"), rows),
        "## Data-sheet peaks",
        "Dense, in TFLOP/s; memory in GB/s; 16 bit and FP8 with FP32 accumulation. GEMMs are "
        "found by their name; variants of other names (H800, laptops) are left out where no "
        "datasheet is public, and no gain from tensor cores is estimated for them. "
        "`stepscope ceilings` measures any device.",
        table(
            ("product", "FP64", "FP64 GEMMs", "FP32", "TF32", "BF16", "FP8", "memory", "source"),
            [
                (
                    p.name,
                    *(f"{rate / 1e12:g}" if rate else "" for rate in
                      (p.fp64, p.fp64_gemm, p.fp32, p.tf32, p.half, p.eight)),
                    f"{p.bandwidth / 1e9:g}",
                    p.source,
                )
                for p in PRODUCTS
            ],
        ),
    ]  # fmt: skip
    return parts
