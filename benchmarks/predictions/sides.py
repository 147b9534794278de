"""Which kernels a repair takes away and brings, measured, beside those that the diagnosis changes.

usage: python benchmarks/predictions/sides.py record FOLDER NAME...
       python benchmarks/predictions/sides.py compare FOLDER NAME [--source own|kineto]

``record`` needs a GPU: it runs both sides of pairs and writes the kernels of one step of each, in
the order in which they ran, to ``FOLDER/NAME.json.gz``. Pairs are prepared together and recorded
alone. ``compare`` reads that and the stored capture of the pair: kernels of one name and launch
stay as far as both sides have them, the others go or come. That tells where a prediction is off.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

TOGETHER = 4
PREPARED = 8
"""Steps that are timed before two are recorded."""
SHOWN = 14
_OF_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LOCK = Path(tempfile.gettempdir()) / "stepscope-sides.lock"

Kernel = tuple[float, float, str, list[int] | None, list[int] | None]
"""Start and length, us, name, grid and block."""


def kernels_of(file: Path) -> list[Kernel]:
    """The kernels of the second of two steps that torch.profiler recorded."""
    events = json.loads(file.read_text())["traceEvents"]
    found = sorted(
        (e["ts"], e["dur"], e["name"], e["args"].get("grid"), e["args"].get("block"))
        for e in events
        if e.get("cat") in _OF_GPU
    )
    return found[len(found) // 2 :]


def record(name: str, folder: Path) -> None:
    """Run both sides of a pair and write what their steps launch."""
    import torch
    from measure import prepare, programs
    from torch.profiler import ProfilerActivity, profile

    program = programs()[name]
    torch.manual_seed(0)
    with _LOCK.open("a") as lock, tempfile.TemporaryDirectory() as scratch:
        fcntl.flock(lock, fcntl.LOCK_SH)
        sides = [prepare(program, repaired=repaired) for repaired in (False, True)]
        torch.cuda.synchronize()
        fcntl.flock(lock, fcntl.LOCK_UN)
        fcntl.flock(lock, fcntl.LOCK_EX)  # nobody else prepares or is recorded
        found: dict[str, Any] = {"name": name, "cause": program.cause}
        for side, run in zip(("before", "after"), sides, strict=True):
            run.enter()
            for _ in range(PREPARED):
                run.step()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as recorded:
                for _ in range(2):
                    run.step()
                torch.cuda.synchronize()
            run.leave()
            file = Path(scratch) / f"{side}.json"
            recorded.export_chrome_trace(str(file))
            found[side] = kernels_of(file)
    with gzip.open(folder / f"{name}.json.gz", "wt") as out:
        json.dump(found, out)
    busy = [sum(kernel[1] for kernel in found[side]) / 1e3 for side in ("before", "after")]
    print(f"{name}: {busy[0]:.2f} -> {busy[1]:.2f} ms of kernels a step", flush=True)
    os._exit(0)  # workers and compilers must not keep the process


def record_all(names: list[str], folder: Path) -> None:
    """Each pair in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    running: list[subprocess.Popen[bytes]] = []
    for name in names:
        running.append(
            subprocess.Popen([sys.executable, __file__, "record-one", str(folder), name])
        )
        while len(running) >= TOGETHER:
            running[0].wait()
            running = [process for process in running if process.poll() is None]
    for process in running:
        process.wait()


def by_launch(kernels: list[Kernel]) -> dict[tuple[str, str], list[float]]:
    """Lengths by name and launch, us."""
    found = defaultdict(list)
    for _, length, name, grid, block in kernels:
        found[name, f"{grid} {block}"].append(length)
    return found


def differences(
    before: list[Kernel], after: list[Kernel]
) -> tuple[list[tuple[float, int, str, str]], list[tuple[float, int, str, str]], float]:
    """What goes and what comes (us, kernels, name, launch), and by how much the others change."""
    one, other = by_launch(before), by_launch(after)
    gone, come, same = [], [], 0.0
    for key in {*one, *other}:
        mine, theirs = one.get(key, []), other.get(key, [])
        kept = min(len(mine), len(theirs))
        if kept:
            same += kept * (sum(theirs) / len(theirs) - sum(mine) / len(mine))
        for found, lengths in ((gone, mine), (come, theirs)):
            if len(lengths) > kept:
                more = len(lengths) - kept
                found.append((more * sum(lengths) / len(lengths), more, *key))
    return sorted(gone, reverse=True), sorted(come, reverse=True), same


_CHANGED = """
WITH steps AS (SELECT count(*) AS n FROM step WHERE steady), changed AS (
    SELECT cause AS of, gpu_op_id, start_ns, end_ns, repaired_ns AS after_ns FROM kernel_repair
    UNION ALL SELECT lever, gpu_op_id, start_ns, end_ns, changed_ns FROM kernel_lever)
SELECT c.of, g.name, sum(c.end_ns - c.start_ns) / 1e3 / any_value(steps.n) AS old_us,
       sum(c.after_ns) / 1e3 / any_value(steps.n) AS new_us, count(*) / any_value(steps.n) AS k
FROM changed c JOIN gpu_op g ON g.id = c.gpu_op_id, steps
GROUP BY ALL ORDER BY old_us DESC
"""


def compare(name: str, folder: Path, source: str) -> None:
    """Print what goes and comes, and what the diagnosis changes."""
    from store import CAPTURES, unpack_capture

    from stepscope.api import Job

    with gzip.open(folder / f"{name}.json.gz", "rt") as file:
        sides = json.load(file)
    gone, come, same = differences(sides["before"], sides["after"])
    for title, found in (("gone", gone), ("come", come)):
        print(f"{title}: {sum(f[0] for f in found):.0f} us in {sum(f[1] for f in found)} kernels")
        for us, count, kernel, launch in found[:SHOWN]:
            print(f"  {us:8.0f} us x{count:3d}  {kernel[:90]}  {launch}")
    print(f"those that stay: {same:+.0f} us")
    with tempfile.TemporaryDirectory(prefix="stepscope-exam-") as scratch:
        paths = unpack_capture(CAPTURES / f"{name}.{source}.tar.xz", Path(scratch))
        changed = Job([str(path) for path in paths]).query(_CHANGED).to_pylist()
    for cause in dict.fromkeys(row["of"] for row in changed):
        mine = [row for row in changed if row["of"] == cause]
        old, new = (sum(row[column] for row in mine) for column in ("old_us", "new_us"))
        print(f"predicted of {cause}: {old:.0f} -> {new:.0f} us")
        for row in mine[:SHOWN]:
            print(f"  {row['old_us']:8.0f} -> {row['new_us']:6.0f} us x{row['k']:3.0f}  "
                  f"{row['name'][:90]}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("record", "record-one", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--source", choices=("own", "kineto"), default="own")
    given = parser.parse_args()
    if given.mode == "record":
        record_all(given.names, given.folder)
    elif given.mode == "record-one":
        record(given.names[0], given.folder)
    else:
        for name in given.names:
            compare(name, given.folder, given.source)


if __name__ == "__main__":
    main()
