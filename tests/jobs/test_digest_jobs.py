"""Digests of ranks, and the diagnosis of jobs from them."""

from __future__ import annotations

import json
import pickle
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.support.captures import unpack
from tests.support.digest_jobs import PLANTS, Plant, Shape, made

from stepscope.api import Job
from stepscope.api.digest_files import SUFFIX, read_digests, write_digests
from stepscope.api.digest_making import make_digest
from stepscope.api.digests import diagnose_digests, goes_by_digests
from stepscope.breakdown.repaired import OF_THE_GAIN, RUN_TO_RUN
from stepscope.cli.main import cli
from stepscope.collectives.late import lateness
from stepscope.importers.flight_recorder import looks_like_dump, read_dump
from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_check import of_one_job
from stepscope.jobs.digest_make import group_ranks, short_group
from stepscope.jobs.digest_match import match_digests
from stepscope.jobs.digest_parts import times_of
from stepscope.jobs.hangs import stuck_collectives
from stepscope.jobs.job import diagnose_job
from stepscope.jobs.job_outliers import bound, scores, step_without
from stepscope.trace.errors import InputError, UsageError

DATA = Path(__file__).parents[1] / "data"
FOUR = sorted((DATA / "digests").glob("healthy_four.*"))
LATE = DATA / "digests" / f"late_input.rank2{SUFFIX}"


@pytest.fixture(scope="module")
def family() -> list[Digest]:
    """Three healthy ranks of a job of four GPUs."""
    return [digest for path in FOUR for digest in read_digests(path, whole=True)]


@pytest.fixture(scope="module")
def two_ranks() -> tuple[Job, list[Digest]]:
    """Two ranks as full captures and as digests."""
    paths = [unpack(DATA / "ranks" / f"ddp_imbalance.rank{r}.sqlite.xz") for r in (0, 1)]
    return Job(paths), [digest for path in paths for digest in make_digest(path)]


def test_a_digest_keeps_what_it_holds_and_is_small(
    two_ranks: tuple[Job, list[Digest]], tmp_path: Path
) -> None:
    digest = two_ranks[1][0]
    path = tmp_path / f"one{SUFFIX}"
    write_digests([digest, two_ranks[1][1]], path)
    assert path.stat().st_size < 2 * 100_000
    back, other = read_digests(path, whole=True)
    assert (back.rank, other.rank) == (0, 1)
    assert back.facts == digest.facts
    for name, columns in digest.lists.items():
        for column, values in columns.items():
            assert list(back.lists[name][column]) == list(values), (name, column)
    steps = {name: digest.ints("steps", name) for name in digest.lists["steps"]}
    parts = ("compute_ns", "communication_ns", "copy_ns", "memset_ns", "idle_ns")
    assert (sum(steps[name] for name in parts) == steps["wall_ns"]).all()
    idle = np.bincount(digest.ints("idle", "step"), digest.ints("idle", "time_ns"))
    assert idle.tolist() == steps["idle_ns"].tolist()


def test_digests_say_of_two_ranks_what_their_captures_say(
    two_ranks: tuple[Job, list[Digest]],
) -> None:
    job, digests = two_ranks
    full = job.explained.view.collectives
    assert full is not None
    matched = match_digests(digests)
    assert matched is not None
    assert len(matched.instances) == len(full.matched.instances)
    times = times_of(digests, matched)
    assert len(times.parts) == len(full.parts)
    for name in ("wall", "compute", "waiting", "transfer", "alone", "blocking"):
        here = getattr(times.parts, name).mean(axis=0)
        there = getattr(full.parts, name).mean(axis=0)
        assert here == pytest.approx(there, abs=0.01 * full.step_ns), name
    late, known = lateness(times.parts, times.work, times.paces), full.lateness
    assert late is not None
    assert known is not None
    assert (late.devices, late.mechanism, late.common) == (
        known.devices, known.mechanism, known.common
    )  # fmt: skip
    found = diagnose_job(digests)
    assert (found.verdict, found.findings[0].ranks) == ("load_imbalance", [1])


def test_a_late_rank_among_real_ones_is_told_with_its_place() -> None:
    found = diagnose_digests([*FOUR, LATE])
    finding = found.findings[0]
    assert (found.verdict, finding.reason, finding.ranks) == ("straggler", "late_input", [2])
    assert (finding.root_cause, finding.where) == ("input_starvation", "dataload")
    assert 26e6 < finding.predicted_step_ns < 30e6  # the healthy ranks' steps take 24 to 30 ms
    share = 1 - finding.predicted_step_ns / found.step_ns.mean
    for end in (finding.prediction_low_ns, finding.prediction_high_ns):
        off = abs(end - finding.predicted_step_ns) / finding.predicted_step_ns
        assert off >= 0.999 * np.hypot(RUN_TO_RUN, OF_THE_GAIN * share)
    assert finding.prediction_high_ns <= found.step_ns.mean
    assert found.fetch[0].rank == 2
    least = min(found.ranks, key=lambda rank: rank.need_ns).rank
    assert least not in [one.rank for one in found.fetch], "it needs nothing beyond its peers"
    late = [row[0] for row in found.heat_map.late_ns]
    assert int(np.argmax(late)) == 2


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_straggler_is_found(family: list[Digest], kind: str) -> None:
    rank = 13
    digests = made(family, Shape(64, "hsdp"), 7, Plant(kind, rank, 0.2))
    found = diagnose_job(digests)
    assert [(f.reason, f.ranks) for f in found.findings if f.reason] == [(kind, [rank])]
    # clocks of machines are off by milliseconds and drift; shared steps are still found
    assert found.job.steps >= 15


@pytest.mark.parametrize("layout", ["ddp", "hsdp", "stages"])
def test_a_healthy_job_raises_no_alarm(family: list[Digest], layout: str) -> None:
    found = diagnose_job(made(family, Shape(64, layout), 3, None))
    assert [f for f in found.findings if f.reason] == []
    assert len(found.roles) == (4 if layout == "stages" else 1)


def test_a_slow_switch_is_one_finding(family: list[Digest]) -> None:
    digests = made(family, Shape(64, "ddp"), 5, None)
    for digest in digests[:16]:  # nodes 0 and 1
        digest.lists["steps"] = dict(digest.lists["steps"])
        moved = digest.ints("steps", "communication_ns") // 2
        digest.lists["steps"]["communication_ns"] = digest.ints("steps", "communication_ns") - moved
        digest.lists["steps"]["compute_ns"] = digest.ints("steps", "compute_ns") + moved
        digest.lists["exposure"] = {
            name: digest.ints("exposure", name) // (1 if name == "start_ns" else 2)
            for name in digest.lists["exposure"]
        }
    nodes = {f"node{n:03d}": {"switch": f"leaf{n // 2}"} for n in range(8)}
    topology = {"schema": "stepscope.topology/1", "nodes": nodes}
    found = diagnose_job(digests, topology=topology)
    late = [f for f in found.findings if f.reason]
    assert [(f.place, len(f.ranks)) for f in late] == [("switch leaf0", 16)]
    with pytest.raises(InputError, match="topology"):
        diagnose_job(digests, topology={"schema": "other"})


def test_what_cannot_be_of_the_job_is_left_out(family: list[Digest]) -> None:
    digests = made(family, Shape(16, "ddp", 8), 1, None)
    other_size = replace(digests[3], facts={**digests[3].facts, "world_size": 99})
    other_day = replace(
        digests[4],
        facts={**digests[4].facts, "origin_epoch_ns": digests[4].facts["origin_epoch_ns"] + 10**14},
    )
    empty = replace(digests[5], lists={**digests[5].lists, "steps": {
        name: [] for name in digests[5].lists["steps"]}})  # fmt: skip
    given = [*digests[:3], digests[0], other_size, other_day, empty, *digests[6:]]
    kept, skipped, _ = of_one_job(given)
    assert [d.rank for d in kept] == [0, 1, 2, *range(6, 16)]
    reasons = " / ".join(one.reason for one in skipped)
    assert all(word in reasons for word in ("99 ranks", "another run", "no steps", "given twice"))
    found = diagnose_job(kept, skipped=skipped)
    assert found.job.missing_ranks == [3, 4, 5]


def test_a_damaged_digest_is_left_out_or_fatal(reader: Any, tmp_path: Path) -> None:
    for path in [*FOUR, LATE]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / f"cut{SUFFIX}").write_bytes(LATE.read_bytes()[:9000])
    done = reader("job", tmp_path, "--format", "json")
    found = json.loads(done.stdout)
    assert (found["verdict"], len(found["job"]["skipped"])) == ("straggler", 1)
    done = reader("job", tmp_path, "--strict", expect=2)
    assert "cannot be read as a digest" in done.stderr
    page = reader("job", tmp_path, "--format", "html").stdout
    assert 'href="#rank-2"' in page
    assert "<script" not in page
    assert "rank 2" in reader("job", tmp_path).stdout
    assert "digest" in reader("digest", LATE, "-o", tmp_path / "out", expect=2).stderr


def test_diagnose_goes_by_digests_where_a_job_has_many_ranks(
    reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests always, captures from a number on; what a job's diagnosis has not is refused."""
    monkeypatch.setattr("stepscope.api.digests.MANY_RANKS", 1)
    paths = [unpack(DATA / "ranks" / f"ddp_imbalance.rank{r}.sqlite.xz") for r in (0, 1)]
    for given in (FOUR, paths):
        asked = [str(path) for path in given]
        done = CliRunner().invoke(cli, ["diagnose", *asked, "--format", "json"])
        assert json.loads(done.stdout) == json.loads(
            reader("job", *given, "--format", "json").stdout
        )
    assert not goes_by_digests(paths[:1])
    done = CliRunner().invoke(cli, ["diagnose", *map(str, paths), "--brief"])
    assert isinstance(done.exception, UsageError)
    assert "without --brief" in str(done.exception)


def test_scores_by_hand() -> None:
    # ten ranks alike but for noise of one, and one that needs ten more in each step
    values = np.array([[1, -1, 1, -1, 1, -1, 1, -1, 0, 0, 10]] * 4, float)
    found = scores(values, np.zeros(11, np.int64))
    assert found.excess[10] == 10
    assert found.score[10] == pytest.approx(10 / 1.4826)
    assert bound(3.0, 1) == pytest.approx(4.5407, abs=1e-3)  # Student's t, 0.99, 3 degrees
    assert np.isnan(scores(values[:, :7], np.zeros(7, np.int64)).score).all()
    need = np.array([[10.0, 11, 30], [10, 12, 10]])
    role = np.zeros(3, np.int64)
    assert step_without(need, role, np.array([2])).tolist() == [11, 12]
    assert step_without(need, role, np.empty(0, np.int64)).tolist() == [30, 12]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("0,1", "0,1"),
        ("0,1,2,3,4", "0..4"),
        ("3,11,19,27", "3..27/8"),
        ("name pg0", "name pg0"),
        ("0,1,2,9", "0,1,2,9"),
    ],
)
def test_ranks_of_communicators_are_shortened(text: str, short: str) -> None:
    assert short_group(text) == short
    if text[0].isdecimal():
        assert group_ranks(short) == tuple(map(int, text.split(",")))


def _dump(sequences: dict[int, str]) -> dict[str, Any]:
    frames = [
        {"name": "all_reduce", "filename": "/x/torch/distributed/c10d.py", "line": 1},
        {"name": "step", "filename": "/job/train.py", "line": 42},
    ]
    return {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": max(sequences)}},
        "entries": [
            {"record_id": n, "pg_id": 0, "process_group": ("0", "default_pg"),
             "collective_seq_id": n, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
             "time_created_ns": 10**18 + n, "state": state, "retired": state == "completed",
             "is_p2p": False, "frames": frames, "duration_ms": None}
            for n, state in sequences.items()
        ],
    }  # fmt: skip


def test_who_never_arrived_is_told_from_flight_recorders(tmp_path: Path) -> None:
    done = {1: "completed", 2: "completed"}
    for rank, record in ((0, done | {3: "started"}), (1, done | {3: "scheduled"}), (2, done)):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        dump = _dump(record)
        if rank == 1:
            path.write_text(json.dumps(dump))
        else:
            path.write_bytes(pickle.dumps(dump, protocol=2 + rank))
        assert looks_like_dump(path)
    found = diagnose_digests([tmp_path])
    assert found.verdict == "hang"
    (stuck,) = found.stuck
    assert (stuck.sequence, stuck.arrived, stuck.never_arrived) == (3, [0, 1], [2])
    assert (stuck.not_recorded, stuck.where) == ([3], "train.py:42")
    whole = [read_dump(path) for path in sorted(tmp_path.iterdir())]
    completed = [replace(dump, entries=dump.entries[:2], enqueued={}) for dump in whole]
    assert stuck_collectives(completed, []) == ([], [])


@pytest.mark.parametrize(("back_end", "stuck"), [("nccl", [3]), ("gloo", [])])
def test_an_operation_that_was_given_up_did_not_complete(
    tmp_path: Path, back_end: str, stuck: list[int]
) -> None:
    """A watchdog that only cleans up retires what timed out; Gloo retires what is over."""
    for rank, states in enumerate([{1: "completed", 3: "scheduled"}] * 2 + [{1: "completed"}]):
        dump = _dump(states)
        for entry in dump["entries"]:
            entry |= {"retired": True, "profiling_name": f"{back_end}:all_reduce"}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    found, _ = stuck_collectives([read_dump(path) for path in sorted(tmp_path.iterdir())], [])
    assert [one.sequence for one in found] == stuck
    assert all(one.never_arrived == [2] for one in found)


@pytest.mark.parametrize("seed", [5, 10])
def test_a_late_rank_costs_no_more_than_it_needs_beyond_its_peers(
    family: list[Digest], seed: int
) -> None:
    """With one reason and with none: the largest part of a mixture is not the whole of it."""
    job = made(family, Shape(16), seed, Plant("slow_host", 5, 0.2))
    found = diagnose_job(job)
    finding = found.findings[0]
    assert finding.ranks == [5]
    assert 0 < finding.time_ns_per_step <= finding.evidence["surplus_ns"]
    # as the table of the ranks has it
    need = {row.rank: row.need_ns for row in found.ranks}
    late = need.pop(5)
    apart = late - statistics.median(need.values())
    assert finding.evidence["surplus_ns"] == pytest.approx(apart, abs=2)


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("it ran",))


def test_a_pickle_that_calls_anything_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": [_Bomb()]}))
    with pytest.raises(InputError, match="not read further"):
        read_dump(path)
    assert capsys.readouterr().out == ""
    deep: Any = ()
    for _ in range(40):
        deep = (deep,)
    for data in (pickle.dumps({"pg_config": deep}), pickle.dumps({"pg_config": 1})[:-3]):
        path.write_bytes(data)
        with pytest.raises(InputError):
            read_dump(path)
