"""Kernel categories and arithmetic from names, on names that libraries really give."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.kernels.categories import CATEGORIES, MATHS, classify
from stepscope.kernels.ceilings import PRODUCTS, Peaks, peaks_of

TABLE = Path(__file__).parents[1] / "data" / "kernel_names.tsv"
NAMES = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]


@pytest.mark.parametrize(("category", "math", "name"), NAMES, ids=[row[2][:40] for row in NAMES])
def test_names_of_libraries(category: str, math: str, name: str) -> None:
    found = classify(name)
    assert (found.category, found.math or "-") == (category, math)


def test_generic_kernels_are_told_apart_by_what_they_compute() -> None:
    adds = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    plus = classify(adds + "std::array<char*, 3ul> >(int)")
    assert (plus.label, plus.tensors, plus.element_bytes, plus.thread_elements) == (
        "vectorized_elementwise_kernel [add]", 3, 12, 8,
    )  # fmt: skip
    older = classify(adds + "at::detail::Array<char*, 3> >(int)")
    assert (older.tensors, older.thread_elements) == (3, 4)
    nsys = classify(
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::addcdiv_cuda_kernel("
        "at::TensorIteratorBase &)::[lambda(float, float, float) (instance 1)], "
        "std::array<char *, (unsigned long)4>>(int, T2, T3)"
    )
    assert (nsys.operation, nsys.tensors, nsys.element_bytes) == ("addcdiv", 4, 16)
    cast = classify(
        "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>, 8, X>(int)"
    )
    assert (cast.category, cast.element_bytes, cast.thread_elements) == ("copy", 6, 8)


def test_a_graph_is_a_family_of_its_own() -> None:
    assert classify("anything", "graph").category == "graph"


@given(st.text(max_size=200))
def test_any_text_has_a_family(text: str) -> None:
    found = classify(text)
    assert found.category in CATEGORIES
    assert found.math in {"", *MATHS}


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A800-SXM4-80GB", "A100 80GB"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4080", "RTX 4080"),
        ("NVIDIA GeForce RTX 3070", "RTX 3070"),
        ("NVIDIA RTX A5000", "RTX A5000"),
        ("NVIDIA RTX 5000 Ada Generation", "RTX 5000 Ada"),
        ("Quadro RTX 8000", "Quadro RTX 6000 and 8000"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("Tesla T4", "T4"),
    ],
)
def test_products(product: str, name: str) -> None:
    found = peaks_of(product)
    assert found is not None
    assert found.name == name


def test_unknown_products_have_no_peaks() -> None:
    assert peaks_of("AMD Instinct MI300X") is None
    assert peaks_of("") is None
    assert peaks_of("NVIDIA A10G") is None  # no public sheet was found
    assert peaks_of("NVIDIA H800") is None  # its datasheet is not public
    assert peaks_of("NVIDIA GeForce RTX 4090 Laptop GPU") is None
    assert peaks_of("NVIDIA RTX 5000 Ada Generation Laptop GPU") is None
    # one name, two memories: 760 GB/s with 10 GB, 912 with 12
    assert peaks_of("NVIDIA GeForce RTX 3080") is None


@pytest.mark.parametrize("peaks", PRODUCTS, ids=lambda p: p.name)
def test_peaks_are_plausible(peaks: Peaks) -> None:
    assert peaks.fp64 <= peaks.fp32 <= peaks.half
    assert peaks.of("fp64") >= peaks.fp64
    assert peaks.half == pytest.approx(2 * peaks.tf32, rel=0.03) or not peaks.tf32
    assert peaks.source


def test_bf16_is_advised_only_where_the_tensor_cores_have_it() -> None:
    expected = {
        "Tesla V100-SXM2-16GB": False,
        "Tesla T4": False,
        "NVIDIA A100-SXM4-40GB": True,
        "NVIDIA H100 80GB HBM3": True,
    }
    assert {name: found.bf16 for name in expected if (found := peaks_of(name))} == expected
