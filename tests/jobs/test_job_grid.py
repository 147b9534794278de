"""What the page of a job shows: values of the heat map, and one rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.digest_jobs import Plant, Shape, made

from stepscope.api.digest_files import SUFFIX, read_digests
from stepscope.jobs.digest import Digest
from stepscope.jobs.job import JobAnalysis, analysed, diagnosis_of
from stepscope.jobs.job_grid import cells, grid
from stepscope.jobs.rank_detail import RankCapture, RankDetail, rank_detail
from stepscope.trace.errors import InputError

FOUR = sorted((Path(__file__).parents[1] / "data" / "digests").glob(f"healthy_four.*{SUFFIX}"))
NOWHERE = RankCapture("", "", "", "")


@pytest.fixture(scope="module")
def family() -> list[Digest]:
    return [digest for path in FOUR for digest in read_digests(path, whole=True)]


@pytest.fixture(scope="module")
def job(family: list[Digest]) -> JobAnalysis:
    return analysed(made(family, Shape(16, "ddp"), 1, Plant("slow_gpu", 5, 0.2)))


@pytest.fixture(scope="module")
def late(job: JobAnalysis) -> RankDetail:
    return rank_detail(job, 5, job.digests[5], NOWHERE)


def values(job: JobAnalysis, name: str) -> np.ndarray:
    found = cells(job, name)
    assert found is not None
    assert found.value == name
    return np.array(found.cells)


def test_the_map_begins_with_what_the_diagnosis_shows(job: JobAnalysis) -> None:
    heat = diagnosis_of(job).heat_map
    assert grid(job).steps == heat.steps
    assert [value.signed for value in grid(job).values[:2]] == [True, False]
    assert values(job, "late").tolist() == heat.late_ns
    assert np.argmax(np.median(values(job, "late"), axis=1)) == 5


def test_every_value_that_is_offered_is_there(job: JobAnalysis) -> None:
    for value in grid(job).values:
        assert values(job, value.key).shape == (16, len(grid(job).steps))
    causes = [v.key for v in grid(job).values if v.key.startswith("idle:")]
    assert (sum(values(job, key) for key in causes) == values(job, "idle")).all()
    assert cells(job, "idle:nothing of this name") is None
    assert cells(job, "alone") is None


def test_parts_of_a_rank_sum_to_its_steps(job: JobAnalysis, late: RankDetail) -> None:
    assert np.sum([part.steps_ns for part in late.parts], axis=0).tolist() == late.wall_ns
    assert late.wall_ns == values(job, "wall")[5].tolist()
    compute = next(part for part in late.parts if part.part == "compute")
    assert compute.peers_ns is not None
    assert compute.mean_ns > 1.15 * compute.peers_ns


def test_a_late_rank_is_unlike_its_peers(job: JobAnalysis, late: RankDetail) -> None:
    outside = {one.figure for one in late.deviations if one.outside}
    assert {"needs for a step", "kernels take, to its peers"} <= outside
    assert late.score is not None
    assert late.threshold is not None
    assert late.score > late.threshold
    assert late.kernels[0].more_ns == max(kernel.more_ns for kernel in late.kernels)
    assert all(kernel.median_ns > kernel.peers_ns for kernel in late.kernels)
    usual = rank_detail(job, 4, job.digests[4], NOWHERE)
    assert "kernels take, to its peers" not in {d.figure for d in usual.deviations if d.outside}
    assert not usual.kernels


def test_steps_are_those_of_the_ranks_own_capture(job: JobAnalysis, late: RankDetail) -> None:
    assert [one.number for one in late.steps] == job.times.numbers[:, 5].tolist()
    assert [one.end_ns - one.begin_ns for one in late.steps] == late.wall_ns


def test_a_rank_without_peers_is_shown(family: list[Digest]) -> None:
    job = analysed(family[:1])
    alone = rank_detail(job, 0, family[0], NOWHERE)
    assert alone.peers == 0
    assert alone.peers_wall_ns is None
    assert not alone.deviations
    assert {part.peers_ns for part in alone.parts} == {None}
    assert alone.evidence
    assert alone.phases


def test_no_digest_is_refused() -> None:
    with pytest.raises(InputError, match="no digest is left"):
        analysed([])
