"""How the time and memory of a diagnosis grow with the capture: 10^5 to 10^7 GPU operations.

    python benchmarks/scale_curve.py [--operations 100000 1000000 10000000] [--kind nsys kineto]

For each size a capture is tiled from a bundled one and diagnosed in processes of their own: cold
(imported into an empty cache first) and cached. The floor is measured in the same run: reading the
columns that the import asks for with ADBC (nsys), or parsing the JSON into typed structs with
msgspec (kineto), in one piece. Printed are wall and CPU seconds with start-up, peak memory, and
ratios to the floor and to the file. A JSON of 10^7 operations has some 10 GB and needs several
times that memory to be parsed in one piece: kineto stops at ``--most-json`` operations.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kineto_import
import nsys_import
from kineto_import import peak_megabytes

CAPTURE = Path(__file__).parents[1] / "tests/data/captures/nsys/gpt64_launch_bound.sqlite.xz"


def diagnose(path: Path) -> None:
    from stepscope.cli.main import main

    sys.argv = ["stepscope", "diagnose", str(path), "--format", "json"]
    main()


CONTENDERS: dict[str, Callable[[Path], object]] = {
    "floor nsys": nsys_import.read_columns,
    "floor kineto": kineto_import.msgspec_typed,
    "diagnose": diagnose,
}


def run(name: str, path: Path) -> None:
    """Run one contender here; what it took goes to the last line of standard error."""
    wall = time.perf_counter()
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the end
    try:
        CONTENDERS[name](path)
    except SystemExit as done:
        if done.code:
            raise
    times = os.times()
    figures = {
        "wall": time.perf_counter() - wall,
        "cpu": times.user + times.system + times.children_user + times.children_system,
        "peak": peak_megabytes(),
    }
    print(json.dumps(figures), file=sys.stderr)


def measure(name: str, path: Path, cache: Path) -> dict[str, float]:
    """Wall s, CPU s and peak MB of a contender in a process of its own."""
    environment = {**os.environ, "STEPSCOPE_CACHE_DIR": str(cache)}
    command = [sys.executable, __file__, "--run", name, str(path)]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr.strip()[-400:]}")
    figures: dict[str, float] = json.loads(done.stderr.strip().splitlines()[-1])
    return {**figures, "wall": time.perf_counter() - began}


def nsys(folder: Path, operations: int) -> tuple[Path, int]:
    """A SQLite export of so many operations, about; returns it and how many."""
    import sqlite3

    source, path = folder / "one.sqlite", folder / f"{operations}.sqlite"
    source.write_bytes(lzma.decompress(CAPTURE.read_bytes()))
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    connection = sqlite3.connect(source)
    counts = [
        connection.execute(f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{t}").fetchone()[0]
        for t in tables
    ]
    connection.close()
    factor = max(round(operations / sum(counts)), 1)
    nsys_import.tile(source, path, factor, shuffle=False)
    nsys_import.record_columns(source, path.with_suffix(".columns.json"))
    return path, factor * sum(counts)


def kineto(folder: Path, operations: int) -> tuple[Path, int]:
    """A PyTorch trace of so many operations, about; returns it and how many."""
    from stepscope.importers.common.stream import open_text

    with open_text(kineto_import.BUNDLED) as read:
        text = b"".join(iter(read, b""))
    one = sum(text.count(b'"cat": "%s"' % c) for c in (b"kernel", b"gpu_memcpy", b"gpu_memset"))
    factor = max(round(operations / one), 1)
    path = folder / f"{operations}.json"
    kineto_import.build(kineto_import.BUNDLED, path, factor)
    return path, factor * one


KINDS = {"nsys": nsys, "kineto": kineto}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, nargs="*", default=[10**5, 10**6, 10**7])
    parser.add_argument("--kind", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--most-json", type=int, default=10**6)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run[0], Path(arguments.run[1]))
        return
    print(
        f"{'':10}{'operations':>12}{'file MB':>9} {'contender':10}{'wall s':>8}{'CPU s':>8}"
        f"{'peak MB':>9}{'x floor':>9}{'CPU x':>8}{'peak/file':>11}"
    )
    for kind in arguments.kind:
        for operations in arguments.operations:
            if kind == "kineto" and operations > arguments.most_json:
                continue
            with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as name:
                curve(kind, Path(name), operations)


def curve(kind: str, folder: Path, operations: int) -> None:
    """Measure one size and print its lines."""
    path, count = KINDS[kind](folder, operations)
    megabytes = path.stat().st_size / 1e6
    with path.open("rb") as stream:
        while stream.read(1 << 24):  # everybody starts with the file in the page cache
            pass
    floor = measure(f"floor {kind}", path, folder)
    cache = folder / "cache"
    lines = {"floor": floor}
    lines["cold"] = measure("diagnose", path, cache)
    lines["cached"] = measure("diagnose", path, cache)
    for name, line in lines.items():
        print(
            f"{kind:10}{count:12,}{megabytes:9.0f} {name:10}{line['wall']:8.2f}{line['cpu']:8.2f}"
            f"{line['peak']:9.0f}{line['wall'] / floor['wall']:9.2f}"
            f"{line['cpu'] / floor['cpu']:8.2f}{line['peak'] / megabytes:11.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
