"""CUPTI while nothing is recorded: graphs made outside a range, and how it is left in the end."""

from __future__ import annotations

import pytest
from tests.capture.conftest import Program, texts

from stepscope.capture.errors import CaptureError

WAIT = """
def gone(limit_s=5.0):
    end = time.monotonic() + limit_s
    while cuda.fake_is_ours() and time.monotonic() < end:
        time.sleep(0.02)
        launch()
    return not cuda.fake_is_ours()
def hook():
    library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
    return library
"""


def test_a_graph_made_before_the_range_is_launched_in_it(program: Program) -> None:
    # The stand-in aborts as the driver does: such a launch crashed a real H200.
    trace = program.trace(
        """
        cuda.fake_graph_made()
        cuda.fake_graph_launch(ctypes.c_uint64(5000))
        for part in range(2):
            cuda.fake_profiler(1)
            cuda.fake_graph_launch(ctypes.c_uint64(7000 + part))
            launch()
            cuda.fake_profiler(0)
            cuda.fake_graph_launch(ctypes.c_uint64(5000))
        cuda.fake_graph_made()
        cuda.fake_graph_launch(ctypes.c_uint64(5000))
        """,
        range="cudaProfilerApi",
    )
    ops = trace.frame("gpu_op", "kind", "start_ns", "end_ns")
    kinds = [ops.text("kind", row) for row in range(len(ops))]
    assert sorted(kinds) == ["graph", "graph", "kernel", "kernel"]
    lengths = (ops["end_ns"] - ops["start_ns"]).tolist()
    assert sorted(n for n, k in zip(lengths, kinds, strict=True) if k == "graph") == [7000, 7001]
    assert texts(trace, "api_call", "name").count("cudaGraphLaunch") == 0  # the stand-in's is bare
    assert [p.id for p in trace.meta.problems] == ["graph_mode"]


def test_work_of_graphs_outside_a_long_pause_is_not_even_written(program: Program) -> None:
    outcome = program.record(
        """
        cuda.fake_graph_made()
        for _ in range(20_000):
            cuda.fake_graph_launch(ctypes.c_uint64(5000))
        cuda.fake_profiler(1); launch(); cuda.fake_profiler(0)
        """,
        range="cudaProfilerApi",
    )
    assert outcome.exit_code == 0
    assert sum(path.stat().st_size for path in outcome.raw[0].glob("*.raw")) < 20_000


def test_after_the_last_range_cupti_is_taken_out(program: Program) -> None:
    trace = program.trace(
        WAIT
        + """
for _ in range(2):
    cuda.fake_profiler(1); launch(3); cuda.fake_profiler(0)
assert gone() and cuda.fake_finalized()
launch(5)
cuda.fake_profiler(1); launch(7); cuda.fake_profiler(0)
""",
        range="cudaProfilerApi",
        ranges=2,
    )
    assert trace.rows("gpu_op") == 6
    assert trace.meta.problems == []


def test_while_more_ranges_may_come_cupti_stays(program: Program) -> None:
    trace = program.trace(
        WAIT
        + """
cuda.fake_profiler(1); launch(3); cuda.fake_profiler(0)
assert not gone(1.0)
cuda.fake_profiler(1); launch(4); cuda.fake_profiler(0)
""",
        range="cudaProfilerApi",
    )
    kernels = texts(trace, "gpu_op", "kind")
    assert kernels == ["kernel"] * 7


def test_with_graphs_cupti_is_left_but_not_taken_out(program: Program) -> None:
    trace = program.trace(
        WAIT
        + """
cuda.fake_graph_made()
cuda.fake_profiler(1); launch(3); cuda.fake_profiler(0)
assert gone() and not cuda.fake_finalized()
cuda.fake_graph_launch(ctypes.c_uint64(5000))
""",
        range="cudaProfilerApi",
        ranges=1,
    )
    assert trace.rows("gpu_op") == 3


def test_an_older_cupti_is_left_but_not_taken_out(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUPTI_VERSION", "26")
    trace = program.trace(
        WAIT
        + """
cuda.fake_profiler(1); launch(3); cuda.fake_profiler(0)
assert gone() and not cuda.fake_finalized()
""",
        range="cudaProfilerApi",
        ranges=1,
    )
    assert trace.rows("gpu_op") == 3


def test_a_graph_that_comes_while_leaving_keeps_cupti_in(program: Program) -> None:
    # no launch in between: CUPTI would have been taken out at the next one
    program.trace(
        """
        cuda.fake_profiler(1); launch(3); cuda.fake_profiler(0)
        time.sleep(1.0)
        cuda.fake_graph_made()
        launch()
        assert not cuda.fake_finalized()
        cuda.fake_graph_launch(ctypes.c_uint64(5000))
        """,
        range="cudaProfilerApi",
        ranges=1,
    )


def test_limits_and_steps_that_are_done_take_cupti_out(program: Program) -> None:
    trace = program.trace(
        WAIT + "launch(3)\nassert gone() and cuda.fake_finalized()\nlaunch(9)\n", duration_s=0.2
    )
    assert trace.rows("gpu_op") >= 3
    program.trace(
        WAIT
        + """
library = hook()
library.stepscope_start(); launch(3); library.stepscope_end()
assert gone() and cuda.fake_finalized()
""",
        paused=True,
    )


def test_standing_aside_leaves_cupti_at_once_and_keeps_what_was_recorded(program: Program) -> None:
    trace = program.trace(
        WAIT
        + """
launch(30)
hook().stepscope_stand_aside()
assert not cuda.fake_is_ours() and not cuda.fake_finalized() and not cuda.fake_enabled(10)
launch(9)
""",
    )
    assert trace.rows("gpu_op") == 30


def test_ranges_are_counted_only_with_a_range(program: Program) -> None:
    with pytest.raises(CaptureError, match="--ranges counts the ranges of --range"):
        program.options("", ranges=1).check()
