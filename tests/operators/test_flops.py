"""Work of operators by hand, and operators under the roofline of hand-made steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.build import Build

from stepscope.api import Job
from stepscope.operators.flops import OPERATORS, Work, work_of_call
from stepscope.operators.roofline import OperatorRooflines, function_name

SHAPE = st.lists(st.integers(-2, 9), max_size=5) | st.none() | st.text(max_size=3)
BF16 = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"


def work(name: str, shapes: list[list[int]], scalars: list[str] | None = None,
         item: str = "c10::BFloat16") -> Work | None:  # fmt: skip
    types = [item if shape else "" for shape in shapes]
    return work_of_call(name, json.dumps(shapes), json.dumps(types), json.dumps(scalars or []))


def test_matrix_products() -> None:
    found = work("aten::mm", [[3, 5], [5, 7]])
    assert found == Work(2 * 3 * 5 * 7, 2 * (15 + 35 + 21), 2)
    found = work("aten::addmm", [[7], [3, 5], [5, 7], [], []], item="float")
    assert found == Work(2 * 3 * 5 * 7, 4 * (15 + 35 + 21), 4)
    batched = work("aten::bmm", [[4, 3, 5], [4, 5, 7]])
    assert batched == Work(4 * 2 * 3 * 5 * 7, 4 * 2 * (15 + 35 + 21), 2)
    linear = work("aten::linear", [[2, 3, 5], [7, 5], [7]])
    assert linear == Work(2 * 6 * 5 * 7, 2 * (30 + 35 + 42), 2)
    assert work("aten::mm", [[3, 5], [4, 7]]) is None


@pytest.mark.parametrize(
    ("name", "scalars"),
    [
        ("aten::convolution", ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]),
        ("aten::cudnn_convolution", ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "True"]),
    ],
)
def test_convolutions(name: str, scalars: list[str]) -> None:
    """3x3, stride 2, padding 1 on 8x8: 4x4 outputs, 27 products each."""
    shapes = [[2, 3, 8, 8], [16, 3, 3, 3], [16] if name == "aten::convolution" else []]
    found = work(name, shapes, scalars)
    assert found is not None
    assert found.flop == 2 * (2 * 16 * 4 * 4) * (3 * 3 * 3)
    assert found.moved_bytes == 2 * (2 * 3 * 64 + 16 * 27 + 2 * 16 * 16)


def test_the_gradients_of_a_convolution() -> None:
    shapes = [[2, 16, 4, 4], [2, 3, 8, 8], [16, 3, 3, 3]]
    forward = 2 * (2 * 16 * 4 * 4) * 27
    scalars = [""] * 7 + ["False", "[0, 0]", "1"]
    both = work("aten::convolution_backward", shapes, [*scalars, "[True, True, False]"])
    weight = work("aten::convolution_backward", shapes, [*scalars, "[False, True, False]"])
    assert both is not None
    assert weight is not None
    assert (both.flop, weight.flop) == (2 * forward, forward)


def test_attention_counts_half_under_a_causal_mask() -> None:
    qkv = [[2, 4, 8, 16]] * 3
    name = "aten::_scaled_dot_product_flash_attention"
    full = work(name, qkv, ["", "", "", "0.", "False"])
    causal = work(name, qkv, ["", "", "", "0.", "True"])
    assert full is not None
    assert causal is not None
    assert full.flop == 2 * 2 * (2 * 4 * 8 * 8 * 16)
    assert causal.flop == full.flop / 2
    back = work(f"{name}_backward", [[2, 4, 8, 16], *qkv], [""] * 11 + ["True"])
    assert back is not None
    assert back.flop == 2.5 * causal.flop


@given(
    st.sampled_from(OPERATORS),
    st.lists(SHAPE, max_size=6),
    st.lists(st.sampled_from(["", "True", "[1, 1]", "[0]", "[", "9" * 30]), max_size=15),
)  # fmt: skip
def test_any_record_is_work_or_none(name: str, shapes: list[object], scalars: list[str]) -> None:
    found = work_of_call(name, json.dumps(shapes), '["float"]', json.dumps(scalars))
    assert found is None or found.flop > 0


@pytest.mark.parametrize("text", ["", "[", "null", "7", '{"a": 1}', "[[[[[]]]]]", '"x"'])
def test_damaged_records_are_none(text: str) -> None:
    for name in OPERATORS:
        assert work_of_call(name, text, text, text) is None


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void at::native::(anonymous namespace)::k<4, x>(int)", "k"),
        ("ncclDevKernel_AllReduce", "ncclDevKernel_AllReduce"),
        ("x'; rm -rf / #(int)", "x...rm..rf...."),
        ("", ".*"),
    ],
)
def test_function_names_are_safe_for_a_shell(name: str, function: str) -> None:
    assert function_name(name) == function


class Steps:
    """Steps of one product of 4096 cubed, wrapped by another known operator, and a cast."""

    def __init__(self, length_us: float, gpu: str = "NVIDIA H200") -> None:
        self.build = Build()
        self.build.gpu(gpu)
        host = device = 0.0
        square = "[[4096,4096],[4096,4096]]"
        types = '["c10::BFloat16","c10::BFloat16"]'
        for i in range(6):
            begin = host
            self.build.operator(host, host + 9, "aten::linear", input_shapes=square,
                                input_types=types)  # fmt: skip
            device = max(device, host + 4)
            self.build.kernel(device, device + 5, call=(host + 1, host + 2), name="cast(int)")
            self.build.operator(host + 3, host + 6, "aten::mm", input_shapes=square,
                                input_types=types)  # fmt: skip
            device += 5
            self.build.kernel(device, device + length_us, call=(host + 4, host + 5), name=BF16)
            device += length_us
            host += 10
            self.build.range(begin, host, f"step_{i}")

    def rooflines(self, folder: Path) -> OperatorRooflines:
        return Job([self.build.trace(folder).folder]).operator_rooflines()


def test_an_operator_near_its_roof(tmp_path: Path) -> None:
    found = Steps(200.0).rooflines(tmp_path)
    (entry,) = found.operators  # linear hands its work to mm: not counted twice
    assert entry.operator == "aten::mm"
    assert entry.flop == 2 * 4096**3
    assert entry.moved_bytes == 2 * 3 * 4096**2
    assert entry.flop_per_s == pytest.approx(2 * 4096**3 / 200e-6)
    assert (entry.math, entry.bound, entry.examine) == ("16bit", "compute", None)
    assert entry.achieved == pytest.approx(2 * 4096**3 / 200e-6 / 989.5e12)
    assert found.mfu == pytest.approx(
        found.flop_per_step / (found.step_ns / 1e9) / 989.5e12, rel=1e-4
    )
    assert found.known_share == 1


def test_an_operator_far_below_comes_with_its_command(tmp_path: Path) -> None:
    (entry,) = Steps(2_000.0).rooflines(tmp_path).operators
    assert entry.examine is not None
    assert f"-k 'regex:^{BF16}$'" in entry.examine
    assert "--launch-count 3" in entry.examine


def test_an_unknown_device_has_no_ceilings(tmp_path: Path) -> None:
    found = Steps(200.0, "Some GPU").rooflines(tmp_path)
    assert found.mfu is None
    assert found.operators[0].achieved is None
    assert found.operators[0].flop_per_s > 0
    assert any("Some GPU" in warning for warning in found.warnings)
