"""The page of a comparison: both typical steps on one scale, work and idle time by cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.captures import DATA, unpack

from stepscope.api.runs import Pair
from stepscope.compare.stored import read_baseline, write_baseline
from stepscope.gaps.idle import CAUSES as IDS
from stepscope.render.compare_html import compare_html


@pytest.fixture(scope="module")
def pair() -> Pair:
    names = ("gpt1024_sync_item", "gpt1024_healthy")
    return Pair(*(str(unpack(DATA / "nsys" / f"{n}.sqlite.xz")) for n in names))


def test_idle_time_of_the_typical_step_is_that_of_the_diagnosis(pair: Pair) -> None:
    device = pair.jobs["before"].views.aligned.of(0)
    e, step = device.explanation, device.median
    begin, end = int(e.bounds_ns[step]), int(e.bounds_ns[step + 1])
    answer = {
        (int(a) - begin, int(b) - begin, IDS[c])
        for a, b, c in zip(
            *(e.gaps.segments[k].tolist() for k in ("start_ns", "end_ns", "cause")), strict=True
        )
        if begin <= a and b <= end
    }
    idle = pair.comparison.runs[0].idle
    assert len(idle) > 10
    assert set(idle[1:-1]) <= answer
    left_out = [b - a for a, b, c in answer - set(idle)]
    assert max(left_out) <= (end - begin) // 600


def test_the_page_draws_causes_of_both_steps_without_asking_anybody(pair: Pair) -> None:
    page = compare_html(pair.comparison)
    assert page.count("<title>idle: host_sync</title>") == 1
    assert '<pattern id="host_sync"' in page
    assert "idle: host sync" in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {f"#{cause}" for cause in IDS}
    assert "<script" not in page
    assert "src=" not in page
    assert "href" not in page


def test_baselines_hold_no_pictures(pair: Pair, tmp_path: Path) -> None:
    target = tmp_path / "baseline.json"
    write_baseline(target, pair.comparison.runs, "0")
    assert [(run.timeline, run.idle) for run in read_baseline(target).runs] == [([], [])] * 2
