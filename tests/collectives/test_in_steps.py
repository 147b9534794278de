"""Communication that does not end with the step it began in: by hand in us, and on captures."""

from __future__ import annotations

from pathlib import Path

from tests.support.build import Build
from tests.support.captures import shared, unpack

import stepscope
from stepscope.api import Job
from stepscope.collectives.summary import Communication, RankArrival
from stepscope.steps.model import account

RANKS = Path(__file__).parents[1] / "data" / "ranks"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def exposed(arrival: RankArrival) -> int:
    return (
        arrival.exposed_waiting_ns
        + arrival.exposed_transfer_ns
        + arrival.exposed_missing_ns
        + arrival.exposed_unmatched_ns
    )


def of_operations(found: Communication) -> int:
    return sum(
        row.exposed_waiting_ns + row.exposed_transfer_ns + row.exposed_missing_ns
        for row in found.operations
    )


def test_a_collective_counts_as_far_as_it_lies_in_the_steps(tmp_path: Path) -> None:
    """Steps of 1,000 us: one that is half covered, two at once, and one that ends in the next."""
    build = Build()
    for step in range(5):
        at, called = 1_000 * step, 1_000 * step - 100
        build.range(called, called + 999, f"step_{step}")
        build.kernel(at, at + 200, call=(called + 1, called + 2), name="gemm")
        build.kernel(at + 150, at + 250, call=(called + 3, called + 4), name=NCCL, stream=20)
        build.kernel(at + 400, at + 500, call=(called + 5, called + 6), name=NCCL, stream=20)
        build.kernel(at + 450, at + 600, call=(called + 7, called + 8), name=NCCL, stream=21)
        last, name = step == 4, "gemm" if step == 4 else NCCL
        end = at + 1_000 if last else at + 1_140
        build.kernel(at + 900, end, call=(called + 9, called + 10), name=name, stream=20)
    job = Job([build.trace(tmp_path).folder])
    found = job.communication
    (accounting,) = job.diagnose().accounting
    assert (found.steps, accounting.steps) == (5, 5)
    (arrival,) = found.arrivals
    # 50 of the first, 200 of the two, 100 of the last, whose end is under the next step's kernel
    assert exposed(arrival) == of_operations(found) == (5 * 250 + 4 * 100) * 1_000
    assert accounting.exposed_communication_ns == exposed(arrival)
    assert sum(row.count for row in found.operations) == 19
    assert sum(row.time_ns for row in found.operations) == (5 * 350 + 4 * 240) * 1_000
    # single collectives keep all of their time, which bandwidths are made of
    assert max(job.collective_instances().column("duration_ns").to_pylist()) == 240_000


def test_exposed_communication_is_that_of_the_accounting() -> None:
    job = stepscope.open(shared("public/deepseek_train.json.gz"))
    (arrival,), (accounting,) = job.communication.arrivals, job.diagnose().accounting
    assert exposed(arrival) == of_operations(job.communication)
    assert exposed(arrival) == accounting.exposed_communication_ns


def test_exposed_communication_of_ranks_is_that_of_the_shared_steps(tmp_path: Path) -> None:
    job = stepscope.open([unpack(RANKS / f"ddp_imbalance.rank{r}.sqlite.xz") for r in range(2)])
    view = job.explained.view.collectives
    assert view is not None
    for arrival, e, own in zip(
        job.communication.arrivals, view.explained, view.own_windows, strict=True
    ):
        assert exposed(arrival) == account(e.gpu, *own).exposed_communication_ns.sum() > 0
