"""What somebody sees first, and what a finding shows: small captures and jobs, counted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.browser import HEIGHT, Shown, browsing
from tests.server.served import Served, serving
from tests.support.build import Build
from tests.support.captures import DATA, unpack

RANKS = 4
LATE = 2
STEPS = 12
STEP_US = 10_000.0
METRICS = 12
MARK = (0xE8, 0x11, 0x2D)
"""Colour of what a finding points at."""


def counters(b: Build, devices: int, end_us: float) -> None:
    """Of each device twelve counters, of which two change."""
    for device in range(devices):
        for metric in range(METRICS):
            for number, at in enumerate((0.0, end_us * 0.9)):
                value = 40.0 + (number if metric < 2 else 0)
                b._add(
                    "metric_sample",
                    time_ns=round(at * 1000),
                    device=device,
                    metric=f"metric_{metric:02}_percent",
                    value=value,
                )


def threads(b: Build, count: int, end_us: float) -> None:
    """Threads of which only states are known."""
    for number in range(count):
        b._add(
            "thread_state",
            process_id=100,
            thread_id=500 + number,
            start_ns=0,
            end_ns=round(end_us * 1000),
            state="sleeping",
        )


def rank(folder: Path, number: int) -> Path:
    """Twelve steps of 10 ms; the late rank waits 5 ms for input, the others wait for it."""
    b = Build()
    for step in range(STEPS):
        at = step * STEP_US
        b.range(at, at + STEP_US, f"step_{step}")
        late = 5_000.0 if number == LATE else 0.0
        b.range(at, at + late + 100, "dataload")
        b.kernel(
            at + late + 200, at + late + 3_200, call=(at + late + 110, at + late + 120),
            name="sgemm",
        )  # fmt: skip
        b.kernel(
            at + late + 3_250, at + 9_800, call=(at + late + 130, at + late + 140), stream=20,
            name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        )  # fmt: skip
    counters(b, RANKS, STEPS * STEP_US)
    threads(b, 10, STEPS * STEP_US)
    b.gpu("NVIDIA Test")
    target = folder / f"rank{number}"
    target.mkdir()
    counted = {"launched_before": 64 + number} if number < 2 else {}
    return b.trace(
        target, counted=counted, rank=number, world_size=RANKS, rank_source="environment RANK"
    ).folder


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("job")
    with serving(*[rank(folder, number) for number in range(RANKS)]) as found:
        yield found


@pytest.fixture(scope="module")
def imbalance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two ranks under Nsight Systems; rank 1 computes for longer."""
    folder = tmp_path_factory.mktemp("imbalance")
    packed = sorted((DATA.parent / "ranks").glob("*.xz"))
    with serving(*[unpack(path, folder) for path in packed]) as found:
        yield found


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    b = Build()
    for step in range(STEPS):
        at = step * STEP_US
        b.range(at, at + STEP_US, f"step_{step}")
        # input for 1 ms, in one step for 8, in the next for 3
        wait = {2: 8_000.0, 3: 3_000.0}.get(step, 1_000.0)
        b.range(at, at + wait, "dataload")
        b.kernel(at + wait + 20, at + 9_900, call=(at + wait + 1, at + wait + 9), name="sgemm")
    counters(b, 1, STEPS * STEP_US)
    threads(b, 10, STEPS * STEP_US)
    b.gpu("NVIDIA Test")
    with serving(b.trace(tmp_path_factory.mktemp("single")).folder) as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with browsing(browser) as found:
        yield found
        assert found.errors == []


def opened(page: Any, served: Served, fragment: str = "") -> Shown:
    return Shown(page, served.address + fragment)


def headings(page: Any) -> list[str]:
    found: list[str] = page.locator(".group .title").all_text_contents()
    return found


def boxes(page: Any, name: str) -> list[dict[str, float]]:
    tracks = page.locator(".track", has_text=name)
    return [tracks.nth(i).bounding_box() for i in range(tracks.count())]


def test_a_job_opens_with_idle_and_busy_rows_of_all_ranks_in_view(page: Any, job: Served) -> None:
    shown = opened(page, job)
    for name in ("Idle, by cause", "Busy"):
        found = boxes(page, name)
        assert len(found) == RANKS
        assert all(box["y"] > 0 and box["y"] + box["height"] < HEIGHT - 60 for box in found)
    assert "▸ Rank 0 · Counters" in headings(page)
    assert "▸ Rank 3 · 11 threads" in headings(page)
    assert page.locator(".track", has_text="metric_").count() == 0
    assert page.locator(".track", has_text="Thread state").count() == 0
    assert float(page.locator(".gutter .rows").evaluate("e => e.clientHeight")) < HEIGHT
    shown.settle()


def test_rows_of_a_job_are_shortened_where_the_window_is_low(page: Any, job: Served) -> None:
    page.set_viewport_size({"width": 1500, "height": 560})
    try:
        shown = opened(page, job)
        assert page.locator(".track", has_text="Stream").count() == 0
        for name in ("Idle, by cause", "Busy"):
            assert all(box["y"] + box["height"] < 500 for box in boxes(page, name))
        page.locator(".group .title", has_text="Rank 1 · GPU").click()
        shown.settle()
        assert page.locator(".track", has_text="Stream").count() == 2
        link = page.url
        opened(page, job, "#" + link.partition("#")[2])
        assert page.locator(".track", has_text="Stream").count() == 2
    finally:
        page.set_viewport_size({"width": 1500, "height": HEIGHT})


def test_a_narrow_window_holds_the_whole_page(page: Any, job: Served) -> None:
    page.set_viewport_size({"width": 800, "height": HEIGHT})
    try:
        opened(page, job)
        # ranks 0 and 1 have 64 and 65: what stands in the footer is of all captures, as elsewhere
        footer = page.locator("footer").inner_text()
        assert "notice: 129 x " in footer
        assert " in 2 captures" in footer
        assert page.evaluate("document.documentElement.scrollWidth") == 800
        aside = page.locator("aside").bounding_box()
        assert aside["x"] + aside["width"] == 800
        assert page.locator(".gutter .ruler").inner_text() == "Steps of rank 0"
        page.locator("aside summary", has_text="Notes").click()
        assert "129 x " in page.locator("aside").inner_text()
    finally:
        page.set_viewport_size({"width": 1500, "height": HEIGHT})


def test_the_steps_of_a_single_rank_need_no_rank(page: Any, single: Served) -> None:
    opened(page, single)
    assert page.locator(".gutter .ruler").inner_text() == ""
    assert f"mean of {STEPS} steps" in page.locator("[aria-label='Step budget']").inner_text()


def test_a_late_rank_is_shown_with_those_who_wait(page: Any, imbalance: Served) -> None:
    shown = opened(page, imbalance)
    finding = page.locator("button.finding[data-cause=load_imbalance]")
    finding.click()
    shown.settle()
    assert "rank 1 is late: " in page.locator("footer").inner_text()
    assert "(typical, " in page.locator("footer").inner_text()
    assert "This finding" not in "".join(headings(page))  # all is in view where it stands
    canvas = shown.canvas()
    marked = []
    for track in [*boxes(page, "Stream 7"), *boxes(page, "Stream 18"), *boxes(page, "Stream 20")]:
        assert 0 < track["y"] < HEIGHT - 60
        drawn = shown.colours(canvas["x"], track["y"], canvas["width"], track["height"])
        marked.append(MARK in drawn)
    assert sum(marked) >= 2  # what kept the late rank busy, and the kernel that waits


def test_what_a_finding_shows_is_gathered_where_it_is_hidden(page: Any, imbalance: Served) -> None:
    shown = opened(page, imbalance)
    box = page.locator("input[aria-label='Filter tracks by regular expression']")
    box.fill("Rank 0.*Busy")
    page.keyboard.press("Enter")
    shown.settle()
    page.locator("button.finding[data-cause=load_imbalance]").click()
    shown.settle()
    assert headings(page)[0] == "▾ This finding"
    on_top = page.locator(".track .title").all_text_contents()[:3]
    assert any(title.startswith("Rank 1 · Stream") for title in on_top)
    assert any(title.startswith("Rank 0 · Stream") for title in on_top)
    # and the filter, which the box shows, still holds
    assert box.input_value() == "Rank 0.*Busy"
    assert page.locator(".track").count() == 4
    page.locator("canvas.rows").focus()
    shown.press("Escape")
    assert page.locator(".track").count() == 1


def test_a_filter_that_hides_what_is_selected_goes_from_the_box_too(page: Any, job: Served) -> None:
    shown = opened(page, job)
    box = page.locator("input[aria-label='Filter tracks by regular expression']")
    box.fill("Busy")
    page.keyboard.press("Enter")
    shown.press("/")
    page.keyboard.type("sgemm")
    shown.press("Enter")
    assert box.input_value() == ""
    page.wait_for_function("!location.hash.includes('filter=')")
    assert page.locator(".track", has_text="Stream 7").count() == RANKS


def test_a_filter_finds_folded_tracks_and_leaves_them_folded(page: Any, job: Served) -> None:
    shown = opened(page, job)
    before = headings(page)
    box = page.locator("input[aria-label='Filter tracks by regular expression']")
    box.fill("metric_03")
    shown.settle()
    assert page.locator(".track").count() == RANKS * RANKS
    box.press("Escape")
    shown.settle()
    assert headings(page) == before


def test_more_than_two_devices_share_one_legend(page: Any, job: Served) -> None:
    opened(page, job)
    budget = page.locator("section[aria-label='Step budget']")
    assert "Mean of the 4 GPUs" in budget.inner_text()
    assert "exposed communication" in budget.inner_text()
    assert budget.locator(".bar:not(.predicted)").count() == RANKS


@pytest.mark.parametrize("view", ["timeline", "steps"])
def test_views_show_the_legend(page: Any, job: Served, view: str) -> None:
    shown = opened(page, job)
    if view == "steps":
        shown.press("v")
    legend = page.locator("details.colours >> visible=true")
    legend.locator("summary").click()
    text = legend.inner_text()
    for message in ("synchronisation: host sync", "optimizer", "input starvation", "straggler"):
        assert message in text
    if view == "steps":
        shown.press("v")


def test_an_own_capture_opens_on_its_device(page: Any, single: Served) -> None:
    shown = opened(page, single)
    assert headings(page) == [
        "▾ GPU 0 · NVIDIA Test",
        "▸ Counters",
        "▾ Thread 100 · main",
        "▸ 10 other threads",
    ]
    page.locator("button[data-stop='group Counters']").click()
    shown.settle()
    heights = sorted(box["height"] for box in boxes(page, "metric_"))
    assert len(heights) == METRICS
    assert heights[: METRICS - 2] == [19] * (METRICS - 2)  # those that never change
    assert heights[-2:] == [40, 40]
    assert "open=Counters" in page.url


def test_a_counter_holds_its_level_where_no_sample_is_near(page: Any, single: Served) -> None:
    # 40 from 0 on, 41 from 54 ms on: in between, far from both, the curve is level
    shown = opened(page, single, "#t=20000000-20001000&open=Counters")
    box = boxes(page, "metric_00")[0]
    canvas = shown.canvas()
    for share in (0.3, 0.6, 0.98):
        x = canvas["x"] + share * canvas["width"]
        column = shown.colours(x, box["y"] + 8, 3, 26)
        assert (255, 255, 255) not in column, share  # filled from the ground up to the level


def test_a_gap_says_what_ended_it_and_arrows_run_forward(page: Any, single: Served) -> None:
    shown = opened(page, single)
    middle = 2 * STEP_US * 1000 + 4e6
    page.mouse.click(shown.x(middle), shown.track("Idle, by cause"))
    shown.settle()
    panel = page.locator("section[aria-label=Selection]").inner_text()
    assert "Ended by" in panel
    assert "Launched by" not in panel
    assert "Launch of what ended it" in panel
    shown.press("e")
    assert "sgemm" in page.locator("section[aria-label=Selection] p.name").first.inner_text()


def test_names_stand_beside_the_middle_of_their_row(page: Any, single: Served) -> None:
    opened(page, single)
    for name in ("Busy", "Stream 7", "CUDA API"):
        track = boxes(page, name)[0]
        title = page.locator(".track .title", has_text=name).first.bounding_box()
        row = track["height"] - 3  # as high as it is drawn, and the gap to the next track
        assert row > 20  # grown, because there is room
        assert abs(title["y"] + title["height"] / 2 - (track["y"] + row / 2)) <= 1.5


def test_one_panel_after_the_other_by_keyboard(page: Any, single: Served) -> None:
    shown = opened(page, single)
    shown.press("k")
    shown.press("o")
    tab = page.locator("[role=tab][aria-selected=true]")
    assert tab.inner_text() == "Operators"
    boxes_ = page.locator(".drawer input[type=search]")
    assert all(boxes_.nth(i).input_value() == "" for i in range(boxes_.count()))
    shown.press("k")
    shown.settle()
    shown.press("ArrowDown")
    assert page.evaluate("document.activeElement.tagName") == "TR"
    shown.press("Escape")


def test_long_names_do_not_widen_the_panel(page: Any, job: Served) -> None:
    opened(page, job)
    for selector in ("main > aside",):
        wide = page.locator(selector).evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide <= 0
