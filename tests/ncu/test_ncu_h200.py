"""Reports of an H200 by Nsight Compute 2025.3.1: kernels in CUDA C, of Triton and of PyTorch.

Made by ``benchmarks/captures/ncu.sh``; what a kernel is known to be is in ``ncu_kernels.py``.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import lzma
import re
from pathlib import Path

import pytest

from stepscope.ncu.explain import explanation, kernel_table
from stepscope.ncu.match import matched
from stepscope.ncu.model import Report
from stepscope.ncu.reading import read_report
from stepscope.ncu.report_diff import report_diff

PACKED = Path(__file__).parents[1] / "data" / "ncu" / "h200"
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("ncu_report") is None,
    reason="needs the ncu-report package: pip install ncu-report",
)
FORMS = [
    pytest.param("cuda_full.ncu-rep", 450, marks=needs_package),
    pytest.param("small_basic.ncu-rep", 80, marks=needs_package),
    ("triton_full.raw.csv", 330),
    ("torch_full.raw.csv", 2200),
]
DETAILS_NAME = {"DRAM Bandwidth": "Memory Throughput"}
"""Our label -> that of Nsight Compute 2025.3, where it changed."""


def unpacked(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(lzma.decompress((PACKED / f"{name}.xz").read_bytes()))
    return path


def report(name: str, folder: Path) -> Report:
    return read_report(unpacked(name, folder), lambda number, function: True)


def details(name: str) -> dict[tuple[int, str, str], str]:
    """What ``ncu --page details`` prints: (launch, section, label) -> figure with its unit."""
    path = PACKED / f"{name.partition('.')[0]}.details.csv.xz"
    text = lzma.decompress(path.read_bytes()).decode()
    return {
        (int(row["ID"]), row["Section Name"], row["Metric Name"]):
            f"{row['Metric Value']} {row['Metric Unit']}".strip()
        for row in csv.DictReader(io.StringIO(text))
        if row["Metric Name"]
    }  # fmt: skip


@pytest.mark.parametrize(("name", "least"), FORMS)
def test_figures_are_those_of_the_details_page(name: str, least: int, tmp_path: Path) -> None:
    printed, compared = details(name), 0
    found = report(name, tmp_path)
    for launch in found.launches:
        for section in explanation(found, launch).sections:
            for figure in section.figures:
                label = figure.label
                if section.id == "MemoryWorkloadAnalysis":
                    label = DETAILS_NAME.get(label, label)
                wanted = printed.get((launch.number, section.title, label))
                if wanted is None:
                    continue  # Stepscope's own figures, and those of bodies of sections
                shown = figure.text
                if name.endswith(".csv"):  # the raw page rounds: 32.00 may be 31.999, or 32
                    wanted, shown = (re.sub(r"\.00(?= |$)", "", text) for text in (wanted, shown))
                assert shown == wanted, (launch.function, section.title, label)
                compared += 1
    assert compared > least


CUDA = {
    "low_occupancy_sum": "low_occupancy",  # 48 KB of shared memory for each block of one warp
    "histogram": "atomics",  # every thread adds to one counter
    "transpose_shared": "bank_conflicts",  # columns of a 32 x 32 tile without padding
    "fp64_chain": "compute_bound",
    "special_functions": "compute_bound",
    "dependent_chain": "dependencies",  # one warp a scheduler, each product waits for the last
    "diverging_loops": "divergence",  # one lane of 32 goes on alone
    "l2_resident": "l2_bound",  # 16 MiB over and over, past L1
}


@needs_package
def test_limiters_of_cuda_kernels(tmp_path: Path) -> None:
    found = report("cuda_full.ncu-rep", tmp_path)
    assert {row.function: row.limiter for row in kernel_table(found).kernels} == CUDA


def test_limiters_of_triton_kernels(tmp_path: Path) -> None:
    found = kernel_table(report("triton_full.raw.csv", tmp_path)).kernels
    assert [(row.function, row.limiter) for row in found] == [
        ("fused_softmax", "dram_bound"),
        ("matmul", "tensor_bound"),
        ("matmul", "l1_bound"),  # tiles of 32 x 32: the same operands again and again
        ("matmul", "small_grid"),  # four blocks
        ("copy", "uncoalesced"),  # neighbours 64 elements apart
        ("many_registers", "spills"),  # 256 values a thread in 32 registers
    ]


TORCH = {
    0: "tensor_bound",  # 4096^3 in BF16
    1: "compute_bound",  # 2048^3 in FP32 without TF32
    2: "tensor_bound",  # the same with TF32
    3: "dram_bound",  # one row times a matrix
    4: "short_kernel",  # the sum of its parts
    7: "tensor_bound",  # 2048^3 in FP64
    8: "dependencies",  # flash attention with mma.sync: its few warps wait for each product
    16: "small_grid",  # a scalar
    20: "compute_bound",  # attention as plain products in FP32
    36: "dram_bound",  # y * 2
    37: "dram_bound",  # + 1
    38: "dram_bound",  # gelu
    39: "dram_bound",  # tanh
}


def test_limiters_of_pytorch_kernels(tmp_path: Path) -> None:
    found = kernel_table(report("torch_full.raw.csv", tmp_path)).kernels
    assert {at: found[at].limiter for at in TORCH} == TORCH


def test_kernels_of_a_trace_are_found(tmp_path: Path) -> None:
    """The same calls under torch.profiler: every kernel is found, with its own grid."""
    found = report("torch_full.raw.csv", tmp_path)
    lines = lzma.decompress((PACKED / "torch_full.trace.tsv.xz").read_bytes()).decode()
    for launch, line in zip(found.launches, lines.splitlines(), strict=True):
        name, _, sizes = line.partition("\t")
        x, y, z = map(int, sizes.split(","))
        match = matched(found.launches, name, (x, y, z))
        assert match is not None, name
        assert match.same_grid
        assert match.launch.name == launch.name


@needs_package
def test_what_the_basic_set_lacks_is_named(tmp_path: Path) -> None:
    table = kernel_table(report("small_basic.ncu-rep", tmp_path))
    assert [row.limiter for row in table.kernels] == ["dram_bound", "latency", "dram_bound"]
    assert any("--section WarpStateStats" in line for line in table.missing)
    assert any("--section SourceCounters" in line for line in table.missing)


@needs_package
def test_the_hottest_instruction(tmp_path: Path) -> None:
    found = report("cuda_full.ncu-rep", tmp_path)
    conflicts = explanation(found, found.launches[2])
    assert conflicts.sass[0].samples == max(line.samples for line in conflicts.sass)
    assert any(line.text.startswith("LDS") for line in conflicts.sass)  # reads down a column
    rules = {rule.rule for rule in conflicts.rules}
    assert "SharedMemoryConflicts" in rules


@needs_package
def test_a_comparison_says_that_one_report_holds_less(tmp_path: Path) -> None:
    basic = report("small_basic.ncu-rep", tmp_path)
    full = report("cuda_full.ncu-rep", tmp_path)
    output = "only the report {} holds why warps wait"
    assert any(output.format("after") in warning for warning in report_diff(basic, full).warnings)
    assert any(output.format("before") in warning for warning in report_diff(full, basic).warnings)
    for same in (basic, full):
        assert report_diff(same, same).warnings == []
