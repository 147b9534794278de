"""Rules of the diagnosis of a job, on cases computed by hand and on ranks taken from a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.digest_jobs import Plant, Shape, made

from stepscope.api.digest_files import read_digests
from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_match import _drift, _middle
from stepscope.jobs.job import diagnose_job
from stepscope.jobs.job_causes import Seen, ranked
from stepscope.jobs.job_sometimes import beyond_chance, late_steps

DATA = Path(__file__).parents[1] / "data"
PEERS, STEPS, LATE = 8, 12, 5


@pytest.fixture(scope="module")
def family() -> list[Digest]:
    """Three healthy ranks of a job of four GPUs."""
    paths = sorted((DATA / "digests").glob("healthy_four.*"))
    return [digest for path in paths for digest in read_digests(path, whole=True)]


def needs(*late: int) -> np.ndarray[Any, Any]:
    """Eight peers that need 10 ms in each step; one needs 5 ms more in some steps."""
    need = np.full((STEPS, PEERS), 10e6)
    need[:, 0] += 0.1e6  # someone is last in each
    need[list(late), LATE] += 5e6
    return need


@pytest.mark.parametrize(
    ("late", "named"),
    [
        ((), False),
        ((4,), False),  # once says nothing
        ((1, 8), False),  # 8 x (1/8)^2 = 1/8: chance would do that too often
        ((0, 4, 8, 11), True),  # 8 x (1/8)^4 = 0.002
    ],
)
def test_late_now_and_then_is_told_from_chance(late: tuple[int, ...], named: bool) -> None:
    found = late_steps(needs(*late), np.zeros(PEERS, np.int64), [], notable_ns=1e6)
    assert found == ({LATE: late} if late else {})
    assert beyond_chance(found, PEERS) == ([LATE] if named else [])


def test_late_steps_are_those_of_peers_only() -> None:
    """Of another role, or known to be late in most steps, a device counts for nothing here."""
    late = needs(0, 4, 8, 11)
    assert late_steps(late, np.zeros(PEERS, np.int64), [LATE], 1e6) == {}
    alone = np.zeros(PEERS, np.int64)
    alone[LATE] = 1
    assert late_steps(late, alone, [], 1e6) == {}


def test_a_drift_is_taken_out_and_a_clock_that_was_set_is_not() -> None:
    at = np.arange(0, 1_000_000_000, 100_000_000)
    drifting = 50e-6 * at[None, :] + 7_000.0
    left = drifting - _drift(drifting, at)
    assert np.ptp(left) < 1.0
    was_set = np.where(at >= 500_000_000, 3e6, 0.0)[None, :]
    assert (_drift(was_set, at) == 0).all()
    few = np.array([[5.0, np.nan, 1.0, np.nan, 3.0]])
    assert _middle(few).tolist() == [3.0]
    assert _middle(np.array([[4.0, 2.0]])).tolist() == [2.0]


@pytest.mark.parametrize(("ranks", "decides"), [(3, False), (4, True)])
def test_captures_of_a_minority_that_lack_something_do_not_decide(
    ranks: int, decides: bool
) -> None:
    lacking = Seen("insufficient_data", list(range(ranks)), 1.0, 0.0, (0.0, 0.0), 0.0)
    lacking = replace(lacking, by_itself=True)
    late = Seen("straggler", [5], 4e6, 4e6, (3e6, 5e6), 4e6)
    found = ranked([lacking, late], 20e6, peers=8)
    assert found[0].cause == ("insufficient_data" if decides else "straggler")


def waiting(digests: list[Digest], share: float) -> list[Digest]:
    """The same ranks, of whose compute time a share is communication with nothing beside it."""
    changed = []
    for digest in digests:
        steps = dict(digest.lists["steps"])
        moved = (digest.ints("steps", "compute_ns") * share).astype(np.int64)
        steps["compute_ns"] = digest.ints("steps", "compute_ns") - moved
        steps["communication_ns"] = digest.ints("steps", "communication_ns") + moved
        changed.append(replace(digest, lists={**digest.lists, "steps": steps}))
    return changed


def test_exposed_communication_without_a_cause_is_not_healthy(family: list[Digest]) -> None:
    """As it is for a full capture; where it is little, the job stays healthy."""
    one = made(family, Shape(16, "ddp"), 3, None)[:1]
    assert diagnose_job(one).verdict != "insufficient_data"
    found = diagnose_job(waiting(one, 0.5))
    assert found.verdict == "insufficient_data"
    assert "digest of one rank cannot tell" in found.findings[0].message


def test_a_rail_is_not_slow_because_one_of_its_ranks_is(family: list[Digest]) -> None:
    """Two ranks a rail: the one that is slow is named, its neighbour is not."""
    digests = made(family, Shape(16, "ddp"), 7, Plant("slow_gpu", 5, 0.3))
    found = [f for f in diagnose_job(digests).findings if f.reason]
    assert [(f.reason, f.ranks, f.place) for f in found] == [("slow_gpu", [5], found[0].place)]
    assert "rail" not in str(found[0].place)


# --- from the command line, through the engine ----------------------------------------------------
