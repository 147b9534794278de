"""Marks with their number inside the name, phases of layers, graphs inside a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.steps.test_step_kinds import explained
from tests.support.build import Build


def test_tokens_are_decode_steps_and_their_layers_are_not(tmp_path: Path) -> None:
    build = Build()
    for token in range(6):
        at = 1_000.0 * token
        build.range(at, at + 990, f"token_{token}_processing")
        for layer in range(4):
            begin = at + 1 + 240 * layer
            build.range(begin, begin + 235, f"layer_{layer}_token_{token}")
            for k, name in enumerate(["gemm", "attn", "norm"]):
                start = begin + 70 * k
                build.kernel(start + 20, start + 60, call=(start, start + 5), name=name)
    e = explained(build, tmp_path)
    assert (len(e.steps), e.steps.kind) == (6, "decode_step")
    assert [(part.kind, part.count) for part in e.steps.inner] == [("layer", 4)]


def test_phases_of_layers_are_no_steps(tmp_path: Path) -> None:
    build = Build()
    for layer in range(8):
        at = 1_000.0 * layer
        build.range(at, at + 990, f"layer_{layer}_forward")
        build.range(at + 1, at + 400, "kv_h2d_transfer")
        build.copy(at + 20, at + 380, call=(at + 5, at + 15), size=1 << 22)
        build.range(at + 401, at + 980, "compute")
        for k, name in enumerate(["gemm", "attn", "norm"]):
            start = at + 420 + 150 * k
            build.kernel(start + 20, start + 140, call=(start, start + 5), name=name)
    assert explained(build, tmp_path).steps.source == "whole_capture"


@pytest.mark.parametrize("name", ["TransformerLayer_{}", "DecoderLayer{}", "EncoderBlock_{}.run"])
def test_layers_named_after_their_class_are_no_steps(name: str, tmp_path: Path) -> None:
    build = Build()
    for layer in range(6):
        at = 1_000.0 * layer
        build.range(at, at + 990, name.format(layer))
        for k, kernel in enumerate(["gemm", "attn", "norm"]):
            start = at + 20 + 300 * k
            build.kernel(start + 20, start + 290, call=(start, start + 5), name=kernel)
    assert explained(build, tmp_path).steps.source == "whole_capture"


def test_a_number_that_belongs_to_the_name_makes_no_family(tmp_path: Path) -> None:
    build = Build()
    for i in range(4):
        at = 1_000.0 * i
        build.range(at, at + 900, "phase2_work_a")
        build.kernel(at + 20, at + 880, call=(at + 5, at + 10), name="gemm")
    assert explained(build, tmp_path).steps.label == "phase2_work_a"


def test_graphs_that_hold_a_pipelines_work_are_its_denoising_steps(tmp_path: Path) -> None:
    """The encoders' layers repeat more often than the graph, but take little of the time."""
    build, at = Build(), 100.0
    build.range(0, 9_000, "ProfilerStep#3")
    build.range(1, 8_990, "execute_diffusion_1_256x256")
    for _ in range(12):
        for name in ("gemm", "attn", "norm"):
            build.kernel(at + 6, at + 16, call=(at, at + 5), name=name)
            at += 20
    for _ in range(4):
        build.kernel(at + 6, at + 16, call=(at, at + 5), name="scheduler")
        build.graph(at + 30, at + 1_500, call=(at + 20, at + 29))
        at += 1_600
    steps = explained(build, tmp_path).steps
    assert [(part.kind, part.count) for part in steps.inner] == [("denoising_step", 4)]
    assert steps.kind == "engine_iteration"
