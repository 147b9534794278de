"""Tables of a window: the figures of ``stepscope kernels`` and ``operators``, and by hand."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.kernels.statements import GROUPINGS
from stepscope.timeline.tables import Window, Work
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import Frame


@pytest.fixture(scope="module")
def job() -> Job:
    return Job([bundled_capture()])


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    columns = found["columns"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_kernels_of_the_steady_steps_are_those_of_the_command(job: Job) -> None:
    found = job.views.panels.table("kernel", None, None)
    assert found["keys"] == ["kernel", "category", "math"]
    expected = job.kernels.to_pylist()
    got = rows(found)
    assert len(got) == len(expected) > 20
    for row, answer in zip(got, expected, strict=True):
        assert row["names"] == [answer["kernel"], answer["category"] or "", answer["math"] or ""]
        assert (row["count"], row["total_ns"]) == (answer["calls"], answer["time_ns"])
        assert row["share"] == pytest.approx(answer["share_of_step"], abs=5e-5)
        assert row["median_ns"] == pytest.approx(answer["median_ns"], abs=1)
        per_step = row["total_ns"] / found["steps"]
        assert per_step == pytest.approx(answer["time_ns_per_step"], abs=1)
        assert row["count"] / found["steps"] == pytest.approx(answer["calls_per_step"], abs=0.006)


@pytest.mark.parametrize("by", list(GROUPINGS))
def test_operators_of_the_steady_steps_are_those_of_the_command(job: Job, by: str) -> None:
    keys = GROUPINGS[by].keys
    expected = {
        tuple(answer[key] or "" for key in keys): (answer["kernels"], answer["time_ns"])
        for answer in job.operators(by).to_pylist()
    }
    got = rows(job.views.panels.table(by, None, None))
    assert {tuple(r["names"]): (r["count"], r["total_ns"]) for r in got} == expected


def test_any_window_is_what_sql_says_of_it(job: Job) -> None:
    begin, end = 50_000_000, 130_000_000
    expected = job.query(
        f"""SELECT kernel, count(*) AS n, sum(end_ns - start_ns)::BIGINT AS ns,
        quantile_cont(end_ns - start_ns, 0.95) AS p95
        FROM kernel_category WHERE start_ns >= {begin} AND start_ns < {end}
        GROUP BY 1, category, math"""
    ).to_pylist()
    found = job.views.panels.table("kernel", begin, end)
    got = rows(found)
    assert sorted((r["names"][0], r["count"], r["total_ns"], round(r["p95_ns"])) for r in got) == (
        sorted((e["kernel"], e["n"], e["ns"], round(e["p95"])) for e in expected)
    )
    assert found["wall_ns"] == end - begin
    steps = job.query(
        f"SELECT count(*) AS n FROM step WHERE start_ns >= {begin} AND start_ns < {end}"
    )
    assert found["steps"] == steps["n"][0].as_py() > 0


def test_instances_are_drawn_where_they_are(job: Job) -> None:
    begin, end = 50_000_000, 130_000_000
    for row in rows(job.views.panels.table("kernel", begin, end))[:3]:
        found = job.views.panels.instances("kernel", row["group"], begin, end)
        assert found["total"] == row["count"] == len(found["start"])
        assert found["start"] == sorted(found["start"])
        ns = sum(e - s for s, e in zip(found["start"], found["end"], strict=True))
        assert ns == row["total_ns"]
        for i in (0, -1):
            place = job.views.asker.row(found["track"][i], found["row"][i])
            assert (place["start"], place["end"]) == (found["start"][i], found["end"][i])
            assert place["depth"] == found["depth"][i]
            assert place["name"] == row["names"][0]


def test_wrong_questions_are_refused(job: Job) -> None:
    with pytest.raises(UsageError, match="no table by"):
        job.views.panels.table("x" * 9999, None, None)
    with pytest.raises(UsageError, match="no table by 'x'; choose kernel, operator"):
        job.operators("x")
    with pytest.raises(UsageError, match="no group"):
        job.views.panels.instances("kernel", 99_999, None, None)
    with pytest.raises(UsageError, match="empty"):
        job.views.panels.table("kernel", 5, 5)


def test_ranks_count_each_on_its_clock(tmp_path: Path) -> None:
    folders = []
    for rank in range(2):
        b = Build()
        for step in range(4):
            at = step * 100.0 + 1000 * rank
            b.range(at, at + 95, f"step_{step}")
            b.kernel(at + 20, at + 80, call=(at + 5, at + 10))
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        folders.append(b.trace(folder, rank=rank, origin_epoch_ns=1000 - 1_000_000 * rank).folder)
    job = Job(folders)
    begin, end = job.timeline.begin_ns, job.timeline.end_ns
    found = job.views.panels.table("kernel", begin, end)
    assert rows(found)[0]["count"] == 8
    assert found["wall_ns"] == 2 * (end - begin)
    steady = job.views.panels.table("kernel", None, None)
    assert rows(steady)[0]["count"] == job.kernels.to_pylist()[0]["calls"]
    instances = job.views.panels.instances("kernel", rows(found)[0]["group"], begin, end)
    assert len(set(instances["track"])) == 2


def many(n: int) -> Work:
    rng = np.random.default_rng(3)
    start = np.sort(rng.integers(0, 10**10, n))
    names = [f"kernel {i}" for i in range(800)]
    code = rng.integers(0, len(names), n).astype(np.int32)
    frame = Frame(
        {
            "start_ns": start,
            "end_ns": start + rng.integers(100, 10_000, n),
            **dict.fromkeys(("kernel", "category", "math"), code),
        },
        dict.fromkeys(("kernel", "category", "math"), names),
    )
    window = Window(np.ones(n, bool), 10**10, 100, 0, 10**10)
    return Work(frame, start, window)


def test_a_million_operations_answer_at_once() -> None:
    work = many(1_000_000)
    begun = time.process_time()
    floor = np.lexsort((work.ns, work.categories["kernel"]))
    sorting = time.process_time() - begun
    assert len(floor) == 1_000_000
    work.table("kernel", work.steady)
    begun = time.process_time()
    for begin in (0, 10**9, 4 * 10**9):
        chosen = (work.start_ns >= begin) & (work.start_ns < begin + 5 * 10**9)
        work.table("kernel", Window(chosen, 1, 1, begin, begin + 5 * 10**9))
    each = (time.process_time() - begun) / 3
    # a question costs less than sorting once, which it would if nothing were kept
    assert each < max(0.2, 1.5 * sorting)


@pytest.mark.parametrize("most", [1, 5, 4000, 1 << 40])
def test_groups_are_numbered_in_the_order_of_their_keys(most: int) -> None:
    from stepscope.timeline.tables import _factored

    for size in (0, 1, 500):
        key = np.random.default_rng(size).integers(0, most, size)
        distinct, code = _factored(key)
        expected, inverse = np.unique(key, return_inverse=True)
        assert distinct.tolist() == expected.tolist()
        assert code.tolist() == inverse.reshape(-1).tolist()
