"""Replays and predictions of real captures."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.support.captures import BUNDLED, DATA, unpack, without_annotations

from stepscope.api import Job
from stepscope.simulation import (
    Change,
    Free,
    LaunchesFree,
    MatchedJob,
    MatchedOps,
    RankLike,
    Simulation,
)
from stepscope.simulation.replayed_job import slowest_ns

MOST_OFF = 0.03
FILES = [label["file"] for label in json.loads((DATA / "truth.json").read_text())]


@pytest.fixture(scope="module")
def job() -> Callable[[str], Job]:
    @cache
    def opened(file: str) -> Job:
        return Job([unpack(BUNDLED if file == BUNDLED.name else DATA / file)])

    return opened


@pytest.mark.parametrize("file", [*FILES, BUNDLED.name])
def test_the_replay_gives_the_measured_step(file: str, job: Callable[[str], Job]):
    simulation = job(file).simulation
    assert abs(simulation.replay_error) < MOST_OFF
    assert simulation.predict([]).step_ns == simulation.measured_step_ns


@pytest.mark.parametrize("file", ["nsys/gpt1024_sync_item.sqlite.xz", "kineto/lstm_tiny.json.gz"])
def test_without_annotations_too(file: str, tmp_path: Path):
    bare = without_annotations(unpack(DATA / file))
    assert abs(Job([bare]).simulation.replay_error) < MOST_OFF


@pytest.mark.parametrize(
    ("file", "repair", "repaired", "within"),
    [
        ("gpt1024_host_compute", Free("host_compute"), "gpt1024_healthy", 0.05),
        # the backward pass of this capture took the host twice as long as that of the healthy one
        ("gpt1024_sync_item", Free("host_sync"), "gpt1024_healthy", 0.16),
        ("gpt_tokenize", Free("input_starvation"), "gpt_healthy", 0.05),
        ("gpt_sync_layers", Free("host_sync"), "gpt_healthy", 0.10),
    ],
)
def test_repairs_are_predicted(
    file: str, repair: Change, repaired: str, within: float, job: Callable[[str], Job]
):
    predicted = job(f"nsys/{file}.sqlite.xz").simulation.predict([repair])
    truth = job(f"nsys/{repaired}.sqlite.xz").simulation.measured_step_ns
    assert predicted.step_ns == pytest.approx(truth, rel=within)
    assert predicted.low_ns <= predicted.step_ns <= predicted.high_ns


@pytest.mark.parametrize(
    ("file", "without", "within"),
    [("gpt1024_pageable_h2d", "gpt1024_healthy", 0.03), ("gpt_pageable", "gpt_healthy", 0.02)],
)
def test_pinned_copies_take_what_the_bus_needs(
    file: str, without: str, within: float, job: Callable[[str], Job]
):
    """The program without the copies, and these at 50 GB/s (PCI Express 5.0) in their order."""
    simulation = job(f"nsys/{file}.sqlite.xz").simulation
    predicted = simulation.predict([Free("blocking_copy")])
    (_, e) = simulation.devices[0]
    copied = e.copies.pageable_bytes / 50 / e.n_steady
    truth = job(f"nsys/{without}.sqlite.xz").simulation.measured_step_ns
    assert predicted.step_ns == pytest.approx(truth + copied, rel=within)
    assert predicted.low_ns <= truth * 1.02  # on a stream of their own they are hidden


@pytest.mark.parametrize("file", FILES)
def test_what_it_finds_free_is_never_below_the_device(file: str, job: Callable[[str], Job]):
    simulation = job(file).simulation
    (_, e) = simulation.devices[0]
    compute = e.steady_total("compute_ns") / e.n_steady
    predicted = simulation.predict([LaunchesFree(), Free("input_starvation"), Free("host_sync")])
    assert predicted.step_ns > 0.75 * compute  # reading values is compute too, and goes
    assert predicted.step_ns <= simulation.measured_step_ns * 1.001


@pytest.mark.parametrize("file", FILES)
def test_critical_paths_sum_to_the_steps(file: str, job: Callable[[str], Job]):
    result = job(file).critical_path()
    assert sum(part.ns for part in result.parts) == result.total_ns
    for step in result.steps:
        assert sum(part.ns for part in step.parts) == step.replayed_ns
    assert sum(rank.ns for rank in result.ranks) == result.total_ns
    unexplained = sum(part.ns for part in result.parts if part.kind == "unexplained")
    assert unexplained < 0.05 * result.total_ns


@pytest.mark.parametrize("source", ["nsys", "kineto"])
def test_a_straggler_of_four_ranks(source: str, shared_data: Path, unpacked: Callable[[str], Path]):
    def opened(name: str) -> Job:
        if source == "nsys":
            return Job([unpacked(f"{name}.rank{rank}") for rank in range(4)])
        return Job([shared_data / "kineto" / f"{name}.rank{r}.json.gz" for r in range(4)])

    def simulation(name: str) -> Simulation:
        job = opened(name)
        ranks = []
        for rank, e in job.explained.explanations:
            rows = np.flatnonzero(e.gpu.is_communication)
            called = e.gpu.enqueue_begin_ns[rows]
            step = np.searchsorted(e.steps.begin_ns, called, side="right") - 1
            inside = np.arange(len(rows)) - np.searchsorted(step, step)
            ranks.append(MatchedOps(rank, e.gpu.process_id, e.gpu.device, rows,
                                    step * 1000 + inside))  # fmt: skip
        readers = {rank_trace.rank: rank_trace.trace.frame for rank_trace in job.ranks}
        return Simulation(job.explained.explanations, readers, MatchedJob(ranks))

    straggler, healthy = simulation("ddp_straggler"), simulation("ddp_healthy")
    for one in (straggler, healthy):
        assert abs(one.replay_error) < MOST_OFF
    truth = healthy.measured_step_ns
    for change in (RankLike(2), Free("input_starvation", (2,))):
        # both are captures, which the tool slows: so is the replay that compares with them
        recorded = slowest_ns(straggler.replay([change])) / slowest_ns(straggler.unchanged)
        assert recorded * straggler.measured_step_ns == pytest.approx(truth, rel=0.06)
    # another rank is not what the job waits for
    other = straggler.predict([Free("input_starvation", (1,))]).step_ns
    assert other == pytest.approx(straggler.measured_step_ns, rel=0.01)
