"""Ceilings that ``stepscope ceilings`` measured on a GPU, instead of those of its data sheet."""

from __future__ import annotations

from typing import Final

import msgspec

from stepscope.kernels.peaks import Peaks, peaks_of

SCHEMA: Final = "stepscope.ceilings/1"


class Ceilings(msgspec.Struct, frozen=True):
    """What one GPU attained; null where it was not measured.

    Attributes:
        schema: name and version of this contract.
        device: product name, as traces have it.
        measured_at: time, ISO 8601, UTC.
        dram_bytes_per_s: device memory, the better of reading and copying.
        fp32_flop_per_s: multiply-adds in single precision on the general cores.
        fp64_flop_per_s: the same in double precision.
        capability: compute capability.
        multiprocessors: how many it has.
        l2_bytes: size of its L2 cache.
        driver_cuda: newest CUDA version that its driver knows.
        library: what computed the matrix products; empty where none was found.
        dram_read_bytes_per_s: device memory, reading only.
        dram_copy_bytes_per_s: device memory, bytes read and bytes written.
        l2_bytes_per_s: reading what the L2 cache holds.
        fp64_product_flop_per_s: matrix products in FP64.
        tf32_flop_per_s: matrix products in TF32.
        fp16_flop_per_s: matrix products in FP16 with FP32 accumulation.
        bf16_flop_per_s: matrix products in BF16 with FP32 accumulation.
        fp8_flop_per_s: matrix products in FP8 (E4M3) with fast accumulation.
        remarks: what could not be measured, and why.
    """

    schema: str
    device: str
    measured_at: str
    dram_bytes_per_s: float
    fp32_flop_per_s: float
    fp64_flop_per_s: float
    capability: str = ""
    multiprocessors: int = 0
    l2_bytes: int = 0
    driver_cuda: str = ""
    library: str = ""
    dram_read_bytes_per_s: float | None = None
    dram_copy_bytes_per_s: float | None = None
    l2_bytes_per_s: float | None = None
    fp64_product_flop_per_s: float | None = None
    tf32_flop_per_s: float | None = None
    fp16_flop_per_s: float | None = None
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    remarks: list[str] = []


CEILINGS: Final = {
    "dram_bytes_per_s": ("DRAM", "bandwidth"),
    "dram_read_bytes_per_s": ("DRAM, reading", ""),
    "dram_copy_bytes_per_s": ("DRAM, copying", ""),
    "l2_bytes_per_s": ("L2, reading", ""),
    "fp64_flop_per_s": ("FP64", "fp64"),
    "fp64_product_flop_per_s": ("FP64 products", "fp64_product"),
    "fp32_flop_per_s": ("FP32", "fp32"),
    "tf32_flop_per_s": ("TF32 products", "tf32"),
    "fp16_flop_per_s": ("FP16 products", "half"),
    "bf16_flop_per_s": ("BF16 products", "half"),
    "fp8_flop_per_s": ("FP8 products", "eight"),
}
"""Measured figure -> (title, attribute of :class:`Peaks` that the data sheet has for it)."""


def peaks_from(ceilings: Ceilings) -> Peaks:
    """Measured ceilings as peaks; what was not measured stays that of the data sheet."""
    sheet = peaks_of(ceilings.device)
    kept: list[str] = []

    def value(measured: float | None, name: str, title: str) -> float:
        stated = float(getattr(sheet, name)) if sheet else 0.0
        if measured is None and stated:
            kept.append(title)
        return stated if measured is None else measured

    half = ceilings.bf16_flop_per_s or ceilings.fp16_flop_per_s
    found = {
        "fp64_product": value(ceilings.fp64_product_flop_per_s, "fp64_product", "FP64 products"),
        "tf32": value(ceilings.tf32_flop_per_s, "tf32", "TF32"),
        "half": value(half, "half", "16 bit"),
        "eight": value(ceilings.fp8_flop_per_s, "eight", "FP8"),
    }
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
        **found,
    )
