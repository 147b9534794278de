"""Two runs side by side in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.server.browser import browsing, load, pixels, settle
from tests.server.served import Served, serving
from tests.server.test_browser import HOSTILE, is_harmless
from tests.support.build import Build
from tests.support.captures import DATA, unpack


@pytest.fixture(scope="module")
def paths() -> list[Path]:
    names = ("gpt1024_sync_item", "gpt1024_healthy")
    return [unpack(DATA / "nsys" / f"{name}.sqlite.xz") for name in names]


@pytest.fixture(scope="module")
def both(paths: list[Path]) -> Iterator[Served]:
    with serving(*paths, "--compare") as found:
        yield found


@pytest.fixture(scope="module")
def reply(both: Served) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(both.get("api/comparison").body)
    return found


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with browsing(browser) as found:
        yield found
        assert found.errors == []


class Compared:
    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        load(page, address)

    def settle(self) -> None:
        settle(self.page)

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)
        self.settle()

    def text(self, label: str) -> str:
        return str(self.page.locator(f"section[aria-label={label}]").inner_text())

    def link(self) -> dict[str, str]:
        settle(self.page)
        return dict(re.findall(r"[#&](\w+)=([^&]*)", self.page.url))

    def shot(self) -> bytes:
        self.page.mouse.move(2, 2)
        self.settle()
        return bytes(self.page.locator("canvas.pairrows").screenshot())


@pytest.fixture
def shown(page: Any, both: Served) -> Compared:
    return Compared(page, both.address)


@pytest.mark.parametrize("width", [800, 1000])
def test_figures_do_not_overlap_in_a_narrow_window(page: Any, both: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 600})
    try:
        Compared(page, both.address)
        inside = page.locator(".differences").first.evaluate(
            """table => [...table.querySelectorAll("tr")].every(row => {
              const ends = [...row.querySelectorAll(".figure")].map(cell => {
                const range = document.createRange();
                range.selectNodeContents(cell);
                return range.getBoundingClientRect();
              });
              return ends.every((box, i) => i === 0 || box.left >= ends[i - 1].right + 4);
            })"""
        )
        assert inside
        wide = page.locator(".compare > aside").evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide <= 0
        rows = page.locator(".differences").first.locator("tr[data-kind] button")
        assert all(rows.nth(i).bounding_box()["height"] < 40 for i in range(rows.count()))
    finally:
        page.set_viewport_size({"width": 1500, "height": 850})


def test_the_comparison_has_the_legend_of_all_views(page: Any, both: Served) -> None:
    Compared(page, both.address)
    page.locator("details.colours summary").click()
    text = page.locator("details.colours").inner_text()
    assert "synchronisation: host sync" in text
    assert "compute kernels" in text


def test_the_verdict_and_the_interval_are_those_of_the_command(
    shown: Compared, reply: dict[str, Any], paths: list[Path], reader: Stepscope
) -> None:
    output = json.loads(reader("compare", *paths, "--format", "json").stdout)
    assert output == reply["comparison"]
    text = shown.text("Verdict")
    assert output["message"] in text
    low, high = output["step"]["ratio_low"], output["step"]["ratio_high"]
    assert f"{low:.3f} to {high:.3f}" in text


def test_the_median_steps_stand_on_one_scale(shown: Compared, reply: dict[str, Any]) -> None:
    link = shown.link()
    for side in ("before", "after"):
        device = reply["devices"][side][0]
        assert link[side] == f"0-{device['median']}"
        box = shown.page.locator(f"input[aria-label='Step {side}']")
        assert box.input_value() == str(device["median"])
    lengths = {s: reply["devices"][s][0] for s in ("before", "after")}
    begin, end = map(int, link["t"].split("_"))
    longest = max(d["lengths"][d["median"]] for d in lengths.values())
    assert begin < 0
    assert longest < end < 1.05 * longest
    # on this scale the shorter step ends where its length says
    canvas = shown.page.locator("canvas.pairrows").bounding_box()
    chart = canvas["width"] - 150
    after = lengths["after"]["lengths"][lengths["after"]["median"]]
    x = canvas["x"] + 150 + (after - begin) / (end - begin) * chart
    y = canvas["y"] + 24 + 4 + 85 + 2 + 40  # the second row: the later run's GPU
    beyond = {"x": x + 4, "y": y, "width": 20, "height": 4}
    inside = {"x": x - 24, "y": y, "width": 20, "height": 4}
    assert set(pixels(shown.page.screenshot(clip=beyond))) == {(255, 255, 255)}
    assert (0, 0x72, 0xB2) in set(pixels(shown.page.screenshot(clip=inside)))


def test_a_cause_a_kernel_and_a_range_are_highlighted_in_both(
    shown: Compared, reply: dict[str, Any]
) -> None:
    plain = shown.shot()
    seen = {plain}
    shown.page.locator("tr[data-kind=cause] button", has_text="idle: host sync").click()
    shown.settle()
    assert "idle: host sync" in shown.text("Highlighted")
    assert re.search(r"before, step \d+: \d{2,} ×", shown.text("Highlighted"))
    assert "after, step 2: 0 ×, 0 ns" in shown.text("Highlighted")
    seen.add(shown.shot())
    shown.page.locator("tr[data-kind=range] button", has_text="backward").first.click()
    shown.settle()
    counts = re.findall(r"step \d+: (\d+) ×", shown.text("Highlighted"))
    assert all(int(n) > 50 for n in counts)
    seen.add(shown.shot())
    shown.page.get_by_role("button", name="Show all").click()
    kernels = reply["comparison"]["kernels"]
    row = next(i for i, k in enumerate(kernels) if k["relation"] == "same" and k["before_ns"] > 1e6)
    shown.page.locator(f"tr[data-kind=kernel][data-row='{row}'] button").click()
    shown.settle()
    assert kernels[row]["before"][0] in shown.text("Highlighted")
    counts = re.findall(r"step \d+: (\d+) ×", shown.text("Highlighted"))
    assert int(counts[1]) == round(kernels[row]["calls_after"])
    seen.add(shown.shot())
    assert len(seen) == 4  # each lights something else
    shown.press("Escape")
    assert shown.text("Highlighted") == ""
    assert shown.shot() == plain


def test_a_click_in_the_picture_highlights_the_kernel(shown: Compared) -> None:
    canvas = shown.page.locator("canvas.pairrows").bounding_box()
    y = canvas["y"] + canvas["height"]
    for offset in range(40, int(canvas["height"]), 20):  # the lowest row is a stream
        shown.page.mouse.click(canvas["x"] + 150 + 300, y - offset)
        shown.settle()
        if shown.text("Highlighted"):
            break
    assert re.search(r"calls a step", shown.text("Highlighted"))
    assert shown.page.locator("tr.chosen[data-kind=kernel]").count() == 1
    assert shown.link()["sel"].startswith("kernel-")
    shown.page.mouse.move(canvas["x"] + 150 + 300, y - offset)
    shown.settle()
    tip = shown.page.locator(".tip:visible").inner_text()
    assert tip.startswith(("before, step", "after, step"))


def test_keys_choose_pairs_and_rows(shown: Compared, reply: dict[str, Any]) -> None:
    before, after = (reply["devices"][side][0] for side in ("before", "after"))
    shown.press(".")
    assert shown.link()["before"] == f"0-{before['median'] + 1}"
    assert shown.link()["after"] == f"0-{after['median'] + 1}"
    shown.press("]")
    assert shown.link()["before"] == f"0-{before['median'] + 1}"
    assert shown.link()["after"] == f"0-{after['median'] + 2}"
    shown.press("m")
    assert shown.link()["after"] == f"0-{after['median']}"
    for _ in range(30):
        shown.page.keyboard.press(",")
    shown.settle()
    assert (shown.link()["before"], shown.link()["after"]) == ("0-0", "0-0")
    shown.press("m")
    shown.press("ArrowDown")
    assert shown.link()["sel"] == "cause-0"
    shown.press("i")
    chosen = shown.page.locator("select[aria-label='Aligned at'] option:checked")
    assert chosen.inner_text() == "first kernel"
    shown.page.locator("select[aria-label='Aligned at']").select_option(label="range backward")
    shown.settle()
    begin, end = map(int, shown.link()["t"].split("_"))
    assert begin < -4e6 < end  # the forward pass, of 5 ms and more, stands left of zero
    assert shown.link()["align"].startswith("range")
    shown.press("w")
    shown.press("?")
    assert "next, previous step of both runs" in shown.page.locator("dialog").inner_text()
    shown.page.keyboard.press("Escape")


def test_steps_are_chosen_by_number_and_by_their_bar(
    shown: Compared, reply: dict[str, Any]
) -> None:
    box = shown.page.locator("input[aria-label='Step after']")
    box.fill("7")
    box.press("Tab")
    shown.settle()
    assert shown.link()["after"] == "0-7"
    bars = shown.page.locator("canvas.times").bounding_box()
    each = (bars["width"] - 150) / reply["devices"]["before"][0]["count"]
    shown.page.mouse.click(bars["x"] + 150 + 4.5 * each, bars["y"] + 30)
    shown.settle()
    assert shown.link()["before"] == "0-4"
    assert shown.link()["after"] == "0-7"


def test_a_link_reproduces_the_view(shown: Compared) -> None:
    shown.press(".")
    shown.press("ArrowDown")
    shown.press("ArrowDown")
    shown.press("i")
    shown.press("w")
    link, address, picture = shown.link(), shown.page.url, shown.shot()
    text = shown.text("Highlighted")
    again = Compared(shown.page, address)
    assert again.link() == link
    assert again.text("Highlighted") == text
    assert again.shot() == picture


@pytest.mark.parametrize(
    "words",
    [
        "before=9-99",
        "before=0-99999999&after=x",
        "sel=kernel-99999",
        "sel=__proto__-1",
        "t=5_1",
        "align=range:77",
    ],
)
def test_a_wrong_link_does_no_harm(page: Any, both: Served, words: str) -> None:
    shown = Compared(page, f"{both.address}#{words}")
    assert "Faster" in shown.text("Verdict")
    assert shown.text("Highlighted") == ""


def test_each_run_has_its_own_timeline(shown: Compared, reply: dict[str, Any]) -> None:
    shown.page.locator("a[aria-label='Timeline of after']").click()
    shown.page.wait_for_selector("[aria-label=Findings]")
    assert "gpt1024_healthy" in shown.page.title()
    assert "/after/#" in shown.page.url
    length = reply["devices"]["after"][0]["lengths"][reply["devices"]["after"][0]["median"]]
    begin, end = map(int, re.findall(r"range=(\d+)-(\d+)", shown.page.url)[0])
    assert end - begin == length


def test_nothing_is_asked_of_others_and_all_is_guarded(page: Any, both: Served) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    Compared(page, both.address)
    assert asked
    assert all(url.startswith((both.address, "data:", "about:")) for url in asked)
    for path in ("api/comparison", "before/", "after/api/layout", "api/step?side=x&step=0"):
        headers = both.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; ")
        assert "unsafe" not in headers["content-security-policy"]
    assert both.get("/before/").status == 404  # without the token
    assert both.get("before/", host="evil.example").status == 421


def test_wrong_questions_are_answered_in_a_sentence(both: Served) -> None:
    for path, message in (
        ("api/step?side=x&step=0", "neither before nor after"),
        ("api/step?side=before&step=999", "no step 999"),
        ("api/step?side=before&step=", "no whole number"),
        ("api/step?side=after&step=0&device=4", "no device 4"),
    ):
        answer = both.get(path)
        assert answer.status == 400
        assert message in json.loads(answer.body)["error"]


def hostile(folder: Path, extra: float) -> Path:
    b = Build()
    for i in range(6):
        at = 10_000.0 * i
        b.range(at, at + 9_900, f"step {i}")
        for k, name in enumerate(HOSTILE):
            b.range(at + 10 * k + 1, at + 10 * k + 9, name)
            b.operator(at + 10 * k + 1, at + 10 * k + 8, name)
            start = at + 200 + 900 * k
            call = (at + 10 * k + 2, at + 10 * k + 4)
            b.kernel(start, start + 500 + extra, call=call, name=name)
    folder.mkdir()
    return b.trace(folder).folder


def test_hostile_names_are_only_text(tmp_path: Path, page: Any) -> None:
    runs = [hostile(tmp_path / "a", 0), hostile(tmp_path / "b", 200)]
    with serving(*runs, "--compare") as served:
        shown = Compared(page, served.address)
        is_harmless(page)
        text = page.locator("aside").inner_text()
        assert "<img src=x" in text
        assert len(text) < 20_000
        for _ in range(25):
            shown.press("ArrowDown")
            is_harmless(page)
        canvas = page.locator("canvas.pairrows").bounding_box()
        for x in range(200, 900, 90):
            page.mouse.move(canvas["x"] + x, canvas["y"] + canvas["height"] * 0.6)
            settle(page)
            is_harmless(page)


def test_runs_without_steps_or_gpu_say_so(tmp_path: Path, paths: list[Path], browser: Any) -> None:
    b = Build()
    b.kernel(0, 100, call=(0, 1))
    (tmp_path / "flat").mkdir()
    flat = b.trace(tmp_path / "flat").folder
    with serving(flat, paths[1], "--compare") as served, browsing(browser) as page:
        shown = Compared(page, served.address)
        assert "Not comparable: no repeating step was found" in shown.text("Verdict")
        assert page.errors == []
    b = Build()
    b.range(0, 100, "step 0")
    (tmp_path / "idle").mkdir()
    idle = b.trace(tmp_path / "idle").folder
    with serving(idle, paths[1], "--compare") as served, browsing(browser) as page:
        Compared(page, served.address)
        text = page.locator("aside").inner_text()
        assert "No comparison" in text
        assert "holds no GPU work" in text


def test_the_single_file_holds_the_comparison(
    tmp_path: Path, paths: list[Path], reader: Stepscope, shown: Compared, browser: Any
) -> None:
    target = tmp_path / "pair.html"
    reader("ui", *paths, "--compare", "--static", target)
    assert target.stat().st_size < 2_500_000
    with browsing(browser) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        alone = Compared(page, target.as_uri())
        assert [u for u in asked if not u.startswith(("file:", "data:", "blob:", "about:"))] == []
        mine, theirs = (
            [line for line in of.text("Verdict").splitlines() if not line.startswith("before:")]
            for of in (alone, shown)
        )
        assert mine == theirs
        assert "before: gpt1024_sync_item.sqlite; after: " in alone.text("Verdict")
        assert str(paths[0].parent) not in page.locator("body").inner_text()
        alone.press("ArrowDown")
        shown.press("ArrowDown")
        assert alone.text("Highlighted") == shown.text("Highlighted")
        assert page.locator("a[aria-label^=Timeline]").count() == 0
        alone.press(".")
        assert page.locator("footer .error").inner_text() == ""
        assert page.errors == []


def test_the_command_says_what_it_wants(paths: list[Path], reader: Stepscope) -> None:
    for arguments, message in (
        ((paths[0], "--compare"), "stepscope ui BEFORE AFTER --compare"),
        ((*paths, paths[0], "--compare"), "stepscope ui BEFORE AFTER --compare"),
        ((*paths, "--compare", "--static", "x.html", "--only-step", "1"), "leave them out"),
    ):
        output = reader("ui", *arguments, expect=2).stderr
        assert message in output
        assert is_one_line(output)
