"""How long a diagnosis of several ranks takes, and in how much memory.

    python benchmarks/ranks.py RANK.sqlite... [--ranks 8] [--operations 100000]

Repeats each capture until it holds that many GPU operations, copies the ranks until there are
enough, then runs ``stepscope diagnose`` in a process of its own: with an empty cache (importing
included) and again with the captures in the cache. Prints wall time and peak memory.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from pathlib import Path

from nsys_import import length_ns, tile
from stats import measure


def operations(path: Path) -> int:
    """Number of kernels and copies of an Nsight Systems export."""
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    connection.close()
    return int(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--operations", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.sources[0].parent) as folder:
        paths = []
        span = max(map(length_ns, options.sources))  # ranks stay together from copy to copy
        factor = max(1, options.operations // min(map(operations, options.sources)))
        for rank in range(options.ranks):
            source = options.sources[rank % len(options.sources)]
            path = Path(folder) / f"job.rank{rank}.sqlite"
            tile(source, path, factor, shuffle=False, span_ns=span)
            paths.append(path)
        environment = os.environ | {"STEPSCOPE_CACHE_DIR": str(Path(folder) / "cache")}
        command = [sys.executable, "-m", "stepscope", "diagnose", *map(str, paths)]
        total = sum(map(operations, paths))
        print(f"{options.ranks} ranks, {total:,} kernels")
        for label in ("with an empty cache", "from the cache"):
            wall, memory, _ = measure(command, environment)
            print(f"{label:20} {wall:6.2f} s {memory:7.0f} MB")


if __name__ == "__main__":
    main()
