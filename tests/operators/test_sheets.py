"""Operators by unique shape, replay programs, and what torch.compile shows."""

from __future__ import annotations

import ast
import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.support.build import Build
from tests.support.captures import DATA, unpack

from stepscope.api import Job
from stepscope.operators.flops import streamed
from stepscope.trace.errors import UsageError

ON_GPU = DATA.parent / "key_averages/attention.cuda.json.gz"
BF16 = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"


def raw_products(path: Path) -> dict[tuple[str, str], list[float]]:
    """Calls and device time of aten::mm and aten::addmm by shape, from the JSON itself."""
    with gzip.open(path) as stream:
        events = json.load(stream)["traceEvents"]
    kernels: dict[int, float] = defaultdict(float)
    for e in events:
        if e.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy"):
            kernels[e["args"].get("External id", -1)] += e["dur"]
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for e in events:
        if e.get("cat") == "cpu_op" and e["name"] in ("aten::mm", "aten::addmm"):
            shapes = json.dumps(e["args"]["Input Dims"], separators=(",", ":"))
            found[e["name"], shapes][0] += 1
            found[e["name"], shapes][1] += kernels[e["args"]["External id"]]
    return found


def test_products_are_those_of_the_trace(reader: Stepscope) -> None:
    sheet: dict[str, Any] = reader.json("operators", ON_GPU, "--sheet", "gemm", "--step", "none")
    assert sheet["schema"] == "stepscope.operator_sheet/1"
    expected = raw_products(ON_GPU)
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in sheet["rows"]:
        found[row["operator"], row["shapes"]][0] += row["calls"]
        found[row["operator"], row["shapes"]][1] += row["time_ns"] / 1e3
        left, right = [s for s in json.loads(row["shapes"]) if len(s) == 2][:2]
        assert row["flop"] == 2 * left[0] * left[1] * right[1]
        assert row["flop_per_s"] == pytest.approx(row["flop"] * row["calls"] / row["time_ns"] * 1e9)
        assert 0 < row["achieved"] < 1
    assert {key: value[0] for key, value in found.items()} == {k: v[0] for k, v in expected.items()}
    for key, (_, time) in expected.items():
        assert found[key][1] == pytest.approx(time, abs=0.01)


@pytest.mark.parametrize(
    ("sheet", "operators"),
    [
        ("attention", {"aten::_scaled_dot_product_flash_attention",
                       "aten::_scaled_dot_product_flash_attention_backward",
                       "aten::_scaled_dot_product_cudnn_attention",
                       "aten::_scaled_dot_product_cudnn_attention_backward"}),
        ("normalisation", {"aten::native_layer_norm", "aten::native_layer_norm_backward"}),
        ("elementwise", {"aten::copy_", "aten::add", "aten::mul"}),
    ],
)  # fmt: skip
def test_other_sheets(reader: Stepscope, sheet: str, operators: set[str]) -> None:
    found: dict[str, Any] = reader.json("operators", ON_GPU, "--sheet", sheet)
    names = {row["operator"] for row in found["rows"]}
    assert names & operators
    if sheet == "normalisation":
        assert names == operators
        assert {row["phase"] for row in found["rows"]} == {"forward", "backward"}
    text = reader("operators", ON_GPU, "--sheet", sheet, "--limit", "1").stdout
    assert "TB/s" in text


def test_convolutions_and_collectives(reader: Stepscope) -> None:
    path = DATA / "kineto/cnn_small.json.gz"
    found: dict[str, Any] = reader.json("operators", path, "--sheet", "convolution")
    names = {row["operator"] for row in found["rows"]}
    assert "aten::convolution_backward" in names or found["warnings"]
    none: dict[str, Any] = reader.json("operators", path, "--sheet", "communication")
    assert none["rows"] == []
    assert none["warnings"] == ["the steady steps hold no collective"]


def test_bytes_of_operators_that_go_through_their_operands() -> None:
    add = streamed("aten::add", "[[4,8],[8],[]]", '["float","float","Scalar"]')
    assert add is not None
    assert (add.flop, add.moved_bytes) == (32, 4 * (32 + 8 + 32))
    cast = streamed("aten::copy_", "[[4,8],[4,8],[]]", '["c10::BFloat16","float","Scalar"]')
    assert cast is not None
    assert cast.moved_bytes == 32 * (2 + 4)
    assert streamed("aten::add", "[[4,8],[3]]", '["float","float"]') is None
    assert streamed("aten::add", "[[4,8]]", '["mystery"]') is None
    assert streamed("aten::add", "nonsense", "[]") is None


def cases(program: str) -> Any:
    """The inputs that a replay program holds; it must be a program."""
    tree = ast.parse(program)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES":
            return ast.literal_eval(node.value)
    raise AssertionError("no cases")


def test_a_program_that_runs_an_operator_again(reader: Stepscope) -> None:
    program = reader("operators", ON_GPU, "--replay", "aten::mm", "--limit", "3").stdout
    found = cases(program)
    assert len(found) == 3
    expected = raw_products(ON_GPU)
    for inputs, calls, on_device, _ in found:
        shapes = json.dumps([shape for _, shape, _ in inputs], separators=(",", ":"))
        count, time = expected["aten::mm", shapes]
        assert calls == count
        assert on_device == pytest.approx(time / count, abs=0.01)
        assert {kind for *_, kind in inputs} == {"bfloat16"}
    answer = reader("operators", ON_GPU, "--replay", "aten::mmm", expect=2)
    assert "did you mean aten::mm" in is_one_line(answer.stderr)
    assert "no operator" in reader("operators", ON_GPU, "--replay", "mm;", expect=2).stderr


def test_nothing_of_a_trace_gets_into_a_program_but_values(tmp_path: Path) -> None:
    build = Build()
    build.operator(0, 9, "evil::x", input_shapes='[[2,3],[],[],[]]',
                   input_types='["float","Scalar","str","__import__(\'os\')"]',
                   concrete_inputs='["","__import__(\'os\').system(\'x\')","sum","1"]')  # fmt: skip
    build.operator(10, 19, 'evil::y"\nimport os', input_shapes="[[2,3]]", input_types='["float"]')
    job = Job(build.trace(tmp_path).folder)
    ((inputs, *_),) = cases(job.replay_script("evil::x"))
    assert inputs == [("t", [2, 3], "float32"), None, "sum", 1]
    with pytest.raises(UsageError, match="no operator"):
        job.replay_script('evil::y"\nimport os')


def test_recompilations_and_graph_breaks(tmp_path: Path, reader: Stepscope) -> None:
    build = Build()
    for at, region in enumerate(["0/0", "0/0", "0/1", "0/2", "1/0"]):
        t = 100.0 * at
        build.operator(t, t + 2, "TorchDynamo Cache Lookup")
        build.operator(t + 5, t + 50, f"Torch-Compiled Region: {region}")
        build.kernel(t + 20, t + 30, call=(t + 10, t + 12), name=BF16)
        build.python(t, t + 99, "model.py(30): torch_dynamo_resume_in_forward_at_38")
    build.range(240, 290, "compile_fx_inner (dynamo_timed)")
    found = Job(build.trace(tmp_path).folder).key_averages("name").compiled
    assert found is not None
    assert found.recompilations == 2
    assert found.graph_breaks == ["forward:38"]
    assert [(r.frame, r.compilation, r.calls) for r in found.regions] == [
        (0, 0, 2), (0, 1, 1), (0, 2, 1), (1, 0, 1),
    ]  # fmt: skip
    assert sum(region.device_ns for region in found.regions) == 50_000
    assert found.lookup_ns == 10_000
    assert found.compiling_ns == 50_000
    text = reader("operators", tmp_path / "built.stepscope").stdout
    assert "2 recompilations" in text
    assert "1 graph break, at forward:38" in text
    plain = unpack(DATA / "kineto/gpt1024_unfused_attention.json.xz")
    assert Job(plain).key_averages().compiled is None


def test_shares_of_a_sheet_are_of_all_device_time(reader: Stepscope) -> None:
    path = unpack(DATA / "kineto/gpt1024_unfused_attention.json.xz")
    sheet: dict[str, Any] = reader.json("operators", path, "--sheet", "gemm")
    steady: dict[str, Any] = reader.json("operators", path, "--steady")
    for row in sheet["rows"]:
        assert math.isclose(row["share_of_device"], row["time_ns"] / steady["device_ns"])
    by_name = {row["name"]: row["device_ns"] for row in steady["operators"]}
    mm = sum(row["time_ns"] for row in sheet["rows"] if row["operator"] == "aten::mm")
    assert mm == by_name["aten::mm"]
