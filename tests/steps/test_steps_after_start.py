"""Steps behind a start of the program that launches more than all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.steps.test_steps import steps_of
from tests.support.build import Build

START = 600


def start(build: Build) -> float:
    """A search for the fastest kernels: each is run a while, and never again."""
    for i in range(START):
        build.kernel(i * 10 + 6, i * 10 + 9, call=(i * 10, i * 10 + 2), name=f"try{i // 20}")
    return START * 10.0


def trained(build: Build, at: float, steps: int, layers: int = 3) -> None:
    for step in range(steps):
        build.copy(at + 5, at + 9, call=(at, at + 3))
        names = [*(f"{k}" for _ in range(layers) for k in ("gemm", "norm", "gelu")), "loss"]
        for i, name in enumerate(names):
            t = at + 10 * (i + 1)
            build.kernel(t + 5, t + 9, call=(t, t + 2), name=name)
        t = at + 10 * (len(names) + 1)
        build.kernel(t + 5, t + 9, call=(t, t + 2), name="multi_tensor_apply_kernel<FusedAdam>")
        at += 200 + step % 2


def test_a_loop_shorter_than_the_start_is_found(tmp_path: Path) -> None:
    build = Build()
    trained(build, start(build), 20)
    steps = steps_of(build, tmp_path)
    assert (steps.source, len(steps)) == ("kernel_sequence", 20)
    assert int(steps.begin_ns[0]) >= (START - 1) * 10_000


@pytest.mark.parametrize("layers", [12, 40])
def test_layers_behind_the_start_are_not_steps(layers: int, tmp_path: Path) -> None:
    build = Build()
    trained(build, start(build), 1, layers)
    assert steps_of(build, tmp_path).source == "whole_capture"


def test_layers_of_a_model_that_is_called_once_are_not_steps(tmp_path: Path) -> None:
    build = Build()
    at = start(build)
    for i in range(120):
        name = ("gemm", "norm", "gelu")[i % 3]
        build.kernel(at + 5, at + 9, call=(at, at + 2), name=name)
        at += 10
    assert steps_of(build, tmp_path).source == "whole_capture"


@pytest.mark.parametrize(("replays", "source"), [(30, "graph_replay"), (4, "whole_capture")])
def test_replays_of_a_graph_after_a_longer_start(replays: int, source: str, tmp_path: Path) -> None:
    build = Build()
    at = start(build)
    build.copy(at + 5, at + 90_000, size=1 << 30, call=(at, at + 3))  # the weights
    at += 90_000
    for _ in range(replays):
        build.graph(at + 10, at + 900, call=(at, at + 4))
        build.copy(at + 901, at + 903, kind="DtoH", size=8, call=(at + 5, at + 904))
        at += 1000
    steps = steps_of(build, tmp_path)
    assert steps.source == source
    if source == "graph_replay":
        assert len(steps) == replays
