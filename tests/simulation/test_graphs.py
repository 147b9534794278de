"""Steps as CUDA graphs: what goes with the launches, and what stays on the host."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.captures import DATA, unpack

from stepscope.activity.names import OPTIMIZER_KERNEL
from stepscope.api import Job
from stepscope.simulation import InGraphs, Simulation
from stepscope.simulation.changes import COMPILED_MODEL_NS
from stepscope.simulation.graphs import model_alone, whole_step
from stepscope.simulation.program import LAUNCH, MARK, C, own_work
from stepscope.simulation.settings.graphs import capturable


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
    assert paid == steps * COMPILED_MODEL_NS["expected"]


def test_the_whole_step_gains_at_least_as_much(simulation: Simulation) -> None:
    whole, model = (simulation.predict([InGraphs(scope)]) for scope in ("step", "model"))
    assert whole.step_ns <= model.step_ns <= simulation.measured_step_ns
