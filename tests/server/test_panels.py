"""The panels below the timeline in a real browser: tables, flame graph, notes, links."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.server.browser import Shown, becomes, browsing
from tests.server.served import Answer, Served, serving
from tests.server.test_browser import HOSTILE, hostile, is_harmless
from tests.support.build import AUTOGRAD, Build
from tests.support.captures import DATA, unpack

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture


@pytest.fixture(scope="module")
def panel_page(browser: Any) -> Iterator[Any]:
    with browsing(browser) as page:
        yield page
        assert page.errors == []


@pytest.fixture
def shown(served: Served, panel_page: Any) -> Shown:
    return Shown(panel_page, served.address)


def opened(shown: Shown, key: str) -> None:
    shown.page.locator("canvas.rows").focus()
    shown.press(key)
    shown.settle()


def texts(page: Any) -> list[list[str]]:
    """Cells of the rows of the table that is shown."""
    found: list[list[str]] = page.locator(".drawer tbody tr[data-key]").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.innerText))"
    )
    return found


def nanoseconds(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]


# --- tables --------------------------------------------------------------------------------------


def test_the_table_of_kernels_holds_the_figures_of_the_command(shown: Shown) -> None:
    opened(shown, "k")
    expected = Job([bundled_capture()]).kernels.to_pylist()
    found = texts(shown.page)
    assert len(found) == len(expected)
    for cells, reply in zip(found, expected, strict=True):
        assert cells[0] == reply["kernel"]
        assert int(cells[3].replace(",", "")) == reply["calls"]
        assert nanoseconds(cells[4]) == pytest.approx(reply["time_ns"], rel=5e-3)
        assert nanoseconds(cells[9]) == pytest.approx(reply["time_ns_per_step"], rel=5e-3)


def test_a_range_narrows_the_table(shown: Shown) -> None:
    begin, end = 60_000_000, 95_000_000
    shown.page.goto(f"{shown.page.url.split('#')[0]}#range={begin}-{end}&p.panel=kernels")
    shown.settle()
    shown.settle()
    expected = Job([bundled_capture()]).query(
        f"""SELECT count(*) AS n, sum(end_ns - start_ns)::BIGINT AS ns FROM gpu_op
        WHERE start_ns >= {begin} AND start_ns < {end}"""
    )
    found = texts(shown.page)
    assert sum(int(c[3].replace(",", "")) for c in found) == expected["n"][0].as_py()
    total = sum(nanoseconds(c[4]) for c in found)
    assert total == pytest.approx(expected["ns"][0].as_py(), rel=5e-3)
    assert "35.000 ms" in shown.page.locator(".drawer .tools").inner_text()


def test_tables_sort_and_filter(shown: Shown) -> None:
    page = shown.page
    opened(shown, "k")
    everything = texts(page)
    page.get_by_role("button", name="count", exact=True).click()
    counts = [int(cells[3].replace(",", "")) for cells in texts(page)]
    assert counts == sorted(counts, reverse=True)
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("count")
    page.get_by_role("button", name="count ↓").click()
    assert [int(c[3].replace(",", "")) for c in texts(page)] == sorted(counts)
    page.get_by_label("Filter kernels by regular expression").fill("^nvjet.*NN[TN]$|copy")
    wanted = [c for c in everything if re.search(r"^nvjet.*NN[TN]$|copy", f"{c[0]}\n{c[1]}")]
    assert len(texts(page)) == sum(
        bool(re.search(r"^nvjet.*NN[TN]$|copy", c[0]) or "copy" in c[1]) for c in everything
    )
    assert 0 < len(wanted) < len(everything)
    page.get_by_label("Filter kernels by regular expression").fill("(")
    assert "no regular expression" in page.locator(".drawer .tools").inner_text()


def test_a_row_leads_through_its_instances_by_keyboard(shown: Shown) -> None:
    page = shown.page
    opened(shown, "k")  # the filter has the focus
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.tagName") == "TR"
    name, count = texts(page)[1][0], texts(page)[1][3]
    shown.press("Enter")
    shown.settle()
    assert page.locator("tr[aria-selected=true] th").inner_text() == name
    walker = page.locator(".walker").inner_text()
    assert re.search(rf"1 of {count} instances", walker)
    selection = page.locator("section[aria-label=Selection]")
    assert name in selection.inner_text()
    begins = re.search(r"begins at\s+([\d.]+ \w+)", selection.inner_text())
    page.locator("canvas.rows").focus()
    shown.press("x")
    assert re.search(rf"2 of {count} instances", page.locator(".walker").inner_text())
    after = re.search(r"begins at\s+([\d.]+ \w+)", selection.inner_text())
    assert begins
    assert after
    assert nanoseconds(after[1]) > nanoseconds(begins[1])
    shown.press("Shift+X")
    assert re.search(rf"1 of {count} instances", page.locator(".walker").inner_text())


def test_instances_are_highlighted_on_the_timeline(shown: Shown) -> None:
    page = shown.page
    job = Job([bundled_capture()])
    opened(shown, "k")
    page.get_by_label("Filter kernels by regular expression").fill("nvjet")
    name = texts(page)[0][0]
    page.locator(".drawer tbody tr[data-key]").first.click()
    shown.settle()
    shown.settle()
    at = job.query(
        f"SELECT start_ns, end_ns FROM kernel_category WHERE kernel = '{name}' AND steady LIMIT 1"
    ).to_pylist()[0]
    middle = (at["start_ns"] + at["end_ns"]) // 2
    link = re.sub(r"t=[-\d]+", f"t={middle - 400_000}-{middle + 400_000}", page.url)
    page.goto(link)
    shown.settle()
    x = shown.x(at["start_ns"])
    drawn = shown.colours(x - 3, shown.track("Stream 7") - 8, 6, 16)
    assert (0xFF, 0xE1, 0x00) in drawn


def test_operators_are_grouped_as_asked(shown: Shown) -> None:
    page = shown.page
    opened(shown, "o")
    assert page.get_by_label("Group by").input_value() == "range"  # it holds no operators
    for by in ("range", "category"):
        page.get_by_label("Group by").select_option(by)
        shown.settle()
        expected = Job([bundled_capture()]).operators(by).to_pylist()
        found = [(c[0], c[1], int(c[2].replace(",", ""))) for c in texts(page)]
        assert found == [(e[by], e["phase"] or "", e["kernels"]) for e in expected]


def test_a_link_reproduces_the_panel(shown: Shown) -> None:
    page = shown.page
    opened(shown, "o")
    page.get_by_label("Group by").select_option("category")
    page.get_by_label("Window of the table").select_option("all")
    page.get_by_role("button", name="median", exact=True).click()
    page.get_by_label("Filter operators by regular expression").fill("a")
    shown.settle()
    page.locator(".drawer tbody tr[data-key]").first.click()
    shown.settle()
    shown.settle()
    link, before = page.url, texts(page)
    chosen = page.locator("tr[aria-selected=true]").inner_text()
    again = Shown(page, link)
    again.settle()
    assert texts(page) == before
    assert page.locator("tr[aria-selected=true]").inner_text() == chosen
    assert "instances" in page.locator(".walker").inner_text()


# --- flame graph ---------------------------------------------------------------------------------


def message(shown: Shown) -> str:
    text: str = shown.page.locator(".flamesays").inner_text()
    return text


def test_the_flame_graph_answers_to_keys(shown: Shown) -> None:
    page = shown.page
    opened(shown, "p")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Flame")
    shown.press("ArrowDown")
    assert message(shown).startswith("Thread 603 · python3 · main: ")
    shown.press("ArrowDown")
    shown.press("ArrowDown")
    first = message(shown)
    shown.press("ArrowRight")
    assert message(shown) != first
    shown.press("ArrowLeft")
    assert message(shown) == first
    shown.press("Enter")
    shown.settle()
    zoomed = page.url
    assert "p.zoom=" in zoomed
    shown.press("Backspace")
    shown.press("Home")
    shown.settle()
    assert "p.zoom=" not in page.url
    again = Shown(page, zoomed)
    assert again.page.url == zoomed


def test_the_flame_graph_weighs_searches_and_turns_over(shown: Shown) -> None:
    page = shown.page
    opened(shown, "p")
    page.get_by_label("What widths mean").select_option("gpu")
    shown.settle()
    job = Job([bundled_capture()])
    ns = job.query("SELECT sum(end_ns - start_ns)::BIGINT AS ns FROM kernel_category WHERE steady")
    total = ns["ns"][0].as_py()
    # the window goes from the first steady step to the last: all that begins in it
    tools = page.locator(".drawer .tools").inner_text()
    shown_total = re.search(r"([\d.]+ \w+) in [\d,]+ nodes", tools)
    assert shown_total
    assert nanoseconds(shown_total[1]) == pytest.approx(total, rel=1e-3)
    page.get_by_label("Search the flame graph").fill("^nvjet")
    found = re.search(r"nodes match, ([\d.]+ \w+)", message(shown))
    nvjet = job.query(
        "SELECT sum(end_ns - start_ns)::BIGINT AS ns FROM kernel_category "
        "WHERE steady AND kernel LIKE 'nvjet%'"
    )
    assert found
    assert nanoseconds(found[1]) == pytest.approx(nvjet["ns"][0].as_py(), rel=1e-3)
    page.get_by_label("bottom up").check()
    shown.settle()
    found = re.search(r"nodes match, ([\d.]+ \w+)", message(shown))
    assert found
    assert nanoseconds(found[1]) == pytest.approx(nvjet["ns"][0].as_py(), rel=1e-3)
    box = page.locator(".drawer canvas").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 8)
    assert re.search(r"^nvjet.*: [\d.]+ ms \(", message(shown))
    page.mouse.click(box["x"] + 20, box["y"] + 8)
    shown.settle()
    assert "p.zoom=" in page.url


# --- notes ---------------------------------------------------------------------------------------


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture beside which notes are kept: the smallest, as each is imported and explained."""
    small = unpack(DATA / "nsys" / "gpt_graph.sqlite.xz")
    return Path(shutil.copy(small, tmp_path / "mine.sqlite"))


@pytest.fixture
def starved(tmp_path: Path) -> Path:
    """The bundled capture, with a place for notes."""
    return Path(shutil.copy(bundled_capture(), tmp_path / "mine.sqlite"))


def post(served: Served, body: Any, below: str = "", **headers: str) -> Answer:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    reply = {
        "origin": f"http://127.0.0.1:{served.port}",
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(
        "POST", served.path + below + "api/note", sent, {k: v for k, v in reply.items() if v}
    )
    answer = connection.getresponse()
    found = Answer(answer.status, dict(answer.getheaders()), answer.read())
    connection.close()
    return found


NOTE: dict[str, Any] = {
    "id": "a1",
    "revision": 0,
    "begin": 5,
    "end": 9,
    "text": "x",
    "deleted": False,
}


def test_only_the_page_itself_may_write(capture: Path) -> None:
    with serving(capture) as served:
        assert post(served, NOTE, origin="").status == 403
        assert post(served, NOTE, origin="http://evil.example").status == 403
        assert post(served, NOTE, origin="null").status == 403
        assert post(served, NOTE, content_type="text/plain").status == 415
        assert post(served, NOTE, sec_fetch_site="cross-site").status == 403
        for wrong in (b"", b"{", b"[]", {**NOTE, "begin": "x"}, {**NOTE, "id": "../../x"}):
            answer = post(served, wrong)
            assert answer.status == 400
            assert json.loads(answer.body)["error"]
        assert post(served, b" " * 2_000_000).status == 400
        assert list(capture.parent.iterdir()) == [capture]
        assert post(served, NOTE).status == 200
        assert post(served, NOTE).status == 409
        assert [n["id"] for n in json.loads(served.get("api/notes").body)["notes"]] == ["a1"]


def test_a_note_that_is_too_long_is_refused_not_cut(capture: Path) -> None:
    with serving(capture) as served:
        for text in ("x" * 10_001, "\N{PILE OF POO}" * 10_001, "x" * 1_000_000):
            answer = post(served, {**NOTE, "text": text})
            assert answer.status == 400
            assert "nothing was written: shorten it" in json.loads(answer.body)["error"]
        assert list(capture.parent.iterdir()) == [capture]
        longest = "\N{PILE OF POO}" * 10_000  # sent as 20,000 escapes
        assert post(served, {**NOTE, "text": longest}).status == 200
        (note,) = json.loads(served.get("api/notes").body)["notes"]
        assert note["text"] == longest


def test_notes_live_on_and_other_tabs_see_them(capture: Path, browser: Any) -> None:
    before = capture.read_bytes()
    with serving(capture) as served, browsing(browser) as page:
        shown = Shown(page, served.address)
        other = page.context.new_page()
        tab = Shown(other, served.address)
        opened(tab, "m")  # a mark in the middle, whose text is asked for
        other.keyboard.type("the long wait")
        other.keyboard.press("Enter")
        tab.settle()
        page.bring_to_front()
        shown.settle()
        shown.page.get_by_role("tab", name="Notes").click()
        box = page.locator(".notes textarea")
        assert box.input_value() == "the long wait"
        # both change it: the later one is told, and its text is not lost
        box.fill("mine")
        other.locator(".notes textarea").fill("theirs")
        other.locator(".notes textarea").press("Enter")
        tab.settle()
        page.locator(".notes textarea").press("Enter")
        shown.settle()
        kept = json.loads(capture.with_name("mine.sqlite.notes.json").read_text())["notes"]
        assert kept[0]["text"] in ("theirs", "mine")
        shown.settle()
        page.keyboard.press("Escape")
        shown.press("u")
        assert "mark at" in page.locator("footer").inner_text()
    assert capture.read_bytes() == before
    with serving(capture) as served, browsing(browser) as page:
        shown = Shown(page, served.address)
        page.get_by_role("tab", name="Notes").click()
        assert page.locator(".notes textarea").input_value() == kept[0]["text"]
        page.get_by_label("Remove the mark").click()
        shown.settle()
        assert page.locator(".notes textarea").count() == 0
        assert page.errors == []


def kept_texts(served: Served) -> list[str]:
    """The texts of the notes that the server keeps."""
    return [note["text"] for note in json.loads(served.get("api/notes").body)["notes"]]


def test_what_is_typed_right_after_the_key_belongs_to_the_note(capture: Path, browser: Any) -> None:
    with serving(capture) as served, browsing(browser) as page:
        shown = Shown(page, served.address)

        def late(route: Any) -> None:  # the server takes its time
            page.wait_for_timeout(400)
            route.continue_()

        page.route("**/api/note", late)
        before = shown.window()
        page.locator("canvas.rows").focus()
        page.keyboard.type("mwas slow")  # w, a, s move the timeline where they are its keys
        assert page.locator(".notes textarea").input_value() == "was slow"
        page.keyboard.press("Enter")
        shown.settle()
        page.wait_for_function(
            "() => document.querySelector('.notes textarea').value === 'was slow'"
        )
        # each change waits for the answer to the one before
        becomes(page, lambda: kept_texts(served), ["was slow"])
        assert shown.window() == before
        # the second change is made before the first is answered: no conflict with oneself
        box = page.locator(".notes textarea")
        for text in ("was slow, once", "was slow, twice"):
            box.fill(text)
            box.press("Enter")
        becomes(page, lambda: kept_texts(served), ["was slow, twice"])
        shown.settle()
        assert box.input_value() == "was slow, twice"
        page.get_by_label("Remove the mark").click()
        shown.settle()
        assert page.errors == []


def test_a_note_that_is_not_kept_says_why_and_keeps_its_text(capture: Path, browser: Any) -> None:
    with serving(capture) as served, browsing(browser) as page:
        shown = Shown(page, served.address)
        opened(shown, "m")
        box = page.locator(".notes textarea")
        assert "10,000 characters" in page.locator(".drawer .tools").inner_text()
        box.fill("x" * 9_500)
        message = page.locator(".notes p")
        assert message.inner_text() == "9,500 of 10,000 characters"
        box.fill("é" * 10_001)
        assert "too long" in message.inner_text()
        box.press("Enter")
        shown.settle()
        assert message.inner_text().startswith("10,001 of 10,000 characters: too long to be saved")
        assert "not saved" in page.locator("footer").inner_text()
        assert box.input_value() == "é" * 10_001
        assert box.get_attribute("aria-invalid") == "true"
        assert json.loads(served.get("api/notes").body)["notes"][0]["text"] == ""
        refusal = {"error": "the disk is full; make room and save again"}
        page.route("**/api/note", lambda route: route.fulfill(status=410, json=refusal))
        box.fill("short")
        box.press("Enter")
        shown.settle()
        assert message.inner_text() == "Not saved: the disk is full; make room and save again"
        assert box.input_value() == "short"
        page.unroute("**/api/note")
        box.press("Enter")
        shown.settle()
        assert message.inner_text() == ""
        assert json.loads(served.get("api/notes").body)["notes"][0]["text"] == "short"
        page.errors.clear()  # the browser reports the refusal itself


def test_a_note_about_the_range(starved: Path, browser: Any) -> None:
    with serving(starved) as served, browsing(browser) as page:
        shown = Shown(page, f"{served.address}#range=60000000-95000000")
        opened(shown, "Shift+M")
        page.keyboard.type("line one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("w s k <b>")  # no key of the timeline acts while one types
        page.keyboard.press("Enter")
        shown.settle()
        note = json.loads(served.get("api/notes").body)["notes"][0]
        assert note["text"] == "line one\nw s k <b>"
        assert (note["begin"], note["end"]) == (60_000_000, 95_000_000)
        y = shown.canvas()["y"]
        drawn = shown.colours(shown.x(60_000_000) - 2, y + 20, 5, 4)
        assert (0xE6, 0x00, 0x9E) in drawn
        assert page.errors == []


# --- links, static page, hostile text ------------------------------------------------------------


def test_forward_and_backward_operators_lead_to_each_other(
    tmp_path: Path, reader: Stepscope, browser: Any
) -> None:
    b = Build()
    b.operator(2, 8, "aten::addmm", sequence_number=7)
    b.operator(20, 30, "AddmmBackward0", thread=AUTOGRAD, sequence_number=7, forward_thread_id=1)
    b.kernel(25, 40, call=(22, 24), thread=AUTOGRAD)
    folder = b.trace(tmp_path).folder
    target = tmp_path / "out.html"
    reader("ui", folder, "--static", target)
    with serving(folder) as served:
        _leads_there_and_back(served.address, browser)
    _leads_there_and_back(target.as_uri(), browser)


def _leads_there_and_back(address: str, browser: Any) -> None:
    with browsing(browser) as page:
        shown = Shown(page, address)
        shown.press("/")
        page.keyboard.type("addmmback")
        page.keyboard.press("Enter")
        shown.settle()
        page.locator("canvas.rows").focus()
        selection = page.locator("section[aria-label=Selection]")
        assert "Forward operator" in selection.inner_text()
        shown.press("b")
        assert "Backward operators" in selection.inner_text()
        assert "aten::addmm" in selection.inner_text()
        shown.press("b")
        assert "Forward operator" in selection.inner_text()
        assert page.errors == []


def test_the_single_file_holds_the_panels(
    starved: Path, tmp_path: Path, reader: Stepscope, browser: Any
) -> None:
    with serving(starved) as served:
        assert post(served, {**NOTE, "begin": 70_000_000, "end": 71_000_000}).status == 200
    target = tmp_path / "out.html"
    reader("ui", starved, "--static", target, "--window", "40ms/120ms")
    job = Job([starved])
    begin, end = 40_000_000, 120_000_000
    with browsing(browser) as page:
        shown = Shown(page, target.as_uri())
        opened(shown, "k")
        page.get_by_label("Window of the table").select_option("all")
        shown.settle()
        expected = job.views.panels.table("kernel", begin, end)["columns"]
        inside = dict(zip((n[0] for n in expected["names"]), expected["count"], strict=True))
        found = {c[0]: int(c[3].replace(",", "")) for c in texts(page)}
        assert found == inside
        page.keyboard.press("ArrowDown")
        shown.press("Enter")
        shown.settle()
        assert texts(page)[0][0] in page.locator("section[aria-label=Selection]").inner_text()
        opened(shown, "p")
        assert "nodes" in page.locator(".drawer .tools").inner_text()
        page.get_by_role("tab", name="Notes").click()
        assert page.locator(".notes textarea").input_value() == "x"
        assert page.locator(".notes textarea").get_attribute("readonly") is not None
        opened(shown, "m")
        assert page.locator(".notes textarea").count() == 1
        assert page.errors == []


def test_hostile_names_in_the_panels_are_only_text(tmp_path: Path, browser: Any) -> None:
    folder = hostile(tmp_path)
    with serving(folder) as served:
        for i, text in enumerate(HOSTILE):
            made = {**NOTE, "id": f"n{i}", "begin": i * 100_000, "text": text[:9000]}
            made["end"] = made["begin"] + 50_000
            assert post(served, made).status == 200
        with browsing(browser) as page:
            shown = Shown(page, served.address)
            for key in "kop":
                opened(shown, key)
                is_harmless(page)
            page.get_by_label("What widths mean").select_option("gpu")
            shown.settle()
            for _ in range(12):
                shown.press("ArrowDown")
                shown.press("ArrowRight")
                is_harmless(page)
            opened(shown, "k")
            for row in range(len(texts(page))):
                page.locator(".drawer tbody tr[data-key]").nth(row).click()
                shown.settle()
                is_harmless(page)
            assert len(texts(page)) >= len(HOSTILE) - 1
            page.get_by_role("tab", name="Notes").click()
            for _ in HOSTILE:
                shown.press("u")
                is_harmless(page)
            assert page.errors == []


def test_a_capture_without_gpu_work_says_why_there_is_no_table(
    tmp_path: Path, browser: Any
) -> None:
    b = Build()
    b.range(0, 10, "alone")
    with serving(b.trace(tmp_path).folder) as served, browsing(browser) as page:
        page.goto(served.address)
        page.wait_for_selector("text=No diagnosis")
        page.get_by_role("tab", name="Kernels").click()
        page.wait_for_selector("footer [role=alert]:has-text('no GPU work')")
        page.get_by_role("tab", name="Flame graph").click()
        page.wait_for_selector(".drawer .tools:has-text('2 nodes')")


def test_the_guide_is_about_the_capture_that_is_shown(shown: Shown) -> None:
    opened(shown, "q")
    panel = shown.page.locator(".drawer .guide")
    panel.locator("li[data-tool]").first.wait_for()
    shown.page.get_by_label("What do you want to know?").select_option("idle_gpu")
    first = panel.locator("li[data-tool]").first
    assert "every gap with its cause" in first.inner_text()
    command = first.locator("code").first.inner_text()
    assert command == f"stepscope diagnose {bundled_capture()}"  # it answers: nothing to record
    shown.settle()
    assert "p.goal=idle_gpu" in shown.page.url


def test_the_help_lists_every_key(shown: Shown) -> None:
    page = shown.page
    page.locator("canvas.rows").focus()
    page.keyboard.press("?")
    text = page.locator("dialog").inner_text()
    for word in ("table of kernels", "flame graph", "set a mark", "forward to backward", "Shift+X"):
        assert word in text
    page.keyboard.press("Escape")


# --- tracks --------------------------------------------------------------------------------------


def tracks(page: Any) -> list[str]:
    found: list[str] = page.locator(".track .title").all_inner_texts()
    return [text.strip("▾▸ ") for text in found]


def test_a_track_moves_by_pointer_and_by_keyboard(shown: Shown) -> None:
    page = shown.page
    first = tracks(page)
    assert first[:4] == ["Steps", "Idle, by cause", "Busy", "Stream 7"]
    box = page.locator(".track", has_text="Stream 7").locator(".title").bounding_box()
    page.mouse.move(box["x"] + 30, box["y"] + 6)
    page.mouse.down()
    page.mouse.move(box["x"] + 30, shown.track("Idle, by cause") - 6, steps=8)
    page.mouse.up()
    shown.settle()
    assert tracks(page)[:4] == ["Steps", "Stream 7", "Idle, by cause", "Busy"]
    title = page.locator(".track", has_text="Stream 7").locator(".title")
    assert title.get_attribute("aria-expanded") == "true"  # the drag was no click
    title.focus()
    shown.press("Alt+ArrowDown")
    assert tracks(page)[:4] == ["Steps", "Idle, by cause", "Stream 7", "Busy"]
    assert "Stream 7" in page.evaluate("document.activeElement.innerText")  # it can go on
    for _ in range(4):
        shown.press("Alt+ArrowUp")
    assert tracks(page)[:4] == ["Stream 7", "Steps", "Idle, by cause", "Busy"]
    assert "edge" in page.locator("footer").inner_text()
    shown.settle()
    link = page.url
    again = Shown(page, link)
    assert tracks(page) == tracks(again.page)
    assert tracks(page)[:4] == ["Stream 7", "Steps", "Idle, by cause", "Busy"]
