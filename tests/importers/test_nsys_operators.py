"""PyTorch's operators that stand as NVTX ranges in captures of Nsight Systems."""

from __future__ import annotations

from pathlib import Path

from nsys_data.build import call, kernel, make, nvtx, read, rows, small, strings
from tests.cli.command import Stepscope

NAMES = [
    ("aten::mm, seq = 7, op_id = 12, sizes = [[64, 64], [64, 128]], input_op_ids = [(3, 0)]",
     "aten::mm", 7, "[[64,64],[64,128]]"),
    ("aten::add_, op_id = 13", "aten::add_", None, None),
    ("aten::relu, seq = 0", "aten::relu", 0, None),
    ("aten::sum, op_id = 14, sizes = [[], [2]]", "aten::sum", None, "[[],[2]]"),
    ("autograd::engine::evaluate_function: MmBackward0, seq = 7, op_id = 15",
     "autograd::engine::evaluate_function: MmBackward0", 7, None),
]  # fmt: skip


def test_names_are_read(tmp_path: Path) -> None:
    tables = small()
    tables["NVTX_EVENTS"] += [
        nvtx(100 + 10 * at, 105 + 10 * at, text) for at, (text, *_) in enumerate(NAMES)
    ]
    others = ["forward", "a, seq = x", "loss, epoch = 3", ", op_id", "step, sizes"]
    tables["NVTX_EVENTS"] += [nvtx(200 + at, 200 + at, text) for at, text in enumerate(others)]
    trace = read(make(tmp_path / "t.sqlite", tables), tmp_path)
    found = [
        (row["name"], row["sequence_number"], row["input_shapes"], row["start_ns"], row["end_ns"])
        for row in rows(trace, "operator")
    ]
    assert found == [
        (name, seq, shapes, 100 + 10 * at, 105 + 10 * at)
        for at, (_, name, seq, shapes) in enumerate(NAMES)
    ]
    # the ranges stay: nothing of the capture is hidden
    assert len(rows(trace, "range")) == 1 + len(NAMES) + len(others)


def test_captures_without_such_names_have_no_operators(tmp_path: Path) -> None:
    trace = read(make(tmp_path / "t.sqlite", small()), tmp_path)
    assert not trace.rows("operator")
    missing = {a.table: a for a in trace.meta.missing}
    assert "emit_nvtx" in missing["operator"].flag


def test_rooflines_of_a_capture_of_nsight_systems(tmp_path: Path) -> None:
    """A 16-bit product of 4096^3 in 200 us: 687 TFLOP/s, and bytes by the kernel's arithmetic."""
    tables = small()
    tables["StringIds"] = strings("cudaLaunchKernel", "nvjet_sm90_tst_128x256_64x4_TNN")
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = []
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = []
    tables["NVTX_EVENTS"] = []
    tables["TARGET_INFO_GPU"] = [
        {"id": 0, "name": "NVIDIA H200", "smCount": 132, "memoryBandwidth": 4_800_000_000_000}
    ]
    for step in range(6):
        at = 250_000 * step
        tables["NVTX_EVENTS"] += [
            nvtx(at, at + 249_000, f"step_{step}"),
            nvtx(at + 10, at + 900, "aten::mm, op_id = 3, sizes = [[4096, 4096], [4096, 4096]]"),
        ]
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(call(at + 100, at + 200, 1, step + 1))
        tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(kernel(at + 1_000, at + 201_000, step + 1, 2))
    path = make(tmp_path / "t.sqlite", tables)
    found = Stepscope(tmp_path / "cache").json("kernels", path, "--roofline")
    (product,) = found["operators"]
    assert (product["operator"], product["math"]) == ("aten::mm", "16bit")
    assert product["flop_per_s"] == 2 * 4096**3 / 200e-6
    assert product["moved_bytes"] == 3 * 2 * 4096**2
    assert product["achieved"] is not None
