"""How fast reports come, against the real ``nsys stats``, and in how much memory.

    python benchmarks/stats.py SOURCE.sqlite [--factor 23] [--repeat 2] [--sets default,trace]

Tiles the source trace (23 times the shared launch_bound is a million kernels and two million API
calls), then runs, in turn and in processes of their own: ``nsys stats`` (found through
STEPSCOPE_NSYS, PATH or the usual folders), ``stepscope stats`` with an empty cache (importing
included) and again with the capture in the cache. All write CSV files, which are compared byte by
byte. Two sets of reports are asked for: the default one, and the trace of all GPU work. Prints the
best wall time and the peak memory of the largest process, and the ratios to nsys; without nsys it
says so and prints its own figures only.
"""

from __future__ import annotations

import argparse
import filecmp
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
from stepscope.importers.nsys.sqlite_source import find_nsys


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Wall time (s), peak memory of the largest process in the tree (MB), processor time (s).

    The last hardly depends on what else the machine does.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    stated = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    assert os.waitstatus_to_exitcode(status) == 0, stated.decode()[-500:]
    return wall, usage.ru_maxrss / 1000, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--factor", type=int, default=23)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    nsys = find_nsys()
    if nsys is None:
        print("nsys is not here, so there is nothing to compare with; install it or set "
              "STEPSCOPE_NSYS", file=sys.stderr)  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.source.parent) as folder:
        database = Path(folder) / "tiled.sqlite"
        tile(options.source, database, options.factor, shuffle=False)
        print(f"{database.stat().st_size / 1e6:.0f} MB export")
        lines = {
            name: compare(database, SETS[name], nsys, options.repeat)
            for name in options.sets.split(",")
        }
    if options.json:
        options.json.write_text(json.dumps(lines, indent=2) + "\n")


SETS: dict[str, list[str]] = {"default": [], "trace": ["-r", "cuda_gpu_trace"]}


def compare(database: Path, asked: list[str], nsys: Path | None, repeat: int) -> dict[str, Any]:
    cache = database.parent / "cache"
    environment = os.environ | {"STEPSCOPE_CACHE_DIR": str(cache)}
    # an installed package has compiled modules, and so has a checkout after its first run
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    best: dict[str, tuple[float, float, float]] = {}

    def note(name: str, program: list[str]) -> None:
        target = database.parent / name.split(maxsplit=1)[0].strip(",")
        output = ["-q", "-f", "csv", "-o", str(target), "--force-overwrite", "true"]
        found = measure([*program, "stats", *asked, *output, str(database)], environment)
        best[name] = min(best.get(name, found), found)
        print(
            f"{name:24} {found[0]:8.2f} s {found[1]:8.0f} MB {found[2]:8.2f} s of CPU", flush=True
        )

    ours = [sys.executable, "-m", "stepscope"]
    for _ in range(repeat):
        if nsys:
            note("nsys stats", [str(nsys)])
        shutil.rmtree(cache, ignore_errors=True)
        note("stepscope, first time", ours)
        note("stepscope, from cache", ours)
    if nsys:
        assert_same(database.parent)
    return report(best, " ".join(asked) or "default reports")


def assert_same(folder: Path) -> None:
    """Every report that both wrote holds the same bytes; those without rows nsys leaves out."""
    compared = 0
    for file in folder.glob("stepscope_*.csv"):
        theirs = file.with_name(file.name.replace("stepscope", "nsys", 1))
        if theirs.exists() and theirs.stat().st_size > 1:
            compared += 1
            if not filecmp.cmp(file, theirs, shallow=False):
                print(f"{file.name} differs from that of nsys", file=sys.stderr)
        file.unlink()
    print(f"{compared} files compared")


def report(best: dict[str, tuple[float, float, float]], asked: str) -> dict[str, Any]:
    print(f"\n{asked}, best of the repeats")
    lines: dict[str, Any] = {}
    for name, (wall, memory, processor) in best.items():
        lines[name] = {
            "wall_s": round(wall, 3),
            "peak_mb": round(memory),
            "cpu_s": round(processor, 2),
        }
        if "nsys stats" in best:
            lines[name]["times_faster"] = round(best["nsys stats"][0] / wall, 1)
            lines[name]["memory_ratio"] = round(memory / best["nsys stats"][1], 2)
        print(f"{name:24} {lines[name]}")
    return lines


if __name__ == "__main__":
    main()
