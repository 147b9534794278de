"""The timeline of small traces, counted by hand, and of real ones, checked against SQL."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.build import Build
from tests.support.captures import DATA, unpack
from tests.support.tiles import decode

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.timeline.extract import LINKS, extract, in_page, linked_rows
from stepscope.trace.errors import UsageError


def built(tmp_path: Path) -> Job:
    """Five steps of 100 us: input for 40, then two kernels launched by two threads."""
    b = Build()
    for step in range(5):
        at = step * 100.0
        b.range(at, at + 100, f"step_{step}")
        b.range(at, at + 40, "dataload")
        b.operator(at + 41, at + 48, "aten::mm", input_shapes="[[2, 3]]")
        b.kernel(at + 45, at + 70, call=(at + 42, at + 44), name="sgemm", grid_x=8, block_x=128)
        b.kernel(at + 71, at + 95, call=(at + 50, at + 52), name="nccl_x", stream=9, thread=101)
        b.copy(at + 96, at + 97, call=(at + 90, at + 91))
    b.gpu("NVIDIA Test")
    return Job([b.trace(tmp_path).folder])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return built(tmp_path)


def number(job: Job, title: str, thread: int = -1) -> int:
    return next(
        t.id
        for t in job.timeline.tracks
        if t.title == title and (thread < 0 or t.thread_id == thread)
    )


def test_tracks_are_those_of_the_trace(job: Job) -> None:
    layout = job.timeline.layout()
    assert [(t["group"], t["title"]) for t in layout["tracks"]] == [
        ("GPU 0 · NVIDIA Test", "Steps"),
        ("GPU 0 · NVIDIA Test", "Idle, by cause"),
        ("GPU 0 · NVIDIA Test", "Busy"),
        ("GPU 0 · NVIDIA Test", "Stream 7"),
        ("GPU 0 · NVIDIA Test", "Stream 9"),
        ("Thread 100 · main", "Ranges"),
        ("Thread 100 · main", "Operators"),
        ("Thread 100 · main", "CUDA API"),
        ("Thread 101", "CUDA API"),
    ]
    assert len({t["path"] for t in layout["tracks"]}) == len(layout["tracks"])


def test_a_tile_holds_long_slices_and_columns_of_short_ones(job: Job) -> None:
    stream = number(job, "Stream 7")
    tile = decode(job.timeline.tile([stream], 0, 10_000, 10))
    (row,) = tile["rows"]
    arrays = row["arrays"]
    assert arrays["start"].tolist() == [45_000]  # the copy takes 1 us: less than a column
    assert arrays["end"].tolist() == [70_000]
    assert tile["names"] == {str(arrays["name"][0]): "sgemm"}
    assert arrays["column"].tolist() == [9]
    assert arrays["share"].tolist() == [pytest.approx(0.1)]
    assert arrays["count"].tolist() == [1]
    layout = job.timeline.layout()
    keys = [c["key"] for c in layout["classes"]]
    assert keys[arrays["code"][0]] == "kernel_matmul"
    assert keys[arrays["dominant"][0]] == "copy_htod"


def test_ranges_nest_by_depth(job: Job) -> None:
    tile = decode(job.timeline.tile([number(job, "Ranges")], 0, 1000, 500))
    assert tile["depths"] == {str(number(job, "Ranges")): 2}
    assert [row["arrays"]["start"].tolist() for row in tile["rows"]] == [
        [step * 100_000 for step in range(5)]
    ] * 2


def test_busy_gives_each_moment_to_one_class(job: Job) -> None:
    found = job.views.statistics(0, 100_000, explained=True)
    (device,) = found["devices"]
    assert device["busy"] == {
        "busy_compute": 25_000,
        "busy_communication": 24_000,
        "busy_copy": 1_000,
    }
    assert device["idle"] == 50_000
    assert device["categories"] == {
        "kernel_matmul": 25_000,
        "kernel_communication": 24_000,
        "copy_htod": 1_000,
    }
    assert [(k["name"], k["total"], k["count"]) for k in device["kernels"]] == [
        ("sgemm", 25_000, 1),
        ("nccl_x", 24_000, 1),
        ("[CUDA memcpy HtoD]", 1_000, 1),
    ]


def test_statistics_cut_at_the_window(job: Job) -> None:
    (device,) = job.views.statistics(60_000, 72_000, explained=False)["devices"]
    assert device["busy"] == {"busy_compute": 10_000, "busy_communication": 1_000}
    assert device["idle"] == 1_000
    assert device["idle_by_cause"] == {}


def test_a_row_has_its_facts_and_arrows_both_ways(job: Job) -> None:
    stream, calls = number(job, "Stream 9"), number(job, "CUDA API", 101)
    row = job.views.asker.row(stream, 1)
    assert row["name"] == "nccl_x"
    assert row["same"] == {"count": 5, "number": 2, "total": 120_000}
    assert dict(row["facts"])["stream"] == 9
    (end,) = row["arrows"]["ends"]
    assert (end["track"], end["start"], end["name"]) == (calls, 150_000, "cudaLaunchKernel")
    back = job.views.asker.row(calls, end["row"])
    assert back["arrows"]["forward"]
    assert [(e["track"], e["row"]) for e in back["arrows"]["ends"]] == [(stream, 1)]
    launch = dict(job.views.asker.row(number(job, "Stream 7"), 0)["facts"])
    assert (launch["grid_x"], launch["block_x"]) == (8, 128)
    assert dict(job.views.asker.row(number(job, "Operators"), 0)["facts"])["input_shapes"]


def test_neighbours_of_one_name_and_of_one_row(job: Job) -> None:
    stream = number(job, "Stream 7")
    following = job.views.asker.near(stream, 0, 1, same=True)
    assert following is not None
    assert (following["row"], following["start"]) == (2, 145_000)  # a copy lies between
    assert job.views.asker.near(stream, 0, 1, same=False)["name"] == "[CUDA memcpy HtoD]"  # type: ignore[index]
    assert job.views.asker.near(stream, 0, -1, same=True) is None


def test_search_finds_short_and_full_names(tmp_path: Path) -> None:
    b = Build()
    full = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)"
    for i in range(3):
        b.kernel(i * 10, i * 10 + 5, call=(i * 10 - 2, i * 10 - 1), name=full)
    asker = Job([b.trace(tmp_path).folder]).views.asker
    assert asker.search("at::NATIVE", regex=False)["total"] == 3
    found = asker.search("elementwise.*add|nothing", regex=True)
    assert [(n["count"], n["total"]) for n in found["names"]] == [(3, 15_000)]
    assert [hit["start"] for hit in found["hits"]] == [0, 10_000, 20_000]
    assert asker.search("[", regex=False)["total"] == 3  # the operation stands in brackets
    with pytest.raises(UsageError, match="regular expression"):
        asker.search("[", regex=True)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: s.timeline.tile([99], 0, 1, 1), "no track 99"),
        (lambda s: s.timeline.tile([0], 0, 0, 1), "impossible"),
        (lambda s: s.timeline.tile([0], 0, 1, 10**9), "impossible"),
        (lambda s: s.views.asker.row(3, 10**6), "no row"),
        (lambda s: s.views.asker.row(-1, 0), "no track"),
        (lambda s: s.views.asker.near(3, -1, 1, same=True), "no row"),
    ],
)
def test_impossible_questions_are_refused(
    job: Job, ask: Callable[[Job], Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ask(job)


def test_a_gap_names_the_launch_that_was_late(tmp_path: Path) -> None:
    job = Job([bundled_capture()])
    idle = number(job, "Idle, by cause")
    instances = job.views.instances("input_starvation", [])
    # the typical one first: the larger ones together take less than half, with it half or more
    costs = sorted((one["cost"] for one in instances), reverse=True)
    typical, worst = instances[:2]
    assert [one["typical"] for one in instances[:3]] == [True, False, False]
    assert typical["cost"] == costs[typical["number"] - 1]
    assert (worst["number"], worst["cost"]) == (1, costs[0])
    slices = job.timeline.track(idle).slices
    cause = [job.timeline.names.texts[n] == "input starvation" for n in slices.name]
    lengths = (slices.end - slices.start)[cause]
    longest = max(lengths)
    longer = lengths[lengths > typical["cost"]].sum()
    assert longer < lengths.sum() / 2 <= longer + typical["cost"]
    assert typical["of"] == len(lengths)
    assert worst["end"] - worst["begin"] == worst["cost"] == longest
    assert [place["name"] for place in worst["responsible"]] == ["dataload"]
    (row,) = [i for i in range(len(slices)) if slices.start[i] == worst["begin"] and cause[i]]
    found = job.views.asker.row(idle, row)
    assert dict(found["facts"])["launching_call"]
    tables = job.timeline.tracks
    assert (found["arrows"]["message"], found["arrows"]["forward"]) == ("Ended by", True)
    (ended,) = found["arrows"]["ends"]
    assert tables[ended["track"]].table == "gpu_op"
    assert ended["start"] >= worst["end"]  # the rest of the gap has another cause
    (link,) = found["links"]
    (call,) = link["ends"]
    assert tables[call["track"]].table == "api_call"
    assert worst["begin"] < call["start"] < ended["start"]


def test_a_late_rank_is_shown_with_what_kept_it_busy_and_who_waits(tmp_path: Path) -> None:
    packed = sorted((DATA.parent / "ranks").glob("*.xz"))
    job = Job([unpack(path, tmp_path) for path in packed])
    tracks = job.timeline.tracks
    found = job.views.instances("load_imbalance", [1])
    for instance in found:
        (busy,) = instance["responsible"]
        (waits,) = instance["waiting"]
        assert (tracks[busy["track"]].rank, tracks[waits["track"]].rank) == (1, 0)
        assert tracks[busy["track"]].stream >= 0
        assert not busy["name"].startswith("nccl")
        assert waits["name"].startswith("nccl")
        assert waits["start"] <= instance["begin"] + 1_000
        assert waits["end"] >= instance["end"]
        assert busy["start"] < instance["end"]
        assert busy["end"] > instance["begin"]


def test_every_pixel_says_what_sql_says() -> None:
    """The busy share of each column of a real trace, at several resolutions, exactly."""
    job = Job([bundled_capture()])
    timeline = job.timeline
    stream = number(job, "Stream 7")
    for bucket in (1 << 14, 1 << 17, 1 << 20):
        begin = 30_000_000
        tile = decode(timeline.tile([stream], begin, bucket, 200))
        answer = job.query(
            f"""
            WITH c AS (SELECT {begin} + i * {bucket} AS low, {begin} + (i + 1) * {bucket} AS high, i
                       FROM range(200) t(i))
            SELECT i, sum(least(end_ns, high) - greatest(start_ns, low))::DOUBLE AS busy
            FROM c JOIN gpu_op ON start_ns < high AND end_ns > low GROUP BY i ORDER BY i
            """
        ).to_pydict()
        expected = dict(zip(answer["i"], answer["busy"], strict=True))
        (row,) = tile["rows"]
        arrays = row["arrays"]
        got = dict(zip(arrays["column"].tolist(), (arrays["share"] * bucket).tolist(), strict=True))
        for start, end in zip(arrays["start"].tolist(), arrays["end"].tolist(), strict=True):
            first = max(0, int((start - begin) // bucket))
            last = min(199, int((end - 1 - begin) // bucket))
            for i in range(first, last + 1):
                low = begin + i * bucket
                got[i] = got.get(i, 0.0) + min(end, low + bucket) - max(start, low)
        for i in range(200):
            assert got.get(i, 0.0) == pytest.approx(expected.get(i, 0.0), rel=1e-5, abs=1.0)


def test_ranks_stand_on_one_clock(tmp_path: Path) -> None:
    packed = sorted((DATA.parent / "ranks").glob("*.xz"))
    captures = [unpack(path) for path in packed]
    job = Job(captures)
    offsets = job.timeline.offsets_ns
    assert len(offsets) == len(job.ranks) > 1
    waits = job.query("SELECT DISTINCT rank, clock_offset_ns FROM collective_wait").to_pydict()
    reply = dict(zip(waits["rank"], waits["clock_offset_ns"], strict=True))
    assert {m.rank: o for m, o in zip(job.ranks, offsets, strict=True)} == reply
    groups = {t["group"] for t in job.timeline.layout()["tracks"]}
    assert {group[:6] for group in groups} == {f"Rank {m.rank}" for m in job.ranks}


def test_counters_show_their_extremes_and_stand_with_their_device(tmp_path: Path) -> None:
    b = Build()
    b.kernel(10, 20, call=(1, 2))
    b._add("device", process_id=100, device=0, physical_id=3, name="NVIDIA Test")
    for time, value in ((0, 5.0), (1, 9.0), (2, 1.0), (15, 4.0)):
        b._add("metric_sample", time_ns=time * 1000, device=3, metric="SM Active", value=value)
    b._add("metric_sample", time_ns=0, device=None, metric="CPU load", value=1.0)
    job = Job([b.trace(tmp_path).folder])
    groups = {t["title"]: t["group"] for t in job.timeline.layout()["tracks"]}
    assert groups["SM Active"] == groups["Stream 7"] == "GPU 0 · NVIDIA Test"
    assert groups["CPU load (CPU)"] == "CPU counters"
    tile = decode(job.timeline.tile([number(job, "SM Active")], 1000, 4000, 5))
    arrays = tile["rows"][0]["arrays"]
    assert arrays["column"].tolist() == [0, 3]
    assert arrays["low"].tolist() == [1.0, 4.0]
    assert arrays["high"].tolist() == [9.0, 4.0]
    assert arrays["last"].tolist() == [1.0, 4.0]
    assert arrays["before"].tolist() == [5.0]
    assert arrays["limits"].tolist() == [1.0, 9.0]


def test_a_window_by_itself_holds_the_sample_before_it(tmp_path: Path) -> None:
    b = Build()
    b.kernel(10, 90, call=(1, 2))
    for time, value in ((0, 5.0), (20, 6.0), (80, 7.0), (85, 8.0)):
        b._add("metric_sample", time_ns=time * 1000, device=0, metric="power_watt", value=value)
    timeline = Job([b.trace(tmp_path).folder]).timeline
    found = extract(timeline, 50_000, 82_000)["tracks"]
    (samples,) = [track for track in found.values() if "value" in track]
    values = np.frombuffer(base64.b64decode(samples["value"]), "<f8")
    assert values.tolist() == [6.0, 7.0]


def test_calls_of_a_range_are_cut_and_counted(job: Job) -> None:
    found = job.views.statistics(43_000, 91_000, explained=False)["threads"]
    assert isinstance(found, list)
    # of the main thread: the end of the first launch, and the copy's call
    assert {t["title"]: t["kinds"] for t in found} == {
        "Thread 100 · main": {"api_launch": 1000, "api_copy": 1000},
        "Thread 101": {"api_launch": 2000},
    }
    assert {t["title"]: t["calls"] for t in found} == {"Thread 100 · main": 1, "Thread 101": 1}


def test_the_links_of_a_page_are_those_that_are_asked_row_by_row() -> None:
    """A page without a server holds a table of them, numbered by the rows of its window."""
    job = Job([bundled_capture()])
    timeline = job.timeline
    begin, end = 100_000_000, 200_000_000
    rows_of = {
        track.id: np.flatnonzero(in_page(track.slices, begin, end)).tolist()
        for track in map(timeline.track, range(len(timeline.tracks)))
        if track.kind != "counter"
    }
    ends: dict[tuple[str, bool, int, int], list[tuple[int, int]]] = {}
    for kind, t0, r0, t1, r1 in linked_rows(timeline, begin, end).reshape(-1, 5).tolist():
        one, other = (t0, rows_of[t0][r0]), (t1, rows_of[t1][r1])
        ends.setdefault((LINKS[kind], True, *one), []).append(other)
        ends.setdefault((LINKS[kind], False, *other), []).append(one)
    output = {
        "Launched": ("launch", True),
        "Launched by": ("launch", False),
        "Ended by": ("end_of_gap", True),
        "Launch of what ended it": ("launch_after_gap", False),
        "Forward operator": ("gradient", False),
        "Backward operators": ("gradient", True),
    }
    compared = set()
    for track, rows in rows_of.items():
        for row in rows[:: max(1, len(rows) // 40)]:
            asked = job.views.asker.row(track, row)
            for links in (asked["arrows"], *asked["links"]):
                shown = {(end["track"], end["row"]) for end in links["ends"]}
                inside = {place for place in shown if place[1] in rows_of[place[0]]}
                kind = (*output[links["message"]], track, row)
                assert set(ends.get(kind, [])) == inside, (kind, links)
                if inside:
                    compared.add(links["message"])
    assert compared >= {"Launched", "Launched by", "Ended by", "Launch of what ended it"}
