"""Time the timeline of a large cached trace in a real browser.

usage: python benchmarks/ui.py [--factor 72] [--frames 240] [--screenshot FILE]

Tiles the bundled launch-bound capture to a million and more GPU operations, imports it once, then
starts `stepscope ui` and measures: from the start of the command to the first complete picture,
how long the server needs for a tile, and, by the browser's own clock, how long frames take while
the view is panned and zoomed. Drawing is measured as the time that the page's script takes for a
frame (its animation-frame callback) and as the distance between frames.
"""

from __future__ import annotations

import argparse
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nsys_import import tile

ROOT = Path(__file__).parents[1]
CAPTURE = ROOT / "tests/data/captures/nsys/gpt64_launch_bound.sqlite.xz"
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


def main() -> None:
    from tests.server.browser import browsing, launched  # the repository is on the path by now

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=int, default=24)
    parser.add_argument("--frames", type=int, default=240)
    parser.add_argument("--screenshot", type=Path)
    parser.add_argument("--capture", type=Path, help="a capture instead of the tiled one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as folder, launched() as browser:
        big = arguments.capture or tiled(Path(folder), arguments.factor)
        environment = {**os.environ}
        if not arguments.capture:
            environment["STEPSCOPE_CACHE_DIR"] = str(Path(folder) / "cache")
        stepscope = [sys.executable, "-m", "stepscope"]
        info = subprocess.run(
            [*stepscope, "query", str(big), "SELECT (SELECT count(*) FROM gpu_op) AS gpu, "
             "(SELECT count(*) FROM api_call) AS api"],
            env=environment, check=True, capture_output=True, text=True,
        )  # fmt: skip
        print(info.stdout.splitlines()[-1].strip(), "GPU operations and calls")
        begin = time.perf_counter()
        server = subprocess.Popen(
            [*stepscope, "ui", "--no-browser", str(big)],
            env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout
            address = server.stdout.readline().strip()
            print(f"address printed after    {time.perf_counter() - begin:6.2f} s")
            with browsing(browser) as page:
                page.add_init_script(RECORD)
                page.goto(address)
                page.wait_for_selector("html[data-idle=true]", state="attached")
                print(f"first picture after      {time.perf_counter() - begin:6.2f} s")
                page.wait_for_selector("[aria-label=Findings], h2:has-text('No diagnosis')")
                print(f"diagnosis shown after    {time.perf_counter() - begin:6.2f} s")
                print(f"server's peak memory     {peak_mb(server.pid):6.0f} MB")
                move(page, arguments.frames)
                print(f"server's peak memory     {peak_mb(server.pid):6.0f} MB after moving about")
                if arguments.screenshot:
                    page.screenshot(path=arguments.screenshot)
        finally:
            server.terminate()
            server.wait()


def tiled(folder: Path, factor: int) -> Path:
    source, big = folder / "one.sqlite", folder / "big.sqlite"
    source.write_bytes(lzma.decompress(CAPTURE.read_bytes()))
    tile(source, big, factor, shuffle=False)
    return big


def move(page: Any, frames: int) -> None:
    """Pan by dragging at three zooms, then zoom in and out, one input event a frame."""
    box = page.locator("canvas.rows").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 150
    page.mouse.move(x, y)
    for zoom, presses in (("all", 0), ("1/20", 10), ("1/400", 10)):
        for _ in range(presses):
            page.keyboard.press("w")
        page.wait_for_timeout(600)
        reset(page)
        page.mouse.down()
        for i in range(frames):
            page.mouse.move(x + 250 * ((i % 40) / 40 - 0.5), y)
        page.mouse.up()
        show(page, f"pan at {zoom}")
    reset(page)
    for i in range(frames // 2):
        page.keyboard.press("s" if i % 40 < 20 else "w")
    show(page, "zoom in and out")


def reset(page: Any) -> None:
    page.evaluate("() => { window.frames_ms.length = 0; window.script_ms.length = 0; }")


def show(page: Any, what: str) -> None:
    script = page.evaluate("() => window.script_ms")
    between = page.evaluate("() => window.frames_ms")
    cuts = [statistics.quantiles(v, n=20) if len(v) > 2 else [0.0] * 19 for v in (script, between)]
    told = [f"median {cut[9]:6.2f} ms, p95 {cut[18]:6.2f} ms" for cut in cuts]
    print(f"{what:16} {len(script):4} frames; script {told[0]}; between frames {told[1]}")


def peak_mb(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    line = next(row for row in status.splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
