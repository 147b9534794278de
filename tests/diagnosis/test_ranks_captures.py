"""Causes of several ranks on real captures with a planted cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.support.captures import ranks_of, unpack

from stepscope.api import Job

RANKS = Path(__file__).parents[1] / "data" / "ranks"


@pytest.fixture
def imbalance(tmp_path: Path) -> list[Path]:
    """Two ranks of a data-parallel job in which rank 1 computes a double batch."""
    return [unpack(RANKS / f"ddp_imbalance.rank{r}.sqlite.xz", tmp_path) for r in range(2)]


@pytest.fixture
def captured(
    shared_data: Path, unpacked: Callable[[str], Path]
) -> Callable[[str, str], list[Path]]:
    """(name, source) -> the captures of the four ranks."""

    def of(name: str, source: str) -> list[Path]:
        if source == "nsys":
            return [unpacked(f"{name}.rank{rank}") for rank in range(4)]
        return [shared_data / "kineto" / f"{name}.rank{rank}.json.gz" for rank in range(4)]

    return of


def test_a_double_batch_is_an_imbalance(imbalance: list[Path]) -> None:
    job = Job(imbalance)
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert (diagnosis.verdict, finding.ranks) == ("load_imbalance", [1])
    # rank 1 computes 35 ms a step, rank 0 23.6 ms
    assert 9e6 < finding.time_ns_per_step < 13e6
    assert job.verify(msgspec.json.encode(diagnosis)).verified
    found = job.communication
    assert [guess.likely for guess in found.groups] == ["data_parallel"]
    assert found.arrivals[1].last > 0.9 * found.arrivals[1].operations
    assert not any(arrival.unmatched for arrival in found.arrivals)


def test_one_rank_of_it_says_what_to_add(imbalance: list[Path]) -> None:
    diagnosis = Job(imbalance[:1]).diagnose()
    assert diagnosis.verdict == "insufficient_data"
    assert "ddp_imbalance.rank*.sqlite" in (diagnosis.findings[0].next_capture or "")


@pytest.mark.parametrize("source", ["nsys", "kineto"])
def test_a_sleeping_loader_is_a_straggler(source: str) -> None:
    job = Job([ranks_of("ddp_straggler", source)])
    diagnosis = job.diagnose()
    finding = diagnosis.findings[0]
    assert diagnosis.verdict == "straggler"
    assert (finding.root_cause, finding.ranks) == ("input_starvation", [2])
    assert finding.where.range == "dataload"
    # the planted 30 ms, less what the others' own hosts and devices take longer than rank 2's rest
    assert 24e6 < finding.time_ns_per_step < 31e6
    assert "input_starvation" not in {f.cause for f in diagnosis.findings}
    assert "exposed_communication" not in {f.cause for f in diagnosis.findings}
    assert job.verify(msgspec.json.encode(diagnosis)).verified


@pytest.mark.parametrize("source", ["nsys", "kineto"])
def test_a_healthy_job_is_not_blamed_on_the_network(source: str) -> None:
    diagnosis = Job([ranks_of("ddp_healthy", source)]).diagnose()
    causes = {finding.cause for finding in diagnosis.findings}
    assert not causes & {"exposed_communication", "load_imbalance"}
    if source == "kineto":  # rank 1 is last at every collective, because recording slows its host
        assert diagnosis.verdict == "profiler_overhead"
        assert any(warning.startswith("rank 1 joins last at 154 of 154") for warning in
                   diagnosis.warnings)  # fmt: skip
    else:  # rank 0 launches more slowly than the others
        assert [(f.cause, f.root_cause, f.ranks) for f in diagnosis.findings] == [
            ("straggler", "launch_bound", [0])
        ]
        # the others launch as much in time: first that host, then the launches
        advice = diagnosis.findings[0].recommendations
        assert advice[0].startswith("the other ranks launch as much in time")
        assert [("numactl" in text, "CUDA graph" in text) for text in advice[1:]] == [
            (True, False), (False, True), (False, True)
        ]  # fmt: skip


@pytest.mark.parametrize(("left", "verdict"), [((0, 1, 3), "insufficient_data"),
                                               ((1, 2, 3), "straggler")])  # fmt: skip
def test_a_rank_is_missing(
    left: tuple[int, ...], verdict: str, captured: Callable[[str, str], list[Path]]
) -> None:
    paths = captured("ddp_straggler", "nsys")
    diagnosis = Job([paths[rank] for rank in left]).diagnose()
    assert diagnosis.verdict == verdict
    assert any("is not there" in warning for warning in diagnosis.warnings)


def test_both_sources_agree_on_the_bandwidth_and_the_lateness(
    captured: Callable[[str, str], list[Path]],
) -> None:
    found = {s: Job(captured("ddp_straggler", s)).communication for s in ("nsys", "kineto")}
    (row,) = found["kineto"].operations
    assert row.message_bytes is not None
    # 4 H200 with NVLink: NCCL's ring all-reduce of 34 MB
    assert 150e9 < (row.bus_bandwidth or 0) < 480e9
    assert (row.bus_bandwidth or 0) == pytest.approx(1.5 * (row.algorithm_bandwidth or 0), rel=1e-6)
    assert found["nsys"].operations[0].bus_bandwidth is None
    for communication in found.values():
        (operation,) = communication.operations
        assert operation.group == "0-3"
        assert operation.count == 14 * communication.steps
        late = communication.arrivals[2]
        assert late.last == late.operations
        assert late.lateness_ns > 500_000
