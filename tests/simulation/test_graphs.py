"""Steps as CUDA graphs: what goes with the launches, and what stays on the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import Build
from tests.support.captures import DATA, unpack

from stepscope.activity.names import OPTIMIZER_KERNEL
from stepscope.api import Job
from stepscope.breakdown.explain import explain
from stepscope.simulation import InGraphs, Simulation
from stepscope.simulation.graphs import COMPILED_INFERENCE, COMPILED_MODEL, model_alone, whole_step
from stepscope.simulation.program import GRAPH_MEMSET_NS, GRAPH_NS, LAUNCH, MARK, C, own_work
from stepscope.simulation.settings.graphs import capturable
from stepscope.simulation.subject import launching_ns
from stepscope.simulation.without_causes import gap_in_graph_ns


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
    after = model_alone(subject, updates, "expected").program
    kept = after.call_ns[program.kind == LAUNCH] > 0
    assert 0 < kept.sum() < len(kept) / 2
    update = subject.of_ops(updates)
    assert update.any()
    np.testing.assert_array_equal(after.call_ns[update], program.call_ns[update])
    paid = int((after.work_ns - np.minimum(program.work_ns, after.work_ns)).sum())
    gone = (program.kind == LAUNCH) & (after.call_ns == 0) & (program.call_ns > 0)
    whole, part = COMPILED_MODEL["expected"]
    each = launching_ns(program)[gone].mean()
    assert paid == pytest.approx(steps * each * (whole + part * gone.sum() / steps), rel=1e-3)


def test_what_graphs_cost_goes_by_the_pace_of_the_host(simulation: Simulation) -> None:
    subject = simulation.subjects[0]
    nothing = np.zeros(len(subject.gpu.ops), bool)
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
    whole, _ = COMPILED_INFERENCE["expected"]  # nothing is updated: no backward pass
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
    trace = b.trace(tmp_path)
    (e,) = explain(trace.frame, trace.meta)
    subject = Simulation([(0, e)], {0: trace.frame}).subjects[0]
    assert subject.program.delay_ns.any()
    assert not whole_step(subject, "expected").program.delay_ns.any()
    assert whole_step(subject, "high").program.delay_ns.any()
    clears = subject.of_ops(subject.gpu.ops.equals("kind", "memset"))
    gaps = gap_in_graph_ns(subject)[clears]
    assert set(gaps.tolist()) == {GRAPH_MEMSET_NS, GRAPH_NS}


def test_the_whole_step_gains_at_least_as_much(simulation: Simulation) -> None:
    whole, model = (simulation.predict([InGraphs(scope)]) for scope in ("step", "model"))
    assert whole.step_ns <= model.step_ns <= simulation.measured_step_ns
