"""Captures of JAX: XLA names compiled programs and their operations, no step and no phase."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.activity import names as words
from stepscope.api import Job
from stepscope.breakdown.explain import explain
from stepscope.trace.errors import InputError

TRAIN = "XlaModule:#hlo_module=jit_train_step,program_id=11#"
EVALUATE = "XlaModule:#prefix=jit(eval_step)/jit(main),hlo_module=jit_eval_step,program_id=23#"
OPS = ("gemm_fusion_dot_3", "loop_add_fusion", "input_reduce_fusion_1", "nvjet_hsh_128x256",
       "wrapped_transpose", "loop_multiply_fusion_2")  # fmt: skip
STEPS = 12


def program(build: Build, at: float, module: str, rounds: int) -> float:
    """Run one compiled program: the ranges of its module and thunks, and their kernels."""
    begin = at
    for _ in range(rounds):
        for name in OPS:
            build.range(at, at + 14, f"Thunk:#name={name},hlo_op={name}#")
            build.kernel(at + 10, at + 180, call=(at + 2, at + 8), name=name)
            at += 200
    build.range(begin, at, module)
    return at


def jax(*, annotated: bool, evaluation: bool = False, waits_us: float = 0.0) -> Build:
    build, at = Build(), 0.0
    for i in range(STEPS):
        at += waits_us
        build.copy(at + 10, at + 60, call=(at, at + 5))
        at = program(build, at + 100, TRAIN, 5)
        if evaluation and i % 3 == 2:
            at = program(build, at, EVALUATE, 12)
    if not annotated:
        build.rows.pop("range")
    return build


@pytest.mark.parametrize(("annotated", "evaluation"), [(True, False), (False, False), (True, True)])
def test_each_run_of_the_training_program_is_a_step(
    tmp_path: Path, annotated: bool, evaluation: bool
) -> None:
    trace = jax(annotated=annotated, evaluation=evaluation).trace(tmp_path)
    (found,) = explain(trace.frame, trace.meta)
    assert found.steps.source == ("repeating_range" if annotated else "kernel_sequence")
    assert len(found.steps) == STEPS
    assert "unexplained" not in found.idle_by_cause_ns


def test_a_wait_for_the_batch_is_found(tmp_path: Path) -> None:
    trace = jax(annotated=True, waits_us=4_000.0).trace(tmp_path)
    found = Job([trace.folder]).diagnose()
    assert found.verdict == "input_starvation"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        (TRAIN, True),
        ("TSL:XlaModule:#hlo_module=pjit__wrapped_step_fn#", True),
        ("XlaModule:#hlo_module=jit_update,program_id=3#", True),
        (EVALUATE, False),
        ("XlaModule:#hlo_module=jit_convert_element_type,program_id=3#", False),
        ("Thunk:#name=loop_dynamic_update_slice_fusion#", False),
    ],
)
def test_which_programs_are_steps(name: str, step: bool) -> None:
    assert words.is_step_range(name) == step


@pytest.mark.parametrize(
    "name",
    ["XlaCompile:#module=jit_step,program_id=1#", "TSL:XlaPass:#name=priority-fusion#",
     "XlaAutotunerMeasurement:#hlo_op=custom-call.113#"],
)  # fmt: skip
def test_compiling_is_known_by_its_ranges(name: str) -> None:
    assert words.COMPILE_RANGE.search(name)
    assert not words.COMPILE_RANGE.search(TRAIN)


def test_a_trace_of_its_own_profiler_is_refused_in_a_sentence(tmp_path: Path) -> None:
    named = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((1, "/device:GPU:0"), (701, "/host:CPU"))
    ]
    kernels = [
        {"ph": "X", "pid": 1, "tid": 15, "ts": 10.0 * i, "dur": 5.0, "name": f"loop_fusion_{i}",
         "args": {"hlo_module": "jit_step", "hlo_op": "fusion"}}
        for i in range(5)
    ]  # fmt: skip
    capture = tmp_path / "host.trace.json"
    capture.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": named + kernels}))
    with pytest.raises(
        InputError, match=r"JAX's or TensorFlow's own profiler.*give the .xplane.pb"
    ):
        Job([capture]).diagnose()
