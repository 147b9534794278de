"""Time the timeline of a trace of ten million events in a real browser.

usage: python benchmarks/ui.py [--steps 520] [--capture FILE] [--frames 120] [--diagnose]

Writes the synthetic trace of `big_trace.py` (or takes a capture), lets `stepscope ui` store its
timeline once, ends it, and starts it again: that is what is measured.

- process start: from the start of the command to its first line of Python's own
- server ready: to the printed address
- picture: to the frame in which every track in view is drawn, by the page's own mark
- first table, steps (with --panels): from the key to the kernels of the steady steps, and from a
  link to the steps side by side; the first of them waits until the capture is explained
- diagnosis (with --diagnose): waited for first, else it competes with the frames for the processor
- frames: by the browser's clock, while the view is panned and zoomed with one input event a frame:
  the script's share of each frame, the distance between frames, and, from the browser's own trace,
  how long its main thread was busy for each frame; before and after stands the floor, a page that
  only fills a canvas
- memory of the server: the most that was resident, sampled while it opens, pans, zooms, searches
  and selects; apart from that, what of it is mapped from files, which the system may drop
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from big_trace import write

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

RECORD = """
(() => {
  const ask = window.requestAnimationFrame.bind(window);
  window.frames_ms = [];
  window.script_ms = [];
  let last = 0;
  window.requestAnimationFrame = (run) => ask((now) => {
    if (last) window.frames_ms.push(now - last);
    last = now;
    const begin = performance.now();
    run(now);
    window.script_ms.push(performance.now() - begin);
  });
})();
"""
BLANK = """() => {
  const canvas = document.querySelector("canvas");
  const context = canvas.getContext("2d", { alpha: false, desynchronized: true });
  let frame = 0;
  canvas.addEventListener("pointermove", () => {
    frame ||= requestAnimationFrame((now) => {
      frame = 0;
      context.fillStyle = `rgb(${now % 255}, 9, 9)`;
      context.fillRect(0, 0, canvas.width, canvas.height);
    });
  });
}"""
FRAME_MS = 16.0


class Memory:
    """The most that a process held, in MB, sampled each 20 ms."""

    def __init__(self, process: int) -> None:
        self._path = Path(f"/proc/{process}/status")
        self.whole = self.anonymous = self.file = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            try:
                rows = dict(r.split(":", 1) for r in self._path.read_text().splitlines())
                whole, own = (int(rows[k].split()[0]) / 1024 for k in ("VmRSS", "RssAnon"))
            except (OSError, KeyError, ValueError):
                return
            self.anonymous = max(self.anonymous, own)
            if whole > self.whole:
                self.whole, self.file = whole, whole - own

    def __str__(self) -> str:
        return (
            f"{self.whole:5.0f} MB resident at most, {self.file:4.0f} MB of it mapped from files; "
            f"own memory at most {self.anonymous:4.0f} MB"
        )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    from tests.server.browser import browsing, launched  # the repository is on the path by now

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=520)
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--screenshot", type=Path)
    parser.add_argument("--trace", type=Path, help="where the browser's own trace is written")
    parser.add_argument("--capture", type=Path, help="a capture instead of the synthetic trace")
    parser.add_argument("--cache", type=Path, help="a cache folder that is kept")
    parser.add_argument("--diagnose", action="store_true", help="wait for the diagnosis as well")
    parser.add_argument("--panels", action="store_true", help="only the first table and the steps")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as folder, launched() as browser:
        big = arguments.capture or Path(folder) / "big.stepscope"
        if not arguments.capture:
            print(", ".join(f"{n:,} {t}" for t, n in write(big, arguments.steps).items()))
        cache = arguments.cache or Path(folder) / "cache"
        environment = {**os.environ, "STEPSCOPE_CACHE_DIR": str(cache)}
        begin = time.perf_counter()
        server, _ = started(big, environment)
        print(f"stored timeline ready     {time.perf_counter() - begin:6.2f} s (once)")
        ended(server)
        stored = sum(f.stat().st_size for f in cache.rglob("*.arrays"))
        tables = sum(f.stat().st_size for f in (big if big.is_dir() else cache).rglob("*.parquet"))
        times = stored / tables
        print(f"stored on disk            {stored / 1e6:6.0f} MB, {times:.1f} times the tables")
        floor = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import numpy, asyncio"], check=True)
        print(f"floor: Python with numpy and asyncio {time.perf_counter() - floor:6.2f} s")
        for attempt in range(3):
            forget(cache, big)
            clock = time.time()
            server, address = started(big, environment)
            ready = time.time() - clock
            memory = Memory(server.pid)
            try:
                with browsing(browser) as page:
                    page.add_init_script(RECORD)
                    asked = time.time() - clock
                    page.goto(address)
                    page.wait_for_selector("html[data-idle=true]", state="attached")
                    drawn = page.evaluate(
                        "() => performance.timeOrigin + "
                        "performance.getEntriesByName('first-picture')[0].startTime"
                    )
                    print(
                        f"start {attempt}: server ready {ready:5.2f} s, page asked {asked:5.2f} s, "
                        f"first picture {drawn / 1000 - clock:5.2f} s"
                    )
                    if arguments.panels:
                        panels(page, address)
                        print(f"server: {memory}")
                        continue
                    if attempt < 2:
                        continue
                    if arguments.diagnose:
                        page.wait_for_selector("[aria-label=Findings]", timeout=900_000)
                        print(f"diagnosis shown {time.time() - clock:6.1f} s after the start")
                        print(f"server: {memory}")
                    blank(browser, arguments)
                    use(page, browser, arguments)
                    blank(browser, arguments)
                    print(f"server: {memory}")
                    if arguments.screenshot:
                        page.screenshot(path=arguments.screenshot)
            finally:
                memory.stop()
                ended(server)


def forget(*folders: Path) -> None:
    """Let the system drop what it keeps of these files in memory: each start reads the disk."""
    for folder in folders:
        for path in folder.rglob("*") if folder.is_dir() else [folder]:
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def panels(page: Any, address: str) -> None:
    """The first table of kernels, and the steps side by side."""
    begin = time.perf_counter()
    page.locator("canvas.rows").focus()
    page.keyboard.press("k")
    page.wait_for_selector(".drawer tbody tr[data-key]", timeout=900_000)
    print(f"first table of kernels {time.perf_counter() - begin:6.2f} s")
    begin = time.perf_counter()
    page.goto("about:blank")
    page.goto(f"{address}#view=steps")
    page.wait_for_selector(".stepsmain .tools select", timeout=900_000)
    page.wait_for_selector("html[data-idle=true]", state="attached")
    print(f"steps side by side     {time.perf_counter() - begin:6.2f} s")


def blank(browser: Any, arguments: argparse.Namespace) -> None:
    """The floor of a frame: a page that only fills one canvas of the same size."""
    from tests.server.browser import browsing

    with browsing(browser) as page:
        page.add_init_script(RECORD)
        page.goto("data:text/html,<body><canvas class=rows width=1100 height=700></canvas>")
        page.evaluate(BLANK)
        box = page.locator("canvas.rows").bounding_box()
        with Traced(page, browser, "floor: a blank canvas", arguments):
            for i in range(arguments.frames):
                page.mouse.move(box["x"] + 300 + i % 40, box["y"] + 150)


def started(capture: Path, environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "ui", "--no-browser", str(capture)],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout
    return server, server.stdout.readline().strip()


def ended(server: subprocess.Popen[str]) -> None:
    server.terminate()
    server.wait()


def use(page: Any, browser: Any, arguments: argparse.Namespace) -> None:
    """Pan and zoom, search, select, choose a range."""
    move(page, browser, arguments)
    for text in ("gelu", "request 77", "/layer 5.$/"):
        begin = time.perf_counter()
        page.locator("input[type=search]").last.fill(text)
        page.keyboard.press("Enter")
        page.wait_for_selector("[aria-label='Search results'] button", timeout=60_000)
        page.wait_for_selector("html[data-idle=true]", state="attached")
        print(f"search {text!r:14} and fly to the first hit {time.perf_counter() - begin:6.2f} s")
        page.keyboard.press("Escape")
    page.locator("canvas.rows").focus()
    begin = time.perf_counter()
    for _ in range(10):
        page.keyboard.press(".")
        page.wait_for_selector("html[data-idle=true]", state="attached")
    print(f"select the next slice     {(time.perf_counter() - begin) / 10 * 1000:6.0f} ms each")
    page.keyboard.press("0")
    page.wait_for_timeout(300)
    box = page.locator("canvas.axis").bounding_box()
    begin = time.perf_counter()
    page.mouse.move(box["x"] + 5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 20, steps=3)
    page.mouse.up()
    page.wait_for_selector("[aria-label=Range] table, [aria-label=Range] h2", timeout=60_000)
    print(f"statistics of all of it   {time.perf_counter() - begin:6.2f} s")


def move(page: Any, browser: Any, arguments: argparse.Namespace) -> None:
    """Pan by dragging at four zooms, then zoom in and out, one input event a frame."""
    frames = arguments.frames
    box = page.locator("canvas.rows").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 150
    page.mouse.move(x, y)
    for zoom, presses in (("all", 0), ("1/20", 10), ("1/400", 10), ("1/8000", 10)):
        for _ in range(presses):
            page.keyboard.press("w")
        page.wait_for_timeout(600)
        with Traced(page, browser, f"pan at {zoom}", arguments):
            page.mouse.down()
            for i in range(frames):
                page.mouse.move(x + 250 * ((i % 40) / 40 - 0.5), y)
            page.mouse.up()
    with Traced(page, browser, "zoom in and out", arguments):
        for i in range(frames):
            page.keyboard.press("s" if i % 40 < 20 else "w")


class Traced:
    """Reads the browser's clocks while a block runs, and says what they say."""

    def __init__(self, page: Any, browser: Any, what: str, arguments: argparse.Namespace) -> None:
        self._page, self._browser, self._what, self._arguments = page, browser, what, arguments

    def __enter__(self) -> None:
        self._page.evaluate("() => { frames_ms.length = 0; script_ms.length = 0; }")
        self._browser.start_tracing(page=self._page, categories=["toplevel", "devtools.timeline"])

    def __exit__(self, *_: object) -> None:
        events = json.loads(self._browser.stop_tracing())["traceEvents"]
        if self._arguments.trace:
            name = self._what.replace(" ", "_").replace("/", "_")
            self._arguments.trace.with_suffix(f".{name}.json").write_text(
                json.dumps({"traceEvents": events})
            )
        script = self._page.evaluate("() => script_ms")
        between = self._page.evaluate("() => frames_ms")
        busy = main_thread_ms(events, "dur")
        own = main_thread_ms(events, "tdur")
        facts = []
        for name, values in (
            ("script", script),
            ("main thread", busy),
            ("its processor time", own),
            ("between", between),
        ):
            cut = statistics.quantiles(values, n=20) if len(values) > 2 else [0.0] * 19
            facts.append(f"{name} median {cut[9]:5.1f}, p95 {cut[18]:5.1f}")
        p95 = statistics.quantiles(busy, n=20)[18] if len(busy) > 2 else 0.0
        sound = "holds" if p95 < FRAME_MS else "does NOT hold"
        print(
            f"{self._what:22} {len(script):4} frames, ms: {'; '.join(facts)}; "
            f"{FRAME_MS:.0f} ms {sound}"
        )


def main_thread_ms(events: list[dict[str, Any]], clock: str) -> list[float]:
    """How long the page's main thread worked for each frame that it made, ms.

    Args:
        events: the browser's trace.
        clock: ``dur``, by the wall clock, or ``tdur``, by the thread's own, which other processes
            on a busy machine do not lengthen.
    """
    threads = {
        (e["pid"], e["tid"])
        for e in events
        if e.get("name") == "thread_name" and e["args"].get("name") == "CrRendererMain"
    }
    of_page: dict[tuple[int, int], list[tuple[int, int, bool]]] = {t: [] for t in threads}
    for e in events:
        where = (e.get("pid"), e.get("tid"))
        if where not in of_page or e.get("ph") != "X":
            continue
        if e["name"] in ("ThreadControllerImpl::RunTask", "RunTask"):
            of_page[where].append((e["ts"], e.get(clock, 0), False))
        elif e["name"] == "FireAnimationFrame":
            of_page[where].append((e["ts"], 0, True))
    found: list[float] = []
    tasks = max(of_page.values(), key=lambda rows: sum(r[2] for r in rows), default=[])
    pending = 0.0
    for _, ns, fires in sorted(tasks, key=lambda r: (r[0], -r[1])):
        if fires:
            found.append(pending / 1000)
            pending = 0.0
        else:
            pending += ns
    return found


if __name__ == "__main__":
    main()
