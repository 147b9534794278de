"""Time a diagnosis of a cached trace of a million GPU operations, and start-up.

usage: python benchmarks/diagnose.py [--factor 24] [--repeat 3]

Tiles the bundled launch-bound capture, imports it once, then runs each contender in a process of
its own: reading the columns an analysis needs (the floor), the whole command, and the start-up of
the interpreter and of the command. Prints wall, CPU, peak memory and ratios of one run.
"""

from __future__ import annotations

import argparse
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nsys_import import tile

CAPTURE = Path(__file__).parents[1] / "tests/data/captures/nsys/gpt64_launch_bound.sqlite.xz"

FLOOR = """
import sys
from pathlib import Path
import pyarrow.parquet as pq
from stepscope.activity.device import API_COLUMNS, GPU_COLUMNS
entry = Path(sys.argv[1])
pq.read_table(entry / "gpu_op.parquet", columns=list(GPU_COLUMNS))
pq.read_table(entry / "api_call.parquet", columns=list(API_COLUMNS))
"""


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Wall s, CPU s and peak MB of a process."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    if status:
        raise SystemExit(f"failed: {' '.join(command[:4])}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as folder:
        source, big = Path(folder) / "one.sqlite", Path(folder) / "big.sqlite"
        source.write_bytes(lzma.decompress(CAPTURE.read_bytes()))
        tile(source, big, arguments.factor, shuffle=False)
        cache = Path(folder) / "cache"
        environment = {**os.environ, "STEPSCOPE_CACHE_DIR": str(cache)}
        stepscope = [sys.executable, "-m", "stepscope"]
        imported = measure([*stepscope, "info", str(big)], environment)
        entry = next(cache.glob("*.stepscope"))
        contenders = {
            "read the columns (floor)": [sys.executable, "-c", FLOOR, str(entry)],
            "diagnose, first time": [*stepscope, "diagnose", str(big), "--format", "json"],
            "diagnose, again": [*stepscope, "diagnose", str(big), "--format", "json"],
            "python -c pass": [sys.executable, "-c", "pass"],
            "stepscope --version": [*stepscope, "--version"],
        }
        size = big.stat().st_size / 1e6
        print(f"{size:.0f} MB SQLite, imported in {imported[0]:.2f} s, {imported[2]:.0f} MB peak")
        print(f"{'':28} {'wall s':>8} {'CPU s':>8} {'peak MB':>8} {'x floor':>8}")
        floor = None
        for name, command in contenders.items():
            measured = []
            for _ in range(arguments.repeat):
                for kept in entry.glob("answer-*") if name.endswith("first time") else ():
                    kept.unlink()
                measured.append(measure(command, environment))
            best = min(measured)
            floor = floor or best[0]
            print(f"{name:28} {best[0]:8.3f} {best[1]:8.3f} {best[2]:8.0f} {best[0] / floor:8.2f}")


if __name__ == "__main__":
    main()
