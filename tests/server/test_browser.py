"""The timeline in a real browser: what a person does with it, and what hostile traces try."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.server.browser import HEIGHT, Shown, browsing
from tests.server.served import Served, serving
from tests.support.build import Build

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture

HOSTILE = [
    "<img src=x onerror=document.title='owned'>",
    "</script><script>document.title='owned'</script>",
    "\"'><svg/onload=document.title='owned'>",
    "line\nbreak\x00\x1b[31m",
    "\u202eright to left \u05d0\u05d1",
    "emoji 🔥" + "x" * 100_000,
    "${document.title='owned'}{{7*7}}",
    "__proto__",
]


@pytest.fixture(scope="module")
def browser_page(browser: Any) -> Iterator[Any]:
    with browsing(browser) as page:
        yield page
        assert page.errors == []


@pytest.fixture
def shown(served: Served, browser_page: Any) -> Shown:
    return Shown(browser_page, served.address)


@pytest.fixture(scope="module")
def worst() -> dict[str, Any]:
    found: dict[str, Any] = Job([bundled_capture()]).views.instances("input_starvation", [])[0]
    return found


def test_the_first_picture_shows_all_of_the_capture(shown: Shown) -> None:
    page = shown.page
    titles = [t.strip("▾▸ ") for t in page.locator(".track .title").all_text_contents()]
    assert titles[:4] == ["Steps", "Idle, by cause", "Busy", "Stream 7"]
    begin, end = shown.window()
    assert begin <= 0
    assert end >= 435_504_162
    box = shown.canvas()
    drawn = shown.colours(box["x"], shown.track("Idle, by cause") - 6, box["width"], 12)
    assert (0xD5, 0x5E, 0x00) in drawn  # input starvation
    assert (0x00, 0x72, 0xB2) in shown.colours(box["x"], shown.track("Busy") - 6, box["width"], 12)
    assert "h200_input_starvation" in page.title()


def test_zoom_by_wheel_and_key_keeps_the_place_under_the_pointer(shown: Shown) -> None:
    box = shown.canvas()
    at = round(box["x"] + 0.25 * box["width"])  # events carry whole pixels
    shown.page.mouse.move(at, shown.track("Stream 7"))
    begin, end = shown.window()
    fixed = begin + (at - box["x"]) / box["width"] * (end - begin)
    shown.page.keyboard.down("Control")
    for _ in range(4):
        shown.page.mouse.wheel(0, -400)
    shown.page.keyboard.up("Control")
    shown.settle()
    assert shown.span() < 0.2 * (end - begin)
    assert shown.x(fixed) == pytest.approx(at, abs=1.5)
    before = shown.span()
    shown.press("w")
    assert shown.span() == pytest.approx(0.75 * before, rel=0.01)
    assert shown.x(fixed) == pytest.approx(at, abs=2)
    shown.press("s")
    assert shown.span() == pytest.approx(before, rel=0.01)
    low = shown.window()[0]
    shown.press("d")
    assert shown.window()[0] == pytest.approx(low + 0.12 * before, rel=0.01)
    shown.page.mouse.dblclick(at, HEIGHT - 80)
    shown.settle()
    assert shown.span() == pytest.approx(end - begin, rel=0.01)


def test_dragging_moves_the_view(shown: Shown) -> None:
    shown.press("w")
    shown.press("w")
    begin, end = shown.window()
    box = shown.canvas()
    y = shown.track("Stream 7")
    shown.page.mouse.move(box["x"] + 400, y)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 300, y, steps=4)
    shown.page.mouse.up()
    shown.settle()
    moved = 100 / box["width"] * (end - begin)
    assert shown.window()[0] == pytest.approx(begin + moved, rel=0.02)


def test_a_click_selects_and_shows_the_launch(shown: Shown) -> None:
    page = shown.page
    job = Job([bundled_capture()])
    row = job.query(
        "SELECT start_ns, end_ns, registers, grid_x FROM gpu_op WHERE kind = 'kernel' "
        "ORDER BY end_ns - start_ns DESC LIMIT 1"
    ).to_pylist()[0]
    page.goto(f"{page.url.split('#')[0]}#t={row['start_ns'] - 50_000}-{row['end_ns'] + 50_000}")
    shown.settle()
    middle = (row["start_ns"] + row["end_ns"]) / 2
    page.mouse.click(shown.x(middle), shown.track("Stream 7"))
    shown.settle()
    text = page.locator("section[aria-label=Selection]").inner_text()
    assert "Launched by" in text
    assert "cudaLaunchKernel" in text or "cuLaunchKernelEx" in text
    assert re.search(rf"registers\s+{row['registers']}\b", text)
    assert re.search(rf"grid\s+{row['grid_x']} × ", text)
    shown.press("e")  # to the launching call, and back
    assert "Launched\n" in page.locator("section[aria-label=Selection]").inner_text()
    shown.press("e")
    assert "Launched by" in page.locator("section[aria-label=Selection]").inner_text()
    number = re.compile(r"(\d[\d,]*) of (\d[\d,]*) on this track")
    first = number.search(page.locator("section[aria-label=Selection]").inner_text())
    shown.press("Shift+N")
    after = number.search(page.locator("section[aria-label=Selection]").inner_text())
    assert first
    assert after
    assert int(after[1].replace(",", "")) == int(first[1].replace(",", "")) - 1
    assert after[2] == first[2]
    shown.press("n")
    assert first[0] in page.locator("section[aria-label=Selection]").inner_text()


def test_a_click_on_what_is_too_short_to_see_selects_it(shown: Shown) -> None:
    rows = Job([bundled_capture()]).query("SELECT start_ns FROM gpu_op WHERE id = 1000")
    at = shown.x(rows.column("start_ns")[0].as_py())
    shown.page.mouse.click(at, shown.track("Stream 7") + 5)
    shown.settle()
    assert "Launched by" in shown.page.locator("section[aria-label=Selection]").inner_text()


def test_keyboard_alone_reaches_everything(shown: Shown) -> None:
    page = shown.page
    shown.press(".")
    panel = page.locator("section[aria-label=Selection]")
    first = panel.inner_text()
    assert "takes" in first
    shown.press(".")
    assert panel.inner_text() != first
    shown.press("j")
    shown.press("f")
    shown.press("r")
    assert "Range of" in page.locator("section[aria-label=Range]").inner_text()
    shown.press("Escape")
    assert page.locator("section[aria-label=Range]").inner_text() == ""
    shown.press("?")
    assert "zoom in at the pointer" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    shown.settle()
    theme = page.locator("html").get_attribute("data-theme")
    shown.press("l")
    assert page.locator("html").get_attribute("data-theme") != theme
    shown.press("l")
    shown.press("t")
    page.keyboard.type("^GPU.*stream")
    shown.settle()
    assert page.locator(".track .title").all_text_contents() == ["Stream 7"]
    shown.press("Escape")
    assert page.locator(".track").count() > 4
    unnamed = page.locator("button:not([aria-label]), input:not([aria-label])")
    assert all(text.strip() for text in unnamed.all_inner_texts())


def test_search_goes_through_the_hits(shown: Shown) -> None:
    page = shown.page
    shown.press("/")
    page.keyboard.type("nvjet")
    shown.press("Enter")
    results = page.locator("section[aria-label='Search results']").inner_text()
    expected = Job([bundled_capture()]).query(
        "SELECT count(*) AS n FROM gpu_op WHERE name LIKE '%nvjet%'"
    )
    assert f"{expected.column('n')[0].as_py():,} found" in results
    selected = page.locator("section[aria-label=Selection] p.name").first
    assert "nvjet" in selected.inner_text()
    first = shown.window()
    shown.press("Enter")
    assert shown.window() != first or "2 of" in page.locator("aside").inner_text()


def test_a_search_that_was_cleared_can_be_made_again(shown: Shown) -> None:
    page = shown.page
    results = page.locator("section[aria-label='Search results']")
    for _ in range(2):
        shown.press("/")
        page.keyboard.type("nvjet")
        shown.press("Enter")
        assert "found" in results.inner_text()
        page.locator("input[aria-label='Search names']").press("Escape")
        shown.settle()
        assert results.inner_text() == ""


def test_a_finding_flies_to_its_worst_gap(shown: Shown, worst: dict[str, Any]) -> None:
    page = shown.page
    page.locator("button.finding[data-cause=input_starvation]").click()
    shown.settle()
    begin, end = shown.window()
    assert begin < worst["begin"] < worst["end"] < end
    assert worst["end"] - worst["begin"] > 0.3 * (end - begin)
    assert "dataload" in page.locator("footer").inner_text()
    box = shown.canvas()
    y = shown.track("Idle, by cause")
    middle = shown.x((worst["begin"] + worst["end"]) / 2)
    colours = shown.colours(middle - 60, y - 4, 40, 4)
    assert any(abs(r - 0xD5) < 10 and abs(g - 0x5E) < 12 and b < 20 for r, g, b in colours)
    page.locator("button[aria-label='Next instance']").first.click()
    shown.settle()
    assert shown.window() != (begin, end)
    assert box["width"] > 500
    budget = page.locator("section[aria-label='Step budget']").inner_text()
    assert "idle: input starvation" in budget
    assert "predicted" in budget


def test_a_range_has_statistics_that_sql_confirms(shown: Shown) -> None:
    page = shown.page
    box = shown.canvas()
    y = shown.track("Stream 7")
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 200, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, y, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    shown.settle()
    shown.settle()
    text = page.locator("section[aria-label=Range]").inner_text()
    found = re.search(r"[#&]range=(\d+)-(\d+)", page.url)
    assert found
    begin, end = int(found[1]), int(found[2])
    kernels = Job([bundled_capture()]).query(
        f"""SELECT sum(least(end_ns, {end}) - greatest(start_ns, {begin}))::BIGINT AS ns
        FROM gpu_op WHERE kind = 'kernel' AND start_ns < {end} AND end_ns > {begin}"""
    )
    milliseconds = kernels.column("ns")[0].as_py() / 1e6
    shown_ms = re.search(r"compute kernels run|compute\s+([\d.]+) ms", text)
    assert shown_ms
    assert float(shown_ms[1]) == pytest.approx(milliseconds, rel=0.01)
    assert "Longest in total" in text
    shown.press("z")
    assert shown.span() == pytest.approx((end - begin) * 1.04, rel=0.01)


def test_a_link_reproduces_the_view(shown: Shown, served: Served) -> None:
    page = shown.page
    shown.press(".")
    page.locator(".track", has_text="Stream 7").hover()
    page.locator("button[aria-label='Pin Stream 7']").click()
    shown.press("w")
    shown.press("r")
    shown.settle()
    link, window = page.url, shown.window()
    selection = page.locator("section[aria-label=Selection]").inner_text()
    assert "pin=" in link
    again = Shown(page, link)
    again.settle()
    assert again.window() == window
    assert page.locator("section[aria-label=Selection]").inner_text() == selection
    assert page.locator(".group .title").first.inner_text() == "▾ Pinned"
    assert "Range of" in page.locator("section[aria-label=Range]").inner_text()


def test_groups_fold_and_move(shown: Shown) -> None:
    page = shown.page
    tracks = page.locator(".track").count()
    page.locator(".group .title").first.click()
    shown.settle()
    assert page.locator(".track").count() == tracks - 4
    assert page.locator(".group .title").first.get_attribute("aria-expanded") == "false"
    page.locator(".group .title").first.click()
    shown.settle()
    second = page.locator(".group .title").nth(1).inner_text()
    page.locator(".group").first.hover()
    page.locator(".group").first.locator("button[aria-label$=' down']").click()
    shown.settle()
    assert page.locator(".group .title").first.inner_text() == second


def hostile(folder: Path) -> Path:
    b = Build()
    for i, name in enumerate(HOSTILE):
        at = i * 100.0
        b.range(at, at + 90, name)
        b.operator(at, at + 80, name, input_shapes=name)
        b.kernel(at + 20, at + 80, call=(at + 5, at + 10), name=name)
    b.gpu(HOSTILE[0])
    return b.trace(folder).folder


def is_harmless(page: Any) -> None:
    title, drawn, scripts, text = page.evaluate(
        """() => [document.title, ...["img, svg, iframe", "script"].map(
            (kind) => document.querySelectorAll(kind).length), document.body.innerText]"""
    )
    assert title != "owned"
    assert drawn == 0
    assert scripts <= 2
    assert not set("\u202e\x00\x1b") & set(text)


def test_names_of_a_hostile_trace_are_only_text(tmp_path: Path, browser: Any) -> None:
    with serving(hostile(tmp_path)) as served, browsing(browser) as page:
        shown = Shown(page, served.address)
        is_harmless(page)
        for row in range(len(HOSTILE)):
            shown.press(".")
            is_harmless(page)
            assert "takes" in page.locator("section[aria-label=Selection]").inner_text(), row
        page.mouse.move(shown.canvas()["x"] + 60, shown.track("Ranges"))
        shown.settle()
        shown.press("/")
        page.keyboard.type("<img")
        shown.press("Enter")
        assert "<img src=x" in page.locator("aside").inner_text()
        is_harmless(page)
        assert page.errors == []


def test_the_single_file_opens_from_disk(tmp_path: Path, reader: Stepscope, browser: Any) -> None:
    target = tmp_path / "out.html"
    output = reader("ui", bundled_capture(), "--static", target, "--only-step", "3", "-f", "json")
    assert json.loads(output.stdout) == {
        "schema": "stepscope.ui/1",
        "address": None,
        "file": str(target),
    }
    assert target.stat().st_size < 400_000
    with browsing(browser) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        shown = Shown(page, target.as_uri())
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert 30e6 < shown.span() < 45e6
        assert page.locator("button.finding").count() == 1
        box = shown.canvas()
        page.mouse.click(box["x"] + 0.7 * box["width"], shown.track("Stream 7"))
        shown.settle()
        assert "Launched by" in page.locator("section[aria-label=Selection]").inner_text()
        shown.press("e")
        shown.press("r")
        assert "Range of" in page.locator("section[aria-label=Range]").inner_text()
        shown.press("/")
        page.keyboard.type("nvjet")
        shown.press("Enter")
        assert " found" in page.locator("aside").inner_text()
        assert page.errors == []


def test_the_single_file_of_a_hostile_trace(
    tmp_path: Path, reader: Stepscope, browser: Any
) -> None:
    target = tmp_path / "out.html"
    reader("ui", hostile(tmp_path), "--static", target)
    with browsing(browser) as page:
        shown = Shown(page, target.as_uri())
        is_harmless(page)
        shown.press(".")
        is_harmless(page)
        assert page.errors == []


def test_the_single_file_says_what_it_refuses(tmp_path: Path, reader: Stepscope) -> None:
    capture, target = bundled_capture(), tmp_path / "out.html"
    target.write_text("mine")
    assert "--force" in reader("ui", capture, "--static", target, expect=2).stderr
    assert target.read_text() == "mine"
    free = tmp_path / "free.html"
    for arguments, message in (
        (("--only-step", "99"), "0 to 11"),
        (("--window", "5s/4s"), "ends before"),
        (("--window", "900s/901s"), "empty|covers"),
        (("--only-step", "1", "--window", "1s/2s"), "one of them"),
    ):
        done = reader("ui", capture, "--static", free, *arguments, expect=2)
        assert re.search(message, done.stderr)
    assert not free.exists()
    assert "--static" in reader("ui", capture, "--only-step", "1", expect=2).stderr


def test_a_server_that_ends_is_said_on_the_page(browser: Any) -> None:
    with browsing(browser) as page:
        with serving(bundled_capture()) as served:
            shown = Shown(page, served.address)
        for _ in range(6):  # until a finer picture is needed
            page.keyboard.press("w")
        page.wait_for_selector("[role=alert]:has-text('still running')")
        assert shown.page.locator(".track").count() > 4  # what was drawn stays
