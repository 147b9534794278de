"""What GPUs can do at most, by product name: dense peaks from the makers' data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Peaks:
    """Data-sheet peaks of one product.

    Attributes:
        name: product.
        fp64: double precision on the general cores, FLOP/s.
        fp32: single precision on the general cores, FLOP/s.
        tf32: TF32 on tensor cores, dense, FLOP/s; 0 where it has none.
        half: BF16 or FP16 on tensor cores with FP32 accumulation, dense, FLOP/s.
        eight: FP8, dense, FLOP/s; 0 where it has none.
        bandwidth: device memory, bytes/s.
        source: data sheet.
        fp64_product: matrix products in double precision, on tensor cores where it has such for
            them, FLOP/s; 0: as ``fp64``.
        measured: whether these were measured rather than taken from a data sheet.
    """

    name: str
    fp64: float
    fp32: float
    tf32: float
    half: float
    eight: float
    bandwidth: float
    source: str
    fp64_product: float = 0.0
    measured: bool = False

    def of(self, math: str) -> float:
        """Peak of products in a key of ``families.MATHS``, FLOP/s; 0 where unknown."""
        return {
            "fp64": self.fp64_product or self.fp64,
            "fp32": self.fp32,
            "tf32": self.tf32,
            "16bit": self.half,
            "8bit": self.eight,
        }.get(math, 0.0)


_T = 1e12
_G = 1e9
_H = "NVIDIA H100 Tensor Core GPU data sheet (sparse peaks halved)"
_GA = "NVIDIA RTX product page and Ada or Ampere GPU architecture whitepaper (sparse peaks halved)"

_PRODUCTS: Final = (
    # the first pattern that is found in the product name counts
    (r"B200|GB200", Peaks("B200", 37 * _T, 75 * _T, 1125 * _T, 2250 * _T, 4500 * _T, 8000 * _G,
                          "NVIDIA DGX B200 data sheet (sparse peaks halved, for one of 8 GPUs)")),
    (r"(?<!G)H200", Peaks("H200", 34 * _T, 67 * _T, 494 * _T, 989 * _T, 1979 * _T, 4800 * _G,
                    "NVIDIA H200 Tensor Core GPU data sheet (sparse peaks halved)")),
    (r"GH200", Peaks("GH200", 34 * _T, 67 * _T, 494 * _T, 989 * _T, 1979 * _T, 4000 * _G,
                     "NVIDIA GH200 Grace Hopper data sheet (sparse peaks halved)")),
    (r"H100.*PCIe", Peaks("H100 PCIe", 26 * _T, 51 * _T, 378 * _T, 756 * _T, 1513 * _T, 2000 * _G,
                          _H)),
    (r"H100.*NVL", Peaks("H100 NVL", 30 * _T, 60 * _T, 417 * _T, 835 * _T, 1670 * _T, 3900 * _G,
                         _H)),
    (r"H100|H800", Peaks("H100 SXM", 34 * _T, 67 * _T, 494 * _T, 989 * _T, 1979 * _T,
                               3350 * _G, _H)),
    (r"A100.*80GB", Peaks("A100 80GB", 9.7 * _T, 19.5 * _T, 156 * _T, 312 * _T, 0, 2039 * _G,
                          "NVIDIA A100 Tensor Core GPU data sheet")),
    (r"A100|A800", Peaks("A100 40GB", 9.7 * _T, 19.5 * _T, 156 * _T, 312 * _T, 0, 1555 * _G,
                         "NVIDIA A100 Tensor Core GPU data sheet")),
    (r"L40S", Peaks("L40S", 1.4 * _T, 91.6 * _T, 183 * _T, 362 * _T, 733 * _T, 864 * _G,
                    "NVIDIA L40S data sheet")),
    (r"L40", Peaks("L40", 1.4 * _T, 90.5 * _T, 90.5 * _T, 181 * _T, 362 * _T, 864 * _G,
                   "NVIDIA L40 data sheet")),
    (r"L4\b", Peaks("L4", 0.5 * _T, 30.3 * _T, 60 * _T, 121 * _T, 242 * _T, 300 * _G,
                    "NVIDIA L4 data sheet (sparse peaks halved)")),
    (r"A40\b", Peaks("A40", 0.6 * _T, 37.4 * _T, 74.8 * _T, 149.7 * _T, 0, 696 * _G,
                     "NVIDIA A40 data sheet")),
    (r"A30\b", Peaks("A30", 5.2 * _T, 10.3 * _T, 82 * _T, 165 * _T, 0, 933 * _G,
                     "NVIDIA A30 data sheet")),
    (r"A10G?\b", Peaks("A10", 0.5 * _T, 31.2 * _T, 62.5 * _T, 125 * _T, 0, 600 * _G,
                       "NVIDIA A10 data sheet")),
    (r"RTX 6000 Ada", Peaks("RTX 6000 Ada", 1.4 * _T, 91.1 * _T, 182.1 * _T, 364.2 * _T,
                            728.5 * _T, 960 * _G,
                            "NVIDIA RTX 6000 Ada data sheet (sparse peaks halved)")),
    (r"RTX A6000", Peaks("RTX A6000", 0.6 * _T, 38.7 * _T, 77.4 * _T, 154.8 * _T, 0, 768 * _G,
                         "NVIDIA RTX A6000 data sheet (sparse peaks halved)")),
    (r"RTX 5090", Peaks("RTX 5090", 1.6 * _T, 104.8 * _T, 104.8 * _T, 209.5 * _T, 419 * _T,
                        1792 * _G, "NVIDIA RTX Blackwell GPU architecture whitepaper")),
    (r"RTX 4090", Peaks("RTX 4090", 1.3 * _T, 82.6 * _T, 82.6 * _T, 165.2 * _T, 330.3 * _T,
                        1008 * _G, _GA)),
    (r"RTX 3090", Peaks("RTX 3090", 0.6 * _T, 35.6 * _T, 35.6 * _T, 71 * _T, 0, 936 * _G, _GA)),
    (r"V100", Peaks("V100", 7.8 * _T, 15.7 * _T, 0, 125 * _T, 0, 900 * _G,
                    "NVIDIA V100 data sheet")),
    (r"T4\b", Peaks("T4", 0.25 * _T, 8.1 * _T, 0, 65 * _T, 0, 300 * _G, "NVIDIA T4 data sheet")),
)  # fmt: skip


def peaks_of(product: str) -> Peaks | None:
    """Data-sheet peaks of a product by its name; None for one that is not in the table."""
    return next((p for pattern, p in _PRODUCTS if re.search(pattern, product)), None)


PRODUCTS: Final = tuple(peaks for _, peaks in _PRODUCTS)
"""Every product of the table."""
