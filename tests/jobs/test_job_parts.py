"""Parts of the diagnosis of a job, by hand: what cannot be told, places, links, few peers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.digest_jobs import Plant, Shape, made

from stepscope.api.digest_files import read_digests
from stepscope.collectives.communicators import Channel
from stepscope.collectives.exposure import Pace, Parts, Work
from stepscope.collectives.match import Instances, Matched
from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_match import match_digests
from stepscope.jobs.digest_parts import Times, times_of
from stepscope.jobs.job import diagnose_job
from stepscope.jobs.job_causes import hidden, many_ranks
from stepscope.jobs.job_late import Late, Needs, _slow_places
from stepscope.jobs.job_links import Links, links, shared_by, slowed_too
from stepscope.jobs.job_outliers import ALARMS, Scores, bound, deviates, scores
from stepscope.jobs.topology import Place

DATA = Path(__file__).parents[1] / "data"
STEP, STEPS = 20_000_000, 6
INTS = np.empty(0, np.int64)
FOUND: dict[str, Any] = {
    "cause": ["launch_bound"], "time_ns": np.array([5e6]), "predicted_ns": np.array([15e6]),
    "sure_gain_ns": np.array([5e6]), "of_program": np.array([True]), "range": [""],
    "operator": [""], "place": [""], "message": ["late launches"], "advice": ["use graphs"],
}  # fmt: skip


@pytest.fixture(scope="module")
def family() -> list[Digest]:
    """Three healthy ranks of a job of four GPUs."""
    paths = sorted((DATA / "digests").glob("healthy_four.*"))
    return [digest for path in paths for digest in read_digests(path, whole=True)]


# --- communication that may hide ranks which are not there ---------------------------------------


def times(idle: dict[str, float], **shares: float | tuple[float, ...]) -> Times:
    """Three ranks whose steps hold shares of the step, the rest being compute."""

    def part(share: float | tuple[float, ...]) -> Any:
        each = np.broadcast_to(np.asarray(share, float), (3,))
        return np.tile(np.rint(each * STEP).astype(np.int64), (STEPS, 1))

    names = ("waiting", "transfer", "missing", "unmatched", "copy", "memset")
    held = {name: part(shares.get(name, 0.0)) for name in names}
    left = {cause: part(share) for cause, share in idle.items()}
    spent = sum(held.values()) + sum(left.values(), part(0.0))
    begin = np.arange(STEPS) * STEP
    nothing = part(0.0)
    parts = Parts(
        begin_ns=begin, end_ns=begin + STEP, wall=part(1.0), compute=part(1.0) - spent, idle=left,
        alone=nothing, blocking=nothing, bubble=nothing, **held,
    )  # fmt: skip
    paces = [Pace(0.0, 0.0, 0.0, 0.0)] * 3
    return Times(parts, Work(nothing, nothing), paces, np.tile(begin[:, None], 3), False, [])


def job(missing: list[int], members: int = 3) -> Matched:
    """Operations of three ranks, of which some others may be missing."""
    one = np.array([0])
    instances = Instances(one, one, one, one, one + members, one + 4, one, one, one)
    return Matched([], instances, [], missing, 0, [])


@pytest.mark.parametrize(
    ("missing", "idle", "who"),
    [
        (0.3, 0.05, [0, 1, 2]),
        (0.2, 0.05, []),  # too little to hide the cause
        (0.3, 0.35, []),  # something that is known takes longer
        ((0.1, 0.3, 0.1), 0.05, [1]),
    ],
)
def test_waiting_for_ranks_that_are_not_there_is_not_explained(
    family: list[Digest], missing: float | tuple[float, ...], idle: float, who: list[int]
) -> None:
    seen = hidden(family, job([3]), times({"launch_bound": idle}, missing=missing))
    assert [one.devices for one in seen] == ([who] if who else [])
    for one in seen:
        assert (one.cause, one.gain_ns) == ("insufficient_data", 0.0)
        assert one.time_ns == pytest.approx(idle * STEP)
        assert "give the digests of the missing ranks, too (3)" in one.texts["advice"]
    # what is unmatched counts with it; all of it is known where every rank is there
    half = times({"launch_bound": 0.05}, missing=0.15, unmatched=0.15)
    assert hidden(family, job([3]), half)
    assert hidden(family, job([]), half) == []
    assert hidden(family, None, half) == []


def test_the_digest_of_one_rank_cannot_tell_a_transfer_from_waiting(family: list[Digest]) -> None:
    moving = times({}, transfer=0.3)
    assert hidden(family, job([3]), moving) == []
    (seen,) = hidden(family[:1], job([1, 2, 3]), moving)
    assert "one rank cannot tell" in seen.texts["message"]


def test_ranks_that_share_no_operation_may_be_of_different_runs(family: list[Digest]) -> None:
    def exposed(share: float) -> list[Digest]:
        changed = []
        for digest in family:
            steps = dict(digest.lists["steps"])
            steps["communication_ns"] = np.full(digest.n_steps, round(share * STEP))
            changed.append(replace(digest, lists={**digest.lists, "steps": steps}))
        return changed

    (seen,) = hidden(exposed(0.4), job([], members=1), times({}))
    assert "different runs" in seen.texts["message"]
    assert hidden(exposed(0.1), job([], members=1), times({})) == []
    # where they are compared step by step, it is explained
    by_step = replace(times({}), by_step=True)
    assert hidden(exposed(0.4), job([], members=1), by_step) == []


# --- places --------------------------------------------------------------------------------------


def needing(excess: list[float]) -> Needs:
    """Ranks that need so many ms beyond their peers."""
    own = np.array(excess) * 1e6
    need = np.tile(10e6 + own, (STEPS, 1))
    return Needs(need, need, own, 1e4, scores(need, np.zeros(len(own), np.int64)), 20)


@pytest.mark.parametrize(
    ("excess", "late"),
    [
        ((0.0, 0.0, 0.0, 5.0), False),
        ((0.0, 0.0, 5.0, 5.0), False),  # half of it
        ((0.0, 5.0, 5.0, 5.0), True),
        ((5.0, 5.0, 5.0, 5.0), True),
        ((0.0, 5.0), False),  # the median of two is not that of the place
        ((5.0, 5.0), True),
    ],
)
def test_a_place_is_late_without_its_latest_rank(excess: tuple[float, ...], late: bool) -> None:
    rest = [0.01 * number for number in range(12)]
    place = Place("switch", "leaf0", list(range(len(excess))))
    needs = needing([*excess, *rest])
    role = np.zeros(len(excess) + len(rest), np.int64)
    found = _slow_places(role, needs, [place])
    assert [one for one, _, _ in found] == ([place] if late else [])


# --- links ---------------------------------------------------------------------------------------


def crossing() -> Matched:
    """Two machines of eight ranks: a communicator each, one a rail, and one of all."""
    members = [list(range(8)), list(range(8, 16)), *([k, k + 8] for k in range(8)), list(range(16))]
    channels = [Channel([(d, INTS) for d in own], tuple(own), len(own), True) for own in members]
    return replace(job([]), ranks=[None] * 16, channels=channels)  # type: ignore[list-item]


def compared(beside: tuple[int, int]) -> Links:
    """The communicators of ``crossing``: the rail of ranks 3 and 11 is slow."""
    n = 11
    alike = np.array([0, 0, *[1] * 8, 2])
    score = np.where(alike == 1, 0.0, np.nan)
    score[5] = 50.0
    excess = np.zeros(n)
    known = np.where(alike == 1, 3.0, 0.0)
    ratio = np.where(np.arange(n) == 5, 2.0, 1.0)
    return Links(
        np.ones(n), Scores(excess, score, known), ratio, np.ones(n), np.ones(n),
        np.zeros(n, np.int64), np.ones(n), alike, np.array([*beside, *[-1] * 9]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("beside", "ranks", "too"),
    [
        ((0, 0), [3, 11], []),
        ((1, 0), [3], [0]),
        ((0, 1), [11], [1]),
        ((-1, -1), [3, 11], []),  # none alike: nobody is accused, and nobody is acquitted
    ],
)
def test_few_communicators_alike_tell_the_ends_of_a_slow_one_apart(
    beside: tuple[int, int], ranks: list[int], too: list[int]
) -> None:
    matched, found = crossing(), compared(beside)
    slow = found.slow(20)
    assert slow.tolist() == [5]
    assert shared_by(matched, slow, found) == ranks
    assert slowed_too(matched, ranks, found).tolist() == too


def test_a_communicator_that_has_none_alike_is_not_judged(family: list[Digest]) -> None:
    """That of all ranks: nothing tells whose link is slow, nor that one is."""
    for amount in (None, 0.3):
        plant = Plant("slow_link", 5, amount) if amount else None
        digests = made(family, Shape(16, "ddp"), 11, plant)
        matched = match_digests(digests)
        assert matched is not None
        begin = times_of(digests, matched).parts.begin_ns
        found = links(matched, begin, begin + STEP)
        assert not found.judged.any()
        assert found.ratio.tolist() == [1.0]
        assert (found.beside.tolist(), found.slow(20).tolist()) == ([-1], [])
        assert [f.reason for f in diagnose_job(digests).findings if f.reason == "slow_link"] == []


def test_transfers_that_take_no_time_are_no_measure(family: list[Digest]) -> None:
    """A member that is matched with others' operations makes a transfer end before it began."""
    digests = made(family, Shape(128, "hsdp"), 11, None)
    matched = match_digests(digests)
    assert matched is not None
    wrong = {number for number, c in enumerate(matched.channels) if c.ranks[1] - c.ranks[0] > 1}
    spared = min(wrong)
    for rank in matched.ranks:
        channel = matched.instances.channel[rank.instance]
        none = np.isin(channel, sorted(wrong - {spared}))
        rank.transfer_ns[none] = 0
    begin = times_of(digests, matched).parts.begin_ns
    found = links(matched, begin, begin + STEP)
    assert found.transfer_ns[spared] > 0
    assert found.ratio[sorted(wrong)].tolist() == [1.0] * 8
    assert not set(found.slow(20).tolist()) & wrong


def test_a_slow_link_of_two_machines_is_that_of_one_rank(family: list[Digest]) -> None:
    digests = made(family, Shape(16, "hsdp"), 11, Plant("slow_link", 5, 0.2))
    found = [f for f in diagnose_job(digests).findings if f.reason]
    assert [(f.reason, f.ranks) for f in found] == [("slow_link", [5])]


# --- few peers -----------------------------------------------------------------------------------


def test_few_peers_are_compared_with_those_that_need_less() -> None:
    alone = np.zeros(8, np.int64)
    values = np.tile([0.0, 1, 2, 3, 4, 5, 6, 40], (STEPS, 1))
    found = deviates(values, alone, 10.0)
    rest = values[0, :7]
    spread = np.sqrt(rest.std(ddof=1) ** 2 * (1 + 1 / 7))
    assert found.score[7] == pytest.approx((40 - 3) / spread)
    assert found.degrees[7] == 6
    assert np.isnan(found.score[:7]).all()
    # two that are late do not hide each other
    values[:, 6] = 38
    found = deviates(values, alone, 10.0)
    assert (found.score[6:] > bound(5, 8)).all()
    # what is less than notable is not tried, nor are too few or many peers
    assert np.isnan(deviates(values, alone, 100.0).score).all()
    assert np.isnan(deviates(values[:, 1:], alone[1:], 10.0).score).all()
    many = np.tile(values, 5)
    assert np.isnan(deviates(many, np.zeros(40, np.int64), 10.0).score).all()


@pytest.mark.parametrize("peers", [8, 16, 32])
def test_few_peers_raise_no_more_alarms_than_said(peers: int) -> None:
    chance, jobs = np.random.default_rng(peers), 1500
    role = np.zeros(peers, np.int64)
    alarms = sum(
        bool(
            deviates(np.tile(chance.normal(size=peers), (STEPS, 1)), role, -9.0).beyond(peers).any()
        )
        for _ in range(jobs)
    )
    assert alarms <= 2 * ALARMS * jobs


@pytest.mark.parametrize("kind", ["slow_gpu", "extra_work"])
@pytest.mark.parametrize("ranks", [8, 16])
def test_one_of_few_that_is_late_by_a_tenth_is_told(
    family: list[Digest], kind: str, ranks: int
) -> None:
    digests = made(family, Shape(ranks, "ddp"), 13, Plant(kind, 6, 0.1))
    found = [f for f in diagnose_job(digests).findings if f.reason]
    assert [(f.reason, f.ranks) for f in found] == [(kind, [6])]


def test_a_reason_that_explains_little_of_what_a_rank_loses_is_no_finding() -> None:
    """Made like its peers it would lose what delays each of them now and then, too."""
    late = Late([1], None, 9.0, 7.0, "rate", None, {}, 1.0, 1.0, 0.005 * STEP, 0.02 * STEP)
    assert many_ranks([replace(late, part_ns=0.02 * STEP)], times({}), None)
    assert many_ranks([replace(late, part_ns=0.005 * STEP)], times({}), None) == []


def test_a_rank_of_several_devices_is_named_once(family: list[Digest]) -> None:
    """One process that drives all GPUs of its machine."""
    digests = made(family, Shape(8, "ddp"), 3, None)
    for digest in digests:
        digest.facts["rank"], digest.facts["world_size"] = 0, 1
        digest.lists["findings"] = FOUND
    found = diagnose_job(digests).findings
    assert [f.ranks for f in found if f.cause == "launch_bound"] == [[0]]
    assert "on rank 0" in next(f.message for f in found if f.cause == "launch_bound")
