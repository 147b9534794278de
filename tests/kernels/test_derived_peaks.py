"""What an architecture does per SM and clock, against the datasheets of its products."""

from __future__ import annotations

import pytest

from stepscope.kernels.ceilings import peaks_of
from stepscope.kernels.derived_peaks import derived_peaks


@pytest.mark.parametrize(
    ("product", "capability", "sms", "ghz"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), 80, 1.53),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 1.545),
        ("Quadro RTX 8000", (7, 5), 72, 1.77),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1.41),
        ("NVIDIA GeForce RTX 3090", (8, 6), 82, 1.695),
        ("NVIDIA GeForce RTX 3070 Ti", (8, 6), 48, 1.77),
        ("NVIDIA RTX A6000", (8, 6), 84, 1.8),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 142, 2.505),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.83),
        ("NVIDIA GeForce RTX 5090", (12, 0), 170, 2.407),
        ("NVIDIA GeForce RTX 5070 Ti", (12, 0), 70, 2.452),
    ],
)
def test_the_datasheet_has_the_same(
    product: str, capability: tuple[int, int], sms: int, ghz: float
) -> None:
    sheet = peaks_of(product)
    found = derived_peaks(product, capability, sms, round(ghz * 1e9), 10**12)
    assert sheet is not None
    assert found is not None
    for math in ("fp32", "tf32", "16bit", "8bit"):
        # of Hopper the datasheet has the CUDA cores at a clock 8 % above that of the tensor cores
        close = 0.08 if capability == (9, 0) else 0.05
        assert found.of(math) == pytest.approx(sheet.of(math), rel=close), math
    assert found.derived
    assert not found.only_ratios


def test_without_a_clock_the_ratios_are_known() -> None:
    """46 SMs of a GeForce: 16 bits with FP32 accumulation twice the CUDA cores, TF32 the same."""
    found = derived_peaks("NVIDIA GeForce RTX 5070 Ti Laptop GPU", (12, 0), 46, 0, 0)
    assert found is not None
    assert found.only_ratios
    assert found.half == 2 * found.fp32 == 2 * found.tf32
    assert "names no clock" in found.source


@pytest.mark.parametrize(
    ("product", "capability"),
    [
        ("NVIDIA GeForce GTX 1650", (7, 5)),  # no tensor cores
        ("NVIDIA A10G", (8, 6)),  # half the rate of an A10
        ("NVIDIA L20", (8, 9)),
        ("NVIDIA H20", (9, 0)),
        ("NVIDIA Thor", (11, 0)),
        ("AMD Instinct MI210", (9, 0)),
    ],
)
def test_nothing_is_derived_of_what_breaks_the_rule(
    product: str, capability: tuple[int, int]
) -> None:
    assert derived_peaks(product, capability, 78, 1_500_000_000, 0) is None
