"""From a kernel to operator, range, module and line; phases of a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from tests.support.build import AUTOGRAD, Build

from stepscope.activity.locations import Where
from stepscope.breakdown.explain import Explanation, explain
from stepscope.kernels.attribution import plain_range_name, stack_of
from stepscope.kernels.kernels import PHASES
from stepscope.trace.frame import Frame

Ints = npt.NDArray[np.int64]


def explained(build: Build, folder: Path) -> Explanation:
    trace = build.trace(folder)
    (found,) = explain(trace.frame, trace.meta)
    return found


def step(build: Build) -> None:
    """One forward product, its gradient on autograd's thread, an update; 100 us."""
    build.range(0, 100, "step_0")
    build.range(0, 40, "forward")
    build.python(0, 40, "train.py(10): forward")
    build.python(1, 30, "nn.Module: Linear_3")
    build.python(2, 29, "/x/torch/nn/modules/linear.py(130): forward")
    build.operator(5, 20, "aten::linear")
    build.operator(6, 19, "aten::mm", sequence_number=7, input_shapes="[[2,3],[3,4]]",
                   input_types='["float","float"]')  # fmt: skip
    build.kernel(30, 40, call=(10, 12), name="sgemm_128")
    outer = "autograd::engine::evaluate_function: MmBackward0"
    build.operator(50, 70, outer, thread=AUTOGRAD)
    build.operator(51, 69, "MmBackward0", thread=AUTOGRAD, sequence_number=7, forward_thread_id=1,
                   forward_start_ns=6_000)  # fmt: skip
    build.operator(52, 68, "aten::mm", thread=AUTOGRAD)
    build.kernel(60, 70, call=(55, 57), name="sgemm_128", thread=AUTOGRAD)
    build.range(80, 99, "Optimizer.step#SGD.step")
    build.python(79, 99, "train.py(20): update")
    build.kernel(90, 95, call=(85, 86), name="void at::native::x_elementwise_kernel<float>(int)")


def test_a_kernel_belongs_to_what_was_open_at_its_launch(tmp_path: Path) -> None:
    build = Build()
    step(build)
    e = explained(build, tmp_path)
    who = e.kernels.attribution
    operators = [who.operators.text("name", int(row)) for row in who.operator[:2]]
    assert operators == ["aten::mm", "aten::mm"]
    assert who.operator[2] < 0
    outermost = [who.operators.text("name", int(row)) for row in who.outermost[:2]]
    assert outermost == ["aten::linear", "autograd::engine::evaluate_function: MmBackward0"]
    ranges = [who.ranges.text("name", int(r)) if r >= 0 else "" for r in who.range]
    assert ranges == ["forward", "", "Optimizer.step#SGD.step"]


def test_the_backward_pass_gets_the_function_of_the_forward_pass(tmp_path: Path) -> None:
    build = Build()
    step(build)
    e = explained(build, tmp_path)
    who = e.kernels.attribution
    assert who.operators.text("name", int(who.forward[1])) == "aten::mm"
    assert (who.forward[0], who.forward[2]) == (-1, -1)
    sources = [who.source_text(int(code)) for code in who.source]
    assert sources == ["forward() train.py:10", "forward() train.py:10", "update() train.py:20"]
    modules = [who.python.texts["name"][code] if code >= 0 else None for code in who.module]
    assert modules == ["nn.Module: Linear_3", "nn.Module: Linear_3", None]


def test_the_sequence_number_links_where_there_is_no_start(tmp_path: Path) -> None:
    build = Build()
    step(build)
    for row in build.rows["operator"]:
        row.pop("forward_start_ns", None)
    who = explained(build, tmp_path).kernels.attribution
    assert who.operators.text("name", int(who.forward[1])) == "aten::mm"
    assert int(who.operators["start_ns"][who.forward[1]]) == 6_000


def test_phases(tmp_path: Path) -> None:
    build = Build()
    step(build)
    kernels = explained(build, tmp_path).kernels
    assert [PHASES[code] for code in kernels.phase] == ["forward", "backward", "optimizer"]


def test_without_host_tables_there_is_nothing_to_say(tmp_path: Path) -> None:
    build = Build()
    for i in range(30):
        build.kernel(10 * i, 10 * i + 5)
    e = explained(build, tmp_path)
    who = e.kernels.attribution
    rows = np.arange(30)
    assert who.heaviest(rows) == Where(None, None, None, None)
    for codes in (who.operator, who.outermost, who.forward, who.range, who.source, who.module):
        assert (codes == -1).all()


def test_names_of_autograd_ranges_lose_their_numbers() -> None:
    assert plain_range_name("aten::mm, seq = 12, sizes = [[2, 3]]") == "aten::mm"
    assert plain_range_name("aten::mm, op_id = 3") == "aten::mm"
    assert plain_range_name("forward, part = 2") == "forward, part = 2"


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Properly nested intervals: each split of an interval stays inside it."""
    found: list[tuple[int, int]] = []

    def inside(begin: int, end: int, depth: int) -> None:
        at = begin
        while depth and at < end and draw(st.booleans()):
            first = draw(st.integers(at, end))
            last = draw(st.integers(first, end))
            found.append((first, last))
            inside(first, last, depth - 1)
            at = last + 1

    inside(0, 40, 3)
    return found


@given(nested(), st.lists(st.integers(-1, 41), max_size=20))
def test_the_innermost_interval_is_the_shortest_that_holds_the_time(
    intervals: list[tuple[int, int]], times: list[int]
) -> None:
    start = np.array([a for a, _ in intervals], np.int64)
    end = np.array([b for _, b in intervals], np.int64)
    stack = stack_of(Frame({"start_ns": start, "end_ns": end}), np.arange(len(start)))
    got = stack.innermost(np.array(times, np.int64))
    for time, place in zip(times, got.tolist(), strict=True):
        holding = [b - a for a, b in intervals if a <= time <= b]
        if not holding:
            assert place == -1
        else:
            row = stack.rows[place]
            assert start[row] <= time <= end[row]
            # where one ends as the next begins both hold the time: the later one is taken
            assert start[row] == max(a for a, b in intervals if a <= time <= b)
            root = stack.rows[stack.root[place]]
            assert start[root] <= start[row]
            assert end[row] <= end[root]
