"""Jobs of several ranks of ../shared: what is known of each stands in the READMEs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.support.captures import SHARED, unpack

from stepscope.api import Job
from stepscope.diagnosis.result import Diagnosis, Finding

MS = 1_000_000


@pytest.fixture
def captures() -> Callable[[str, str], list[Path]]:
    """(folder, pattern) -> captures of ../shared/data, unpacked."""

    def found(folder: str, pattern: str) -> list[Path]:
        paths = sorted((SHARED / folder).glob(pattern))
        if not paths:
            pytest.skip(f"needs {pattern} of ../shared/data/{folder}, which are not here")
        return [unpack(path) for path in paths]

    return found


def first(job: Job) -> tuple[Diagnosis, Finding]:
    diagnosis = job.diagnose()
    assert diagnosis.findings
    assert job.verify(msgspec.json.encode(diagnosis)).verified
    return diagnosis, diagnosis.findings[0]


@pytest.mark.parametrize("pattern", ["*noisy*.rank*.json.gz", "*noisy*.rank*.sqlite.xz"])
def test_a_gpu_that_another_process_uses(
    pattern: str, captures: Callable[[str, str], list[Path]]
) -> None:
    diagnosis, finding = first(Job(captures("h200-2", pattern)))
    assert (finding.cause, finding.ranks, finding.root_cause) == ("straggler", [2], None)
    assert "the same kernels take longer on it" in finding.message
    # 43.4 ms a step, 19.7 ms untraced without the other process
    assert 18 * MS < finding.predicted_step_ns < 26 * MS
    assert not any("recording explains" in warning for warning in diagnosis.warnings)


def test_experts_that_get_most_tokens(captures: Callable[[str, str], list[Path]]) -> None:
    job = Job(captures("h200-2", "moe_a2a.rank*.sqlite.xz"))
    _, finding = first(job)
    assert (finding.cause, finding.ranks) == ("load_imbalance", [0])
    # 21.1 ms with the tokens spread evenly
    assert finding.predicted_step_ns == pytest.approx(21.1 * MS, rel=0.1)
    found = job.communication
    assert {o.kind for o in found.operations} == {"all_to_all", "all_reduce"}
    assert [g.likely for g in found.groups if "all-to-all" in g.message] == ["expert_parallel"]
    assert not any(arrival.unmatched for arrival in found.arrivals)


def test_the_late_ranks_of_an_all_to_all(captures: Callable[[str, str], list[Path]]) -> None:
    job = Job(captures("public", "param_dlrm.rank*.json.gz"))
    diagnosis = job.diagnose()
    causes = {finding.cause: finding for finding in diagnosis.findings}
    assert "pipeline_bubble" not in causes
    assert not {1, 3, 4, 5} & set(causes["straggler"].ranks if "straggler" in causes else [])
    rows = job.query(
        "SELECT rank, waiting_ns FROM collective_wait WHERE instance = 0 ORDER BY lateness_ns DESC"
    ).to_pylist()
    assert [row["rank"] for row in rows[:3]] == [7, 6, 2]
    assert max(row["waiting_ns"] for row in rows) == pytest.approx(7.6 * MS, rel=0.01)
    found = job.communication
    kinds = {o.kind: o.count for o in found.operations}
    assert kinds == {"all_to_all": 5, "all_reduce": 3}


def test_all_to_alls_of_a_sequence(captures: Callable[[str, str], list[Path]]) -> None:
    job = Job(captures("public", "mfu_2gpu_before.sqlite.xz"))
    found = job.communication
    assert {o.kind for o in found.operations} == {"all_to_all"}
    assert [guess.likely for guess in found.groups] == ["sequence_parallel"]
    assert "pipeline_bubble" not in {finding.cause for finding in job.diagnose().findings}


def test_expert_parallel_kernels_are_communication(
    captures: Callable[[str, str], list[Path]],
) -> None:
    """113 ms of dispatch and combine in 129 ms, only 4.2 ms of it with no compute beside it."""
    job = Job(captures("public", "deepseek_train.json.gz"))
    (row,) = job.query(
        "SELECT sum(communication_ns)::BIGINT AS runs, sum(exposed_communication_ns)::BIGINT AS "
        "exposed, sum(wall_ns)::BIGINT AS wall FROM step"
    ).to_pylist()
    assert row["runs"] > 0.8 * row["wall"]
    assert row["exposed"] < 0.05 * row["wall"]
    (whole,) = job.query(
        "SELECT sum(end_ns - start_ns)::BIGINT AS ns FROM gpu_op WHERE name LIKE '%dpsk::ep::%'"
    ).to_pylist()
    assert whole["ns"] == pytest.approx(113 * MS, rel=0.03)
    assert "combine" not in " ".join(f.message for f in job.diagnose().findings)
