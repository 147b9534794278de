"""How fast the default reports come, against the real ``nsys stats``, and in how much memory.

    python benchmarks/stats.py SOURCE.sqlite [--factor 23] [--repeat 2] [--reports NAME,NAME]

Tiles the source trace (23 times the shared launch_bound is a million kernels and two million API
calls), then runs, in turn and in processes of their own: ``nsys stats`` (found through
STEPSCOPE_NSYS, PATH or the usual folders), ``stepscope stats`` with an empty cache (importing
included) and again with the capture in the cache. All write CSV files. Prints the best wall time
and the peak memory of the largest process, and the ratios to nsys; without nsys it says so and
prints its own figures only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nsys_import import tile
from stepscope.importers.nsys.report import find_nsys


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall time (s) and peak memory of the largest process in the tree (MB)."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    assert os.waitstatus_to_exitcode(status) == 0, said.decode()[-500:]
    return wall, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--factor", type=int, default=23)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--reports", default="", help="instead of the default set")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = ["-r", options.reports] if options.reports else []
    nsys = find_nsys()
    if nsys is None:
        print("nsys is not here, so there is nothing to compare with; install it or set "
              "STEPSCOPE_NSYS", file=sys.stderr)  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.source.parent) as folder:
        database = Path(folder) / "tiled.sqlite"
        tile(options.source, database, options.factor, shuffle=False)
        cache = Path(folder) / "cache"
        environment = os.environ | {"STEPSCOPE_CACHE_DIR": str(cache)}
        output = ["-q", "-f", "csv", "-o", str(Path(folder) / "out"), "--force-overwrite", "true"]
        ours = [sys.executable, "-m", "stepscope", "stats", *asked, *output, str(database)]
        best: dict[str, tuple[float, float]] = {}

        def note(name: str, command: list[str]) -> None:
            found = measure(command, environment)
            best[name] = min(best.get(name, found), found)
            print(f"{name:24} {found[0]:8.2f} s {found[1]:8.0f} MB", flush=True)

        for _ in range(options.repeat):
            if nsys:
                note("nsys stats", [str(nsys), "stats", *asked, *output, str(database)])
            shutil.rmtree(cache, ignore_errors=True)
            note("stepscope, first time", ours)
            note("stepscope, from cache", ours)
        report(best, database.stat().st_size / 1e6, options.json)


def report(best: dict[str, tuple[float, float]], size: float, target: Path | None) -> None:
    print(f"\n{size:.0f} MB export; best of the repeats")
    lines: dict[str, Any] = {}
    for name, (wall, memory) in best.items():
        lines[name] = {"wall_s": round(wall, 3), "peak_mb": round(memory)}
        if "nsys stats" in best:
            lines[name]["times_faster"] = round(best["nsys stats"][0] / wall, 1)
            lines[name]["memory_ratio"] = round(memory / best["nsys stats"][1], 2)
        print(f"{name:24} {lines[name]}")
    if target:
        target.write_text(json.dumps(lines, indent=2) + "\n")


if __name__ == "__main__":
    main()
