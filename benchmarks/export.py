"""Time the exports of a synthetic trace of a million GPU operations.

usage: python benchmarks/export.py [--steps 180] [--trace FOLDER.stepscope]

Prints slices a second, the file's size and the most memory that the process held, for each format;
as the floor, how long the same number of short lines takes to format and write.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from big_trace import write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--trace", type=Path, help="an existing trace instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as folder:
        trace = arguments.trace or Path(folder) / "big.stepscope"
        if not arguments.trace:
            print(", ".join(f"{n:,} {t}" for t, n in write(trace, arguments.steps).items()))
        environment = {**os.environ, "STEPSCOPE_CACHE_DIR": str(Path(folder) / "cache")}
        for kind in ("perfetto", "chrome", "speedscope"):
            target = Path(folder) / f"out.{kind}"
            begin = time.perf_counter()
            code = (
                "import resource, sys; from pathlib import Path; "
                "from stepscope.api import Job; "
                "job = Job([sys.argv[1]]); file = Path(sys.argv[3]).open('wb'); "
                "[file.write(part) for part in job.views.exported(sys.argv[2])]; "
                "print(sum(len(t.content) for t in job.timeline.tracks), "
                "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
            )
            command = [sys.executable, "-c", code, str(trace), kind, str(target)]
            facts = subprocess.run(command, env=environment, check=True, capture_output=True)
            seconds = time.perf_counter() - begin
            rows, peak = map(int, facts.stdout.split())
            size = target.stat().st_size
            target.unlink()
            begin = time.perf_counter()
            with target.open("w") as file:
                for at in range(0, rows, 65536):
                    file.write("\n".join([f'{{"ts":{i},"n":"x"}}' for i in range(at, at + 65536)]))
            floor = time.perf_counter() - begin
            target.unlink()
            print(
                f"{kind:10} {seconds:6.1f} s, {rows / seconds / 1e3:5.0f} thousand slices/s, "
                f"{size / 1e6:5.0f} MB, {peak:5} MB memory at most; {seconds / floor:4.1f} times "
                "the floor"
            )


if __name__ == "__main__":
    main()
