"""Steps as CUDA graphs: what goes with the launches, and what stays on the host."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.support.build import Build
from tests.support.captures import DATA, unpack

from stepscope.activity.names import OPTIMIZER_KERNEL
from stepscope.api import Job
from stepscope.breakdown.explain import explain
from stepscope.simulation import InGraphs, Simulation
from stepscope.simulation.graphs import (
    COMPILED_INFERENCE,
    COMPILED_MODEL,
    GRADIENT_LAUNCHES,
    ONE_GRAPH,
    Outside,
    model_alone,
    whole_step,
)
from stepscope.simulation.pace import BETWEEN_RUNS
from stepscope.simulation.program import (
    GRAPH_MEMSET_NS,
    GRAPH_NS,
    LAUNCH,
    MARK,
    SLOW_GRAPH_NS,
    C,
    own_work,
)
from stepscope.simulation.settings.graphs import capturable
from stepscope.simulation.subject import launching_ns
from stepscope.simulation.without_causes import gap_in_graph_ns


def simulated(build: Build, folder: Path) -> Simulation:
    trace = build.trace(folder)
    (e,) = explain(trace.frame, trace.meta)
    return Simulation([(0, e)], {0: trace.frame})


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Job([str(unpack(DATA / "nsys/gpt1024_healthy.sqlite.xz"))]).simulation


def test_a_graph_takes_the_work_between_its_launches_with_it(simulation: Simulation) -> None:
    subject = simulation.subjects[0]
    program = subject.program
    work = own_work(program)
    work[:, C["host_compute"]] = 1_000
    worked = subject.becomes(work_ns=work)
    after = whole_step(worked, "expected").program
    left = after.work_ns[:, C["host_compute"]]
    inside = capturable(subject)
    assert not left[1:][inside[1:] & inside[:-1]].any()
    assert (left[program.kind == MARK] == 1_000).all()  # around the step it stays
    assert not after.work_ns[:, C["launch_bound"]].any()
    long = whole_step(worked, "high").program
    assert (long.work_ns[:, C["host_compute"]] == 1_000).all()


def test_graphs_of_the_model_leave_the_update(simulation: Simulation) -> None:
    subject = simulation.subjects[0]
    program = subject.program
    steps = int((program.kind == MARK).sum())
    updates = subject.gpu.ops.matches("name", OPTIMIZER_KERNEL)
    after = model_alone(subject, Outside(updates), "expected").program
    kept = after.call_ns[program.kind == LAUNCH] > 0
    assert 0 < kept.sum() < len(kept) / 2
    update = subject.of_ops(updates)
    assert update.any()
    np.testing.assert_array_equal(after.call_ns[update], program.call_ns[update])
    paid = int((after.work_ns - np.minimum(program.work_ns, after.work_ns)).sum())
    gone = (program.kind == LAUNCH) & (after.call_ns == 0) & (program.call_ns > 0)
    whole, part = COMPILED_MODEL["expected"]
    each = launching_ns(program)[gone].mean()
    some = gone.sum() / steps / GRADIENT_LAUNCHES["expected"]  # none is recorded
    assert paid == pytest.approx(steps * each * (whole + part * some), rel=1e-3)
    counted = model_alone(subject, Outside(updates, gradients=3.0), "expected").program
    paid = int((counted.work_ns - np.minimum(program.work_ns, counted.work_ns)).sum())
    assert paid == pytest.approx(steps * each * (whole + part * 3), rel=1e-3)


def test_what_graphs_cost_goes_by_the_pace_of_the_host(simulation: Simulation) -> None:
    subject = simulation.subjects[0]
    nothing = Outside(np.zeros(len(subject.gpu.ops), bool))
    work = own_work(subject.program)
    slow = subject.becomes(work_ns=2 * work, call_ns=2 * subject.program.call_ns)
    costs = []
    for unrecorded in (subject, slow):
        after = model_alone(subject, nothing, "expected", unrecorded).program
        costs.append(int((after.work_ns - np.minimum(work, after.work_ns)).sum()))
    assert costs[1] == pytest.approx(2 * costs[0], rel=1e-3)
    inside = capturable(subject)
    within = inside & np.append(False, inside[:-1])
    each = launching_ns(subject.program)[within].mean()
    steps = int((subject.program.kind == MARK).sum())
    whole = COMPILED_INFERENCE["expected"]  # nothing is updated: no backward pass
    assert costs[0] == pytest.approx(steps * each * whole, rel=1e-3)


def test_delays_of_launches_go_and_small_memsets_hold_a_graph_up(tmp_path: Path) -> None:
    b = Build()
    for number in range(4):
        begin = number * 400.0
        b.range(begin, begin + 400, f"step {number}")
        for k in range(3):
            at = begin + 100 * k
            late = 40 if k == 1 else 8  # us after the call
            b.kernel(at + late, at + late + 20, call=(at, at + 5))
        b.memset(begin + 308, begin + 309, call=(begin + 300, begin + 305), size=64)
        b.memset(begin + 360, begin + 370, call=(begin + 350, begin + 355), size=1 << 24)
    subject = simulated(b, tmp_path).subjects[0]
    assert subject.program.delay_ns.any()
    assert not whole_step(subject, "expected").program.delay_ns.any()
    assert whole_step(subject, "high").program.delay_ns.any()
    clears = subject.of_ops(subject.gpu.ops.equals("kind", "memset"))
    gaps = gap_in_graph_ns(subject, "expected")[clears]
    assert set(gaps.tolist()) == {GRAPH_MEMSET_NS, GRAPH_NS}
    # at the slowest that a graph was seen to be, not at what a single launch takes
    slow = gap_in_graph_ns(subject, "high")[clears]
    assert set(slow.tolist()) == {GRAPH_MEMSET_NS, SLOW_GRAPH_NS}


def test_the_whole_step_gains_at_least_as_much(simulation: Simulation) -> None:
    whole, model = (simulation.predict([InGraphs(scope)]) for scope in ("step", "model"))
    assert whole.step_ns <= model.step_ns <= simulation.measured_step_ns


def test_of_a_step_in_one_graph_the_device_is_known(tmp_path: Path) -> None:
    """Ten launches a step, 50 us apart, of kernels of 5 us, recorded for little."""
    b = Build()
    for number in range(8):
        begin = number * 500.0
        b.range(begin, begin + 500, f"step {number}")
        for k in range(10):
            at = begin + 50 * k
            b.kernel(at + 8, at + 13, call=(at, at + 6))
    found = simulated(b, tmp_path).predict([InGraphs("step")])
    assert found.unrecorded is not None
    assert found.unrecorded[1] == 10 * (5_000 + GRAPH_NS)
    # before the repair the host may have been that much quicker or slower; nothing else is open
    slow = (SLOW_GRAPH_NS - GRAPH_NS) / (5_000 + GRAPH_NS)
    low = math.hypot(1 - 1 / (1 + BETWEEN_RUNS), ONE_GRAPH)
    high = math.hypot(1 / (1 - BETWEEN_RUNS) - 1, ONE_GRAPH, slow)
    assert found.low_ns == pytest.approx(found.step_ns * (1 - low), rel=0.01)
    assert found.high_ns == pytest.approx(found.step_ns * (1 + high), rel=0.01)
