"""All steps side by side in a real browser: what a person sees, chooses and opens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.server.browser import browsing, load, settle
from tests.server.served import Served, serving
from tests.server.test_browser import HOSTILE, hostile, is_harmless
from tests.support.build import Build

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture

STARVED = (0xD5, 0x5E, 0x00)
COMPUTE = (0x00, 0x72, 0xB2)
ROW = 40
"""Pixels of a row: so high are the rows of few steps."""


class Steps:
    """The step view of a page."""

    def __init__(self, page: Any, address: str, rest: str = "#view=steps") -> None:
        self.page = page
        load(page, address + rest)

    def settle(self) -> None:
        settle(self.page)

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)
        self.settle()

    def chosen(self) -> str:
        return str(self.page.locator("section[aria-label='Selected step']").inner_text())

    def choose(self, label: str, text: str) -> None:
        self.page.locator(f"select[aria-label='{label}']").select_option(label=text)
        self.settle()

    def box(self) -> dict[str, float]:
        found: dict[str, float] = self.page.locator("canvas.steprows").bounding_box()
        return found

    def row(self, number: int) -> float:
        """Middle of a row, in pixels from the top; rows are as high as they get."""
        return self.box()["y"] + 24 + ROW * number + ROW / 2

    def picture(self) -> set[tuple[int, ...]]:
        from tests.server.browser import pixels

        box = self.box()
        clip = {"x": box["x"] + 74, "y": box["y"] + 24, "width": 700, "height": ROW}
        return set(pixels(self.page.screenshot(clip=clip)))

    def link(self) -> dict[str, str]:
        settle(self.page)
        return dict(re.findall(r"[#&](\w+)=([^&]*)", self.page.url))


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with browsing(browser) as found:
        yield found
        assert found.errors == []


@pytest.fixture
def steps(served: Served, page: Any) -> Steps:
    return Steps(page, served.address)


@pytest.fixture(scope="module")
def table() -> list[dict[str, Any]]:
    return list(Job([bundled_capture()]).steps.to_pylist())


def milliseconds(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms"


def test_the_view_shows_work_and_causes_of_every_step(steps: Steps) -> None:
    text = steps.page.locator("aside[aria-label='Step figures']").inner_text()
    assert text.startswith("12 steps · Rank 0 · GPU 0")
    assert {STARVED, COMPUTE} <= steps.picture()
    assert "idle: input starvation" in text
    assert "Outlier steps (0)" in text


def test_keys_choose_steps_and_the_figures_are_those_of_the_table(
    steps: Steps, table: list[dict[str, Any]]
) -> None:
    for row in table[:3]:
        steps.press("ArrowDown")
        text = steps.chosen()
        assert text.startswith(f"Step {row['step']}\n")
        assert milliseconds(row["wall_ns"]) in text
        assert re.search(rf"compute\s+{re.escape(milliseconds(row['compute_ns']))}", text)
    steps.press("End")
    assert steps.chosen().startswith(f"Step {len(table) - 1}\n")
    steps.press("o")  # the longest first: the last row is now the shortest
    steps.press("End")
    shortest = max(table, key=lambda row: (-row["wall_ns"], row["step"]))
    assert steps.chosen().startswith(f"Step {shortest['step']}\n")
    steps.press("Home")
    longest = max(table, key=lambda row: row["wall_ns"])
    assert steps.chosen().startswith(f"Step {longest['step']}\n")


def test_home_and_end_need_no_selection(steps: Steps, table: list[dict[str, Any]]) -> None:
    steps.press("End")
    assert steps.chosen().startswith(f"Step {len(table) - 1}\n")
    steps.press("Home")
    assert steps.chosen().startswith("Step 0\n")
    steps.press("ArrowUp")
    assert steps.chosen().startswith("Step 0\n")


def test_thousands_of_steps_are_rows_of_several(tmp_path: Path, page: Any) -> None:
    b = Build()
    for i in range(3000):
        at = 100.0 * i
        b.range(at, at + 99, f"step {i}")
        b.kernel(at + 10, at + (90 if i != 1500 else 95), call=(at + 1, at + 2))
    with serving(b.trace(tmp_path).folder) as served:
        steps = Steps(page, served.address)
        box = steps.box()
        page.mouse.move(box["x"] + 200, box["y"] + 24 + 100)
        steps.settle()
        first = re.match(r"steps (\d+)–(\d+), ", page.locator(".steps .tip").inner_text())
        assert first
        assert int(first[2]) - int(first[1]) in (3, 4)
        assert COMPUTE in steps.picture()
        for _ in range(4):
            steps.press("+")
        page.mouse.move(box["x"] + 200, box["y"] + 24 + 100)
        steps.settle()
        assert re.match(r"step \d+, ", page.locator(".steps .tip").inner_text())
        steps.press("End")
        assert steps.chosen().startswith("Step 2999\n")
        scrolled = page.locator(".steps .scroll").evaluate("e => e.scrollTop")
        assert scrolled > 1000


def test_the_median_is_marked_and_reached(steps: Steps, table: list[dict[str, Any]]) -> None:
    steady = sorted((row["wall_ns"], row["step"]) for row in table if row["steady"])
    median = steady[(len(steady) - 1) // 2]
    assert f"{milliseconds(median[0])}, step {median[1]}" in (
        steps.page.locator("aside[aria-label='Step figures']").inner_text()
    )
    steps.press("m")
    assert steps.chosen().startswith(f"Step {median[1]}\n")
    assert "+0 ns to the median" in steps.chosen()


def test_pointing_tells_what_is_there_and_a_click_chooses(
    steps: Steps, table: list[dict[str, Any]]
) -> None:
    box = steps.box()
    steps.page.mouse.move(box["x"] + 120, steps.row(4))
    steps.settle()
    tip = steps.page.locator(".steps .tip").inner_text()
    assert tip.startswith(f"step 4, {milliseconds(table[4]['wall_ns'])}")
    assert "idle by input starvation 100 %" in tip
    steps.page.mouse.move(box["x"] + box["width"] - 60, steps.row(4))
    steps.settle()
    assert f"compute {milliseconds(table[4]['compute_ns'])}" in (
        steps.page.locator(".steps .tip").inner_text()
    )
    steps.page.keyboard.down("Shift")
    steps.page.mouse.click(box["x"] + 120, steps.row(7))
    steps.page.keyboard.up("Shift")
    steps.settle()
    assert steps.chosen().startswith("Step 7\n")


def test_a_click_opens_the_step_in_the_timeline(steps: Steps, table: list[dict[str, Any]]) -> None:
    steps.page.mouse.click(steps.box()["x"] + 120, steps.row(7))
    steps.settle()
    assert steps.link()["range"] == f"{table[7]['start_ns']}-{table[7]['end_ns']}"
    assert steps.page.locator("canvas.rows").is_visible()
    steps.press("v")
    assert steps.chosen().startswith("Step 7\n")


def test_enter_opens_the_step_in_the_timeline(steps: Steps, table: list[dict[str, Any]]) -> None:
    for _ in range(4):
        steps.press("ArrowDown")
    steps.press("Enter")
    assert steps.page.locator("section.steps").is_hidden()
    link = steps.link()
    begin, end = map(int, link["range"].split("-"))
    assert (begin, end) == (table[3]["start_ns"], table[3]["end_ns"])
    low, high = map(int, link["t"].split("-"))
    assert low < begin < end < high
    assert high - low < 1.2 * (end - begin)
    assert "view" not in link
    steps.press("v")
    assert steps.chosen().startswith("Step 3\n")


def test_alignment_moves_what_steps_are_compared_by(steps: Steps) -> None:
    before = steps.picture()
    assert STARVED in before
    steps.choose("Aligned at", "first kernel")
    assert steps.link()["salign"] == "kernel"
    begin, _ = map(int, steps.link()["st"].split("_"))
    assert begin < -10e6  # what came before the first kernel stands left of zero
    steps.choose("Aligned at", "range backward")
    assert steps.link()["salign"].startswith("range")
    steps.choose("Coloured", "by phase")
    assert (
        "backward pass"
        in steps.page.locator(".steps details:not(.colours) > .legend").last.inner_text()
    )
    steps.choose("Coloured", "by kernel category")
    assert steps.link()["scolour"] == "category"


def test_a_link_reproduces_the_view(steps: Steps, served: Served) -> None:
    steps.choose("Sorted", "longest first")
    steps.choose("Aligned at", "range forward")
    steps.choose("Coloured", "by phase")
    steps.press("ArrowDown")
    steps.press("w")
    steps.press("+")
    link, text, address = steps.link(), steps.chosen(), steps.page.url
    drawn = steps.page.locator("canvas.steprows").screenshot()
    again = Steps(steps.page, address, "")
    assert again.link() == link
    assert again.chosen() == text
    assert again.page.locator("canvas.steprows").screenshot() == drawn
    for label, message in (("Sorted", "longest first"), ("Aligned at", "range forward")):
        chosen = again.page.locator(f"select[aria-label='{label}'] option:checked")
        assert chosen.inner_text() == message


@pytest.mark.parametrize(
    "words",
    [
        "sdev=99", "sdev=-1", "salign=range:99", "salign=<img>&ssort=x&step=-5",
        "st=9_1&scolour=__proto__&step=1e99", "st=a_b&spx=1e9",
    ],
)  # fmt: skip
def test_a_wrong_link_does_no_harm(served: Served, page: Any, words: str) -> None:
    shown = Steps(page, served.address, f"#view=steps&{words}")
    text = page.locator("aside[aria-label='Step figures']").inner_text()
    assert "12 steps" in text or "there is no device" in text or "cannot be aligned" in text
    page.errors[:] = [e for e in page.errors if "400" not in e]  # the server said what was wrong
    shown.press("v")
    assert page.locator("canvas.rows").is_visible()


def test_the_help_lists_the_keys(steps: Steps) -> None:
    steps.press("?")
    text = steps.page.locator("dialog").inner_text()
    for message in (
        "steps side by side, and back",
        "open the step in the timeline",
        "next odd",
    ):
        assert message.replace("next odd", "next, previous outlier") in text
    steps.page.keyboard.press("Escape")


def jittery(folder: Path, rank: int = 0, steps: int = 9, name: str = "extra") -> Path:
    """Steps of 10 ms, the fifth of which does something else for 20 ms."""
    b = Build()
    at = 0.0
    for i in range(steps):
        b.range(at, at + (30_000 if i == 4 else 10_000), f"step {i}")
        b.kernel(at + 500, at + 8_000, call=(at + 100, at + 110), name="gemm")
        if i == 4:
            b.kernel(at + 8_000, at + 28_000, call=(at + 120, at + 130), name=name)
        at += 30_000 if i == 4 else 10_000
    folder.mkdir(exist_ok=True)
    return b.trace(folder, rank=rank).folder


def test_an_odd_step_is_marked_with_the_reason(tmp_path: Path, page: Any) -> None:
    with serving(jittery(tmp_path)) as served:
        steps = Steps(page, served.address)
        steps.press("g")
        assert steps.chosen().startswith("Step 4\n")
        assert "▲ outlier: compute: extra +20.0 ms (+1 operations)" in steps.chosen()
        odd = page.locator("section[aria-label='Outlier steps']").inner_text()
        assert "Outlier steps (1)" in odd
        assert "▲ step 4: +20.000 ms" in odd
        box = page.locator("canvas.histogram").bounding_box()
        page.mouse.click(box["x"] + 3, box["y"] + box["height"] - 3)
        steps.settle()
        assert not steps.chosen().startswith("Step 4\n")
        page.mouse.click(box["x"] + box["width"] - 3, box["y"] + box["height"] - 3)
        steps.settle()
        assert steps.chosen().startswith("Step 4\n")


def test_ranks_are_chosen(tmp_path: Path, page: Any) -> None:
    paths = [jittery(tmp_path / f"r{rank}", rank, 9 + rank) for rank in (0, 1)]
    with serving(*paths) as served:
        steps = Steps(page, served.address)
        figures = page.locator("aside[aria-label='Step figures']")
        assert figures.inner_text().startswith("9 steps · Rank 0 · GPU 0")
        steps.choose("Device", "Rank 1 · GPU 0")
        assert figures.inner_text().startswith("10 steps · Rank 1 · GPU 0")
        assert steps.link()["sdev"] == "1"
        steps.press("n")
        assert figures.inner_text().startswith("9 steps · Rank 0")


def test_captures_without_gpu_or_steps_say_so(tmp_path: Path, browser: Any) -> None:
    b = Build()
    b.range(0, 100, "step 0")
    with serving(b.trace(tmp_path).folder) as served, browsing(browser) as page:
        Steps(page, served.address)
        assert "holds no GPU work; capture with CUDA tracing" in page.locator(".steps").inner_text()
        page.keyboard.press("v")
        page.wait_for_selector(".track")
    (tmp_path / "two").mkdir()
    b = Build()
    b.kernel(0, 100, call=(0, 1))
    with serving(b.trace(tmp_path / "two").folder) as served, browsing(browser) as page:
        Steps(page, served.address)
        output = page.locator(".steps .note").first.inner_text()
        assert "no repeating step was found" in output
        assert "annotate the steps" in output
        assert page.errors == []


def test_hostile_names_are_only_text(tmp_path: Path, page: Any) -> None:
    b = Build()
    at = 0.0
    for i in range(9):
        length = 900.0 + (5000 if i == 4 else 0)
        b.range(at, at + length, f"step {i}")
        for k, name in enumerate(HOSTILE):
            b.range(at + 10 * k + 1, at + 10 * k + 9, name)
            b.kernel(
                at + 100 + 50 * k, at + 130 + 50 * k + (4000 if i == 4 else 0),
                call=(at + 10 * k + 2, at + 10 * k + 4), name=name, stream=7 + k,
            )  # fmt: skip
        at += length
    with serving(b.trace(tmp_path).folder) as served:
        steps = Steps(page, served.address)
        steps.press("g")
        is_harmless(page)
        labels = page.locator("select[aria-label='Aligned at'] option").all_inner_texts()
        assert len(labels) == 2 + len(HOSTILE)
        assert max(map(len, labels)) < 80
        for _ in range(len(labels)):
            steps.press("i")
            is_harmless(page)


def test_no_request_leaves_the_page(served: Served, page: Any) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    steps = Steps(page, served.address)
    steps.press("o")
    assert asked
    assert all(url.startswith((served.address, "data:", "about:")) for url in asked)


def test_the_single_file_holds_the_steps(
    tmp_path: Path, reader: Stepscope, served: Served, browser: Any, page: Any
) -> None:
    target = tmp_path / "out.html"
    reader("ui", bundled_capture(), "--static", target, "--only-step", "3")
    assert target.stat().st_size < 700_000
    rest = "#view=steps&salign=range:1&ssort=duration&step=5"
    with browsing(browser) as alone:
        steps = Steps(alone, target.as_uri(), rest)
        theirs = Steps(page, served.address, rest)
        assert steps.chosen() == theirs.chosen()
        # what the page computes by itself is what the server computes
        mine = steps.page.locator("canvas.steprows").screenshot()
        assert mine == theirs.page.locator("canvas.steprows").screenshot()
        steps.press("c")
        theirs.press("c")
        mine = steps.page.locator("canvas.steprows").screenshot()
        assert mine == theirs.page.locator("canvas.steprows").screenshot()
        steps.press("Enter")  # the page holds the timeline of step 3 only
        assert "not of step 5" in alone.locator("footer").inner_text()
        assert alone.errors == []


def test_the_single_file_says_why_it_has_no_steps(tmp_path: Path, browser: Any) -> None:
    from stepscope.server.page import page as written

    job = Job([bundled_capture()])
    job.views.packed_steps = lambda: None  # type: ignore[method-assign]
    target = tmp_path / "out.html"
    target.write_text(written(job, "", 3), encoding="utf-8")
    with browsing(browser) as page:
        Steps(page, target.as_uri())
        assert "too many operations for one page" in page.locator(".steps").inner_text()


def test_what_is_asked_wrongly_is_said_in_a_sentence(served: Served) -> None:
    grid = "api/stepgrid?first=0&count=10&begin=0&bucket=1000&columns=10"
    assert served.get(grid).status == 200
    for path, message in (
        ("api/steps?device=7", "no device 7"),
        ("api/steps?device=x", "no whole number"),
        ("api/steps?align=up", "cannot be aligned"),
        (f"{grid}&sort=x", "cannot be sorted"),
        (f"{grid}&colour=x", "no colouring"),
        (f"{grid}&group=0", "impossible"),
        (f"{grid}&group={10**30}", "out of all bounds"),
        (grid.replace("first=0", "first=-1"), "no rows"),
        (grid.replace("columns=10", f"columns={10**9}"), "too large"),
        (grid.replace("bucket=1000", f"bucket={10**40}"), "out of all bounds"),
        (grid.replace("begin=0", "begin=" + "9" * 5000), "no whole number"),
    ):
        answer = served.get(path)
        assert answer.status == 400, path
        assert message in json.loads(answer.body)["error"]


def test_the_hostile_single_file_holds_steps_too(
    tmp_path: Path, reader: Stepscope, browser: Any
) -> None:
    target = tmp_path / "out.html"
    reader("ui", hostile(tmp_path), "--static", target)
    with browsing(browser) as page:
        Steps(page, target.as_uri())
        is_harmless(page)
        assert page.errors == []
