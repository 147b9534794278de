"""What a GPU can do at most: dense peaks of its datasheet, or ceilings measured on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec


@dataclass(frozen=True)
class Peaks:
    """Data-sheet peaks of one product.

    Attributes:
        name: product.
        fp64: double precision on the CUDA cores, FLOP/s.
        fp32: single precision on the CUDA cores, FLOP/s.
        tf32: TF32 on tensor cores, dense, FLOP/s; 0 where it has none.
        half: BF16 or FP16 on tensor cores with FP32 accumulation, dense, FLOP/s; FP16 only where it
            has no BF16.
        eight: FP8, dense, FLOP/s; 0 where it has none.
        bandwidth: device memory, bytes/s.
        source: datasheet.
        fp64_gemm: GEMMs in double precision, on tensor cores where it has such for
            them, FLOP/s; 0: as ``fp64``.
        measured: whether these were measured rather than taken from a datasheet.
        derived: whether they follow from the architecture, SMs and clock.
        only_ratios: whether only the ratios between types are known, and what it reaches at most.
    """

    name: str
    fp64: float
    fp32: float
    tf32: float
    half: float
    eight: float
    bandwidth: float
    source: str
    fp64_gemm: float = 0.0
    measured: bool = False
    derived: bool = False
    only_ratios: bool = False

    @property
    def bf16(self) -> bool:
        """Whether the tensor cores multiply BF16: those that do came with TF32 (Ampere)."""
        return self.tf32 > 0

    def of(self, math: str) -> float:
        """Peak of GEMMs in a key of ``categories.MATHS``, FLOP/s; 0 where unknown."""
        return {
            "fp64": self.fp64_gemm or self.fp64,
            "fp32": self.fp32,
            "tf32": self.tf32,
            "16bit": self.half,
            "8bit": self.eight,
        }.get(math, 0.0)


_SHEET: Final = "NVIDIA {} datasheet, {}"
_HALVED: Final = "sparse peaks halved"
_H100 = _SHEET.format("H100 Tensor Core GPU", _HALVED)
_H200 = _SHEET.format("H200 Tensor Core GPU", _HALVED)
_BLACKWELL = _SHEET.format("Blackwell (GB200 NVL72 and HGX B200)", "one GPU, " + _HALVED)
_V100 = "NVIDIA V100 Tensor Core GPU datasheet"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper V2"
_AD102 = "NVIDIA Ada GPU architecture whitepaper V2"
_GB202 = "NVIDIA RTX Blackwell GPU architecture whitepaper"
_TURING = "NVIDIA Turing GPU architecture whitepaper"
_BOOST = "NVIDIA product specifications ({}), with the rates of its architecture's whitepaper"
_64TH = "; FP64 is 1/64 of FP32 by architecture"
_32ND = "; FP64 is 1/32 of FP32 by architecture"


def _p(
    pattern: str,
    name: str,
    fp64: float,
    fp64_gemm: float,
    fp32: float,
    tf32: float,
    half: float,
    eight: float,
    bandwidth: float,
    source: str,
) -> tuple[str, Peaks]:
    """One product, in TFLOP/s and GB/s as datasheets have them."""
    t, g = 1e12, 1e9
    return pattern, Peaks(
        name,
        fp64 * t,
        fp32 * t,
        tf32 * t,
        half * t,
        eight * t,
        bandwidth * g,
        source,
        fp64_gemm * t,
    )


_PRODUCTS: Final = (
    # the first pattern that is found in the product name counts
    _p(r"GB200", "GB200", 40, 40, 80, 1250, 2500, 5000, 8000, _BLACKWELL),
    _p(r"B200", "B200", 37, 37, 75, 1100, 2250, 4500, 7700, _BLACKWELL),
    _p(r"GH200", "GH200", 34, 67, 67, 494, 989, 1979, 4000,
       _SHEET.format("GH200 Grace Hopper Superchip", _HALVED)),
    _p(r"H200.*NVL", "H200 NVL", 30, 60, 60, 417.5, 835.5, 1670.5, 4800, _H200),
    _p(r"H200", "H200", 34, 67, 67, 494.5, 989.5, 1979, 4800, _H200),
    _p(r"H100.*PCIe", "H100 PCIe", 26, 51, 51, 378, 756.5, 1513, 2000, _H100),
    _p(r"H100.*NVL", "H100 NVL", 30, 60, 60, 417.5, 835.5, 1670.5, 3900, _H100),
    _p(r"H100", "H100 SXM", 34, 67, 67, 494.5, 989.5, 1979, 3350, _H100),
    _p(r"A[18]00.*80GB.*PCIe|A[18]00.*PCIe.*80GB", "A100 80GB PCIe", 9.7, 19.5, 19.5, 156, 312, 0,
       1935, _A100),
    _p(r"A[18]00.*80GB", "A100 80GB", 9.7, 19.5, 19.5, 156, 312, 0, 2039, _A100),
    _p(r"A[18]00", "A100 40GB", 9.7, 19.5, 19.5, 156, 312, 0, 1555, _A100),
    _p(r"L40S", "L40S", 1.43, 0, 91.6, 183, 362, 733, 864, "NVIDIA L40S datasheet" + _64TH),
    _p(r"L40\b", "L40", 1.41, 0, 90.5, 90.5, 181, 362, 864, "NVIDIA L40 datasheet" + _64TH),
    _p(r"L4\b", "L4", 0.47, 0, 30.3, 60, 121, 242.5, 300,
       _SHEET.format("L4", _HALVED) + _64TH),
    _p(r"A40\b", "A40", 0.58, 0, 37.4, 74.8, 149.7, 0, 696, "NVIDIA A40 datasheet" + _64TH),
    _p(r"A30\b", "A30", 5.2, 10.3, 10.3, 82, 165, 0, 933, "NVIDIA A30 datasheet"),
    _p(r"A10\b", "A10", 0.49, 0, 31.2, 62.5, 125, 0, 600, "NVIDIA A10 datasheet" + _64TH),
    _p(r"RTX 6000 Ada", "RTX 6000 Ada", 1.42, 0, 91.1, 182.1, 364.2, 728.5, 960,
       f"NVIDIA RTX 6000 Ada datasheet; its FP8 peak halved for density, and again for TF32 and "
       f"16 bit, as in the {_AD102}" + _64TH),
    _p(r"RTX 5000 Ada(?!.*Laptop)", "RTX 5000 Ada", 1.02, 0, 65.3, 130.6, 261.1, 522.2, 576,
       f"NVIDIA RTX 5000 Ada datasheet; its FP8 peak halved for density, and again for TF32 and "
       f"16 bit, as in the {_AD102}" + _64TH),
    _p(r"RTX A5000(?! Laptop)", "RTX A5000", 0.43, 0, 27.8, 55.6, 111.1, 0, 768,
       f"NVIDIA RTX A5000 datasheet, {_HALVED}" + _64TH),
    _p(r"RTX A4000(?! Laptop)", "RTX A4000", 0.3, 0, 19.2, 38.35, 76.7, 0, 448,
       f"NVIDIA RTX A4000 datasheet, {_HALVED}" + _64TH),
    _p(r"RTX A6000", "RTX A6000", 0.6, 0, 38.7, 77.4, 154.8, 0, 768, _GA102 + _64TH),
    _p(r"RTX 5090(?! D| Laptop)", "RTX 5090", 1.64, 0, 104.8, 104.8, 209.5, 419, 1792,
       _GB202 + _64TH),
    _p(r"RTX 5080(?! Laptop)", "RTX 5080", 0.88, 0, 56.3, 56.3, 112.6, 225.1, 960,
       _GB202 + _64TH),
    _p(r"RTX 5070 Ti(?! Laptop)", "RTX 5070 Ti", 0.69, 0, 43.9, 43.9, 87.9, 175.8, 896,
       _BOOST.format("70 SMs, 2.452 GHz") + _64TH),
    _p(r"RTX 5070(?! Ti| Laptop)", "RTX 5070", 0.48, 0, 30.9, 30.9, 61.7, 123.5, 672,
       _BOOST.format("48 SMs, 2.512 GHz") + _64TH),
    _p(r"RTX 4080 SUPER", "RTX 4080 SUPER", 0.82, 0, 52.2, 52.2, 104.4, 208.9, 736,
       _BOOST.format("80 SMs, 2.55 GHz") + _64TH),
    _p(r"RTX 4070 Ti(?! SUPER)", "RTX 4070 Ti", 0.63, 0, 40.1, 40.1, 80.2, 160.4, 504,
       _BOOST.format("60 SMs, 2.61 GHz") + _64TH),
    _p(r"RTX 4080(?! SUPER| Laptop)", "RTX 4080", 0.76, 0, 48.7, 48.7, 97.5, 194.9, 716.8,
       _AD102 + _64TH),
    _p(r"RTX 4090(?! D| Laptop)", "RTX 4090", 1.29, 0, 82.6, 82.6, 165.2, 330.3, 1008,
       _AD102 + _64TH),
    _p(r"RTX 3090(?! Ti)", "RTX 3090", 0.56, 0, 35.6, 35.6, 71, 0, 936, _GA102 + _64TH),
    _p(r"RTX 3090 Ti", "RTX 3090 Ti", 0.63, 0, 40, 40, 80, 0, 1008,
       _BOOST.format("84 SMs, 1.86 GHz") + _64TH),
    _p(r"RTX 3070 Ti(?! Laptop)", "RTX 3070 Ti", 0.34, 0, 21.7, 21.7, 43.5, 0, 608,
       _BOOST.format("48 SMs, 1.77 GHz") + _64TH),
    _p(r"RTX 3070(?! Ti| Laptop)", "RTX 3070", 0.32, 0, 20.3, 20.3, 40.6, 0, 448, _GA102 + _64TH),
    _p(r"TITAN RTX", "TITAN RTX", 0.51, 0, 16.3, 0, 130.5, 0, 672, _TURING + _32ND),
    _p(r"Quadro RTX [68]000", "Quadro RTX 6000 and 8000", 0.51, 0, 16.3, 0, 130.5, 0, 672,
       _TURING + _32ND),
    _p(r"RTX 2080 Ti", "RTX 2080 Ti", 0.42, 0, 13.4, 0, 53.8, 0, 616,
       _TURING + ", reference clocks" + _32ND),
    _p(r"V100S", "V100S PCIe", 8.2, 0, 16.4, 0, 130, 0, 1134, _V100),
    _p(r"V100.*PCIE", "V100 PCIe", 7, 0, 14, 0, 112, 0, 900, _V100),
    _p(r"V100", "V100 SXM2", 7.8, 0, 15.7, 0, 125, 0, 900, _V100),
    _p(r"T4\b", "T4", 0.25, 0, 8.1, 0, 65, 0, 300, "NVIDIA T4 datasheet" + _32ND),
)  # fmt: skip


def peaks_of(product: str) -> Peaks | None:
    """Data-sheet peaks of a product by its name; None for one that is not in the table."""
    return next((p for pattern, p in _PRODUCTS if re.search(pattern, product)), None)


PRODUCTS: Final = tuple(peaks for _, peaks in _PRODUCTS)
"""Every product of the table."""


SCHEMA: Final = "stepscope.ceilings/2"


class Ceilings(msgspec.Struct, frozen=True):
    """What one GPU achieved; null where it was not measured.

    Attributes:
        schema: name and version of this contract.
        device: product name, as traces have it.
        measured_at: time, ISO 8601, UTC.
        dram_bytes_per_s: device memory, the better of reading and copying.
        fp32_flop_per_s: multiply-adds in single precision on the CUDA cores.
        fp64_flop_per_s: the same in double precision.
        capability: compute capability.
        sms: how many it has.
        l2_bytes: size of its L2 cache.
        driver_cuda: newest CUDA version that its driver knows.
        library: what computed the GEMMs; empty where none was found.
        dram_read_bytes_per_s: device memory, reading only.
        dram_copy_bytes_per_s: device memory, bytes read and bytes written.
        l2_bytes_per_s: reading what the L2 cache holds.
        fp64_gemm_flop_per_s: GEMMs in FP64.
        tf32_flop_per_s: GEMMs in TF32.
        fp16_flop_per_s: GEMMs in FP16 with FP32 accumulation.
        bf16_flop_per_s: GEMMs in BF16 with FP32 accumulation.
        fp8_flop_per_s: GEMMs in FP8 (E4M3) with fast accumulation.
        warnings: what could not be measured, and why.
    """

    schema: str
    device: str
    measured_at: str
    dram_bytes_per_s: float
    fp32_flop_per_s: float
    fp64_flop_per_s: float
    capability: str = ""
    sms: int = 0
    l2_bytes: int = 0
    driver_cuda: str = ""
    library: str = ""
    dram_read_bytes_per_s: float | None = None
    dram_copy_bytes_per_s: float | None = None
    l2_bytes_per_s: float | None = None
    fp64_gemm_flop_per_s: float | None = None
    tf32_flop_per_s: float | None = None
    fp16_flop_per_s: float | None = None
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    warnings: list[str] = []


CEILINGS: Final = {
    "dram_bytes_per_s": ("DRAM", "bandwidth"),
    "dram_read_bytes_per_s": ("DRAM, reading", ""),
    "dram_copy_bytes_per_s": ("DRAM, copying", ""),
    "l2_bytes_per_s": ("L2, reading", ""),
    "fp64_flop_per_s": ("FP64", "fp64"),
    "fp64_gemm_flop_per_s": ("FP64 GEMMs", "fp64_gemm"),
    "fp32_flop_per_s": ("FP32", "fp32"),
    "tf32_flop_per_s": ("TF32 GEMMs", "tf32"),
    "fp16_flop_per_s": ("FP16 GEMMs", "half"),
    "bf16_flop_per_s": ("BF16 GEMMs", "half"),
    "fp8_flop_per_s": ("FP8 GEMMs", "eight"),
}
"""Measured figure -> (title, attribute of :class:`Peaks` that the datasheet has for it)."""


def peaks_from(ceilings: Ceilings) -> Peaks:
    """Measured ceilings as peaks; what was not measured stays that of the datasheet."""
    sheet = peaks_of(ceilings.device)
    kept: list[str] = []

    def value(measured: float | None, name: str, title: str) -> float:
        stated = float(getattr(sheet, name)) if sheet else 0.0
        if measured is None and stated:
            kept.append(title)
        return stated if measured is None else measured

    half = ceilings.bf16_flop_per_s or ceilings.fp16_flop_per_s
    fp64_gemm = value(ceilings.fp64_gemm_flop_per_s, "fp64_gemm", "FP64 GEMMs")
    tf32 = value(ceilings.tf32_flop_per_s, "tf32", "TF32")
    sixteen = value(half, "half", "16 bit")
    eight = value(ceilings.fp8_flop_per_s, "eight", "FP8")
    source = f"measured on {ceilings.measured_at} by stepscope ceilings"
    if kept and sheet:
        source += f"; {', '.join(kept)}: {sheet.source}"
    return Peaks(
        name=ceilings.device,
        fp64=ceilings.fp64_flop_per_s,
        fp32=ceilings.fp32_flop_per_s,
        bandwidth=ceilings.dram_bytes_per_s,
        source=source,
        measured=True,
        fp64_gemm=fp64_gemm,
        tf32=tf32,
        half=sixteen,
        eight=eight,
    )
