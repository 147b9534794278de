"""Figures that are taken along, going from step to step, and what stands where nothing is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.browser import Shown, browsing, settle
from tests.server.served import Served, serving
from tests.support.build import Build

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with browsing(browser, permissions=["clipboard-read", "clipboard-write"]) as found:
        yield found
        assert found.errors == []


@pytest.fixture
def shown(served: Served, page: Any) -> Shown:
    return Shown(page, served.address)


@pytest.fixture(scope="module")
def job() -> Job:
    return Job([bundled_capture()])


def pasted(page: Any) -> str:
    page.wait_for_function("() => document.querySelector('footer').innerText.includes('copied')")
    text: str = page.evaluate("() => navigator.clipboard.readText()")
    return text


def answer(job: Job, line: str) -> Any:
    """What a copied command answers."""
    program, query, path, sql = shlex.split(line)
    assert (program, query, path) == ("stepscope", "query", str(bundled_capture()))
    return job.query(sql)


@pytest.mark.parametrize("key", ["k", "o"])
def test_a_table_is_copied_with_the_command_that_computes_it(
    served: Served, page: Any, job: Job, key: str
) -> None:
    for link in ("", "#range=50000000-130000000"):
        shown = Shown(page, served.address + link)
        page.locator("canvas.rows").focus()
        shown.press(key)
        page.get_by_role("button", name="Copy the rows").click()
        lines = [line.split("\t") for line in pasted(page).splitlines()]
        header, rows = lines[0], lines[1:]
        assert len(rows) > 5
        page.get_by_role("button", name="Copy the command").click()
        settle(page)
        found = answer(job, pasted(page)).to_pylist()
        assert len(found) == len(rows)
        names = header[: header.index("count")]
        reply = {tuple(row[: len(names)]): row[len(names) :] for row in rows}
        for row in found:
            first, *others = [row[name] for name in names]
            figures = reply[(first or "(none)", *(other or "" for other in others))]
            assert [int(f) for f in figures[:2]] == [row["count"], row["total_ns"]]
            for text, name in zip(figures[2:5], ("mean_ns", "median_ns", "p95_ns"), strict=True):
                assert float(text) == pytest.approx(row[name], rel=1e-9)


def test_evidence_is_copied_with_its_command(shown: Shown, job: Job) -> None:
    page = shown.page
    page.get_by_text("What to do, evidence").first.click()
    page.get_by_role("button", name="with the command that computes it").first.click()
    figure, line = pasted(page).splitlines()
    value = figure.split(" = ")[1].split()[0]
    assert answer(job, line).column(0)[0].as_py() == pytest.approx(float(value))


def test_from_step_to_step(shown: Shown, job: Job) -> None:
    page = shown.page
    steps = job.query("SELECT start_ns, end_ns FROM step ORDER BY start_ns").to_pylist()
    page.locator("canvas.rows").focus()
    shown.press("h")
    begin, end = shown.window()
    (at,) = [i for i, s in enumerate(steps) if s["start_ns"] > begin and s["end_ns"] < end]
    length = steps[at]["end_ns"] - steps[at]["start_ns"]
    assert end - begin < 1.2 * length
    shown.press("h")
    begin, end = shown.window()
    assert begin < steps[at + 1]["start_ns"] < steps[at + 1]["end_ns"] < end
    shown.press("Shift+H")
    shown.press("Shift+H")
    begin, end = shown.window()
    assert begin < steps[at - 1]["start_ns"] < steps[at - 1]["end_ns"] < end
    assert "step" in page.locator("footer").inner_text()


def test_a_place_of_a_finding_says_whose_it_is(shown: Shown) -> None:
    page = shown.page
    page.locator("canvas.rows").focus()
    shown.press("g")
    output = page.locator("footer").inner_text()
    cause = page.locator(".finding strong").first.inner_text()
    assert f"{cause}, " in output
    assert re.search(r"\(typical, \d+ of \d+ by length\): ", output)
    assert page.locator(".finding[aria-current=true]").count() == 1


def test_the_help_begins_at_its_begin(shown: Shown) -> None:
    page = shown.page
    page.set_viewport_size({"width": 800, "height": 500})
    page.keyboard.press("?")
    box = page.locator("dialog")
    assert box.evaluate("box => [box.scrollTop, box.scrollHeight > box.clientHeight]") == [0, True]
    assert page.locator("dialog dt").first.is_visible()
    assert page.evaluate("() => document.activeElement.innerText") == "Close (Esc)"
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 1500, "height": 850})


def test_a_capture_without_gpu_work_says_why_there_is_no_table(
    browser: Any, tmp_path: Path
) -> None:
    build = Build()
    for step in range(4):
        build.range(1000 * step, 1000 * step + 900, f"step_{step}")
    with serving(build.trace(tmp_path).folder) as served, browsing(browser) as page:
        page.goto(served.address)
        page.get_by_text("No diagnosis").wait_for()
        page.get_by_role("tab", name="Kernels").click()
        page.get_by_text("no table:").wait_for()
        assert "holds no GPU work" in page.locator(".drawer .tools").inner_text()
        assert not page.get_by_role("button", name="Copy the rows").is_visible()


def test_a_counter_says_its_value_and_unit_under_the_pointer(browser: Any, tmp_path: Path) -> None:
    build = Build()
    build.kernel(0, 1000, call=(0, 5))
    for metric, values in {
        "memory_used_bytes": (1_500_000_000, 3_000_000_000),
        "sm_clock_mhz": (1980, 1200),
        "power_watt": (700.25, 350.5),
    }.items():
        for at, value in zip((100, 600), values, strict=True):
            build._add(
                "metric_sample", time_ns=at * 1000, device=0, metric=metric, value=float(value)
            )
    with serving(build.trace(tmp_path).folder) as served, browsing(browser) as page:
        shown = Shown(page, served.address + "#open=Counters")
        for title, early, late in (
            ("memory_used_bytes", "1.50 GB", "3.00 GB"),
            ("sm_clock_mhz", "1,980 MHz", "1,200 MHz"),
            ("power_watt", "700.25 W", "350.50 W"),
        ):
            for at_us, value in ((50, "no sample yet"), (300, early), (800, late)):
                page.mouse.move(shown.x(at_us * 1000), shown.track(title) + 10)
                settle(page)
                assert page.locator(".stage .tip").first.inner_text() == f"{title}: {value}"
        assert page.errors == []
