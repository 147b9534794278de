"""Drives the timeline in a real Chromium; skips, and says why, where there is none."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

NAMES = (
    "chromium-headless-shell",  # the same without a browser around it, a third less time
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
)
WIDTH, HEIGHT = 1500, 850
WAIT_MS = 60_000
FLAGS = ["--no-sandbox", "--renderer-process-limit=1", "--disable-site-isolation-trials"]
"""One process draws all pages: one for each load takes half of the time of a test."""
WATCH = """
(() => {
  const set = window.setTimeout.bind(window), clear = window.clearTimeout.bind(window);
  const draw = window.requestAnimationFrame.bind(window);
  const drop = window.cancelAnimationFrame.bind(window);
  const timers = new Set(), frames = new Set();
  let asked = 0;
  window.setTimeout = (run, wait = 0, ...given) => {
    // a pause in which the page gathers what a person does quickly: tests do one thing at a time
    const pause = wait >= 100 && wait <= 300;
    const happen = (...args) => { timers.delete(id); run(...args); };
    const id = set(happen, pause ? wait / 10 : wait, ...given);
    if (wait <= 300) timers.add(id);
    return id;
  };
  window.clearTimeout = (id) => { timers.delete(id); clear(id); };
  window.requestAnimationFrame = (run) => {
    const id = draw((time) => { frames.delete(id); run(time); });
    frames.add(id);
    return id;
  };
  window.cancelAnimationFrame = (id) => { frames.delete(id); drop(id); };
  const counted = (owner, name) => {
    const real = owner[name];
    owner[name] = async function (...given) {
      asked++;
      try { return await real.apply(this, given); } finally { asked--; }
    };
  };
  counted(window, "fetch");
  for (const name of ["json", "text", "blob", "arrayBuffer"]) counted(Response.prototype, name);
  window.stepscopeSettled = async (limit, wanted) => {
    const end = performance.now() + limit;
    for (let calm = 0; calm < 4; ) {
      // pages that are not shown draw nothing
      await new Promise((go) => { draw(go); set(go, 50); });
      const idle =
        document.documentElement.dataset.idle === "true" && document.querySelector(wanted);
      calm = idle && !timers.size && !frames.size && !asked ? calm + 1 : 0;
      if (performance.now() > end) throw new Error("the page does not come to rest");
    }
  };
})();
"""
"""Counts what a page has begun (timers, frames, questions), so that no test guesses how long."""


def chromium() -> str:
    """Path of a Chromium; skips where none is installed."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"needs Chromium, which is not installed (Debian: apt-get install {NAMES[0]})")
    return found


@contextlib.contextmanager
def launched(*flags: str) -> Iterator[Any]:
    """A browser for as long as the block, with further flags; skips where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = chromium()
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def browsing(browser: Any, **options: Any) -> Iterator[Any]:
    """A page with a profile of its own; ``page.errors`` collects what it complains about."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, **options)
    context.add_init_script(WATCH)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda output: errors.append(output.text) if output.type == "error" else None
    )
    page.errors = errors
    try:
        yield page
    finally:
        context.close()


def load(page: Any, address: str, wanted: str = "html") -> None:
    """Load a page from the beginning, and wait until it is at rest and holds an element.

    Waits in the page itself: to look for an element, playwright loads a program of its own into
    each page, which takes an eighth of the time of a load.
    """
    if "#" in address:  # else only the fragment of a page that is shown would change
        page.goto("about:blank")
    page.goto(address)
    settle(page, wanted)


def settle(page: Any, wanted: str = "html") -> None:
    """Wait until all that was done has had its effect: nothing is asked, drawn or pending."""
    from playwright.sync_api import Error

    settled = f"stepscopeSettled({WAIT_MS}, {json.dumps(wanted)})"
    try:
        page.evaluate(settled)
    except Error as error:
        if "navigation" not in str(error):
            raise
        page.wait_for_selector("html[data-idle]", state="attached")  # of the next page
        page.evaluate(settled)


def becomes(page: Any, found: Callable[[], T], wanted: T) -> None:
    """Wait, while the page goes on, until something outside of it is as it should be."""
    for _ in range(WAIT_MS // 50):
        if found() == wanted:
            return
        page.wait_for_timeout(50)
    assert found() == wanted


class Shown:
    """A page with a timeline, and what is read off it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        load(page, address, "[aria-label=Findings]")

    def settle(self) -> None:
        """Wait until nothing is being asked and the link says what is shown."""
        settle(self.page)

    def window(self) -> tuple[float, float]:
        """Begin and end of what is shown, ns, from the link."""
        found = re.search(r"[#&]t=(-?\d+)-(\d+)", self.page.url)
        assert found, self.page.url
        return float(found[1]), float(found[2])

    def span(self) -> float:
        begin, end = self.window()
        return end - begin

    def canvas(self) -> dict[str, float]:
        box: dict[str, float] = self.page.locator("canvas.rows").bounding_box()
        return box

    def track(self, title: str) -> float:
        """Middle of the first row of a track, in pixels from the top of the page."""
        box = self.page.locator(".track", has_text=title).first.bounding_box()
        return float(box["y"]) + 8

    def x(self, time_ns: float) -> float:
        """Where a time is drawn, in pixels from the left of the page."""
        begin, end = self.window()
        box = self.canvas()
        return box["x"] + (time_ns - begin) / (end - begin) * box["width"]

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)
        self.settle()

    def colours(self, left: float, top: float, width: float, height: float) -> set[tuple[int, ...]]:
        """Distinct colours of a part of the picture."""
        clip = {"x": left, "y": top, "width": width, "height": height}
        return set(pixels(self.page.screenshot(clip=clip)))


def pixels(png: bytes) -> list[tuple[int, ...]]:
    """Pixels of a PNG of 8 bits a channel, without interlacing, as Chromium writes them."""
    import struct
    import zlib

    at, data = 8, b""
    width = height = channels = 0
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, bits, colour = struct.unpack(">IIBB", content[:10])
            assert bits == 8
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += content
        at += 12 + length
    raw, line = zlib.decompress(data), width * channels
    before = bytearray(line)
    found: list[tuple[int, ...]] = []
    for y in range(height):
        filtering, row = (
            raw[y * (line + 1)],
            bytearray(raw[y * (line + 1) + 1 : (y + 1) * (line + 1)]),
        )
        for i in range(line):
            left = row[i - channels] if i >= channels else 0
            corner = before[i - channels] if i >= channels else 0
            row[i] = (row[i] + _predicted(filtering, left, before[i], corner)) & 255
        found += [tuple(row[i : i + 3]) for i in range(0, line, channels)]
        before = row
    return found


def _predicted(filtering: int, left: int, up: int, corner: int) -> int:
    if filtering == 4:
        guess = left + up - corner
        return min((left, up, corner), key=lambda value: abs(guess - value))
    return (0, left, up, (left + up) // 2)[filtering]
