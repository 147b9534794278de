"""How well does the simulator replay captures, and how well does it predict repairs?

usage: python benchmarks/replay.py [--most-off PERCENT] PATH...

Prints one line a job: the measured step, the replayed step without changes and how far it is off;
files ``NAME.rank0.*``, ``NAME.rank1.*``, ... of one folder are the ranks of one job. Then, for
captures with one planted fault whose repaired program was captured too in the same folder (the
table ``REPAIRS``), the predicted step after the repair and how far that is off. Exits 1 where a
replay is further off than ``--most-off``.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

from stepscope.api import Job
from stepscope.simulation import Change, Free, RankLike

REPAIRS: dict[str, tuple[tuple[Change, ...], str]] = {
    "starved_main": ((Free("input_starvation"),), "healthy"),
    "starved_workers": ((Free("input_starvation"),), "healthy"),
    "sync_item": ((Free("host_sync"),), "healthy"),
    "pageable_h2d": ((Free("blocking_copy"),), "healthy"),
    "host_compute": ((Free("host_compute"),), "healthy"),
    "alloc_churn": ((Free("allocator_churn"),), "healthy"),
    "ddp_straggler": ((RankLike(2),), "ddp_healthy"),
    "gpt_tokenize": ((Free("input_starvation"),), "gpt_healthy"),
    "gpt_metrics": ((Free("host_compute"),), "gpt_healthy"),
    "gpt_pageable": ((Free("blocking_copy"),), "gpt_healthy"),
    "gpt_sync_layers": ((Free("host_sync"),), "gpt_healthy"),
    "cnn_workers": ((Free("input_starvation"),), "cnn_healthy"),
    "cnn_disk": ((Free("input_starvation"),), "cnn_healthy"),
    "cnn_cpu_out": ((Free("blocking_copy"),), "cnn_healthy"),
}
"""Capture -> the changes that take its planted fault away, and the capture of the repaired run."""

_CAPTURE = re.compile(r"^(?P<name>.+?)(\.rank\d+)?\.(sqlite|json\.gz|json)$")


def jobs(paths: list[Path]) -> dict[tuple[Path, str, str], list[Path]]:
    """(folder, kind, name) -> the files of one job."""
    found: dict[tuple[Path, str, str], list[Path]] = defaultdict(list)
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            match = _CAPTURE.match(file.name)
            if match:
                found[file.parent, match.group(3), match.group("name")].append(file)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--most-off", type=float, default=3.0, help="percent")
    arguments = parser.parse_args()
    known = jobs(arguments.paths)
    measured: dict[tuple[Path, str, str], int] = {}
    predicted = []
    worst = 0.0
    head = f"{'capture':44} {'ranks':>5} {'items':>8} {'measured':>9} {'replayed':>9}"
    print(f"{head} {'off':>7} {'s':>5}")
    for key, files in known.items():
        folder, kind, name = key
        simulation = Job(files).simulation
        begin = time.perf_counter()
        error = simulation.replay_error
        seconds = time.perf_counter() - begin
        items = sum(len(s.program) for s in simulation.subjects)
        worst = max(worst, abs(error))
        measured[key] = simulation.measured_step_ns
        print(
            f"{folder.name + '/' + name + '.' + kind:44} {len(files):5} {items:8,} "
            f"{simulation.measured_step_ns / 1e6:9.2f} {simulation.replayed_step_ns / 1e6:9.2f} "
            f"{100 * error:+6.2f}% {seconds:5.2f}",
            flush=True,
        )
        if name in REPAIRS:
            changes, healthy = REPAIRS[name]
            predicted.append((key, simulation.predict(changes), (folder, kind, healthy)))
    print(f"furthest off: {100 * worst:.2f} %\n")
    print(
        f"{'repair':44} {'measured':>9} {'predicted':>9} {'range':>17} {'repaired':>9} {'off':>6}"
    )
    for key, result, healthy in predicted:
        if healthy not in measured:
            continue
        truth = measured[healthy]
        print(
            f"{key[0].name + '/' + key[2] + '.' + key[1]:44} {measured[key] / 1e6:9.2f} "
            f"{result.step_ns / 1e6:9.2f} {result.low_ns / 1e6:8.2f} {result.high_ns / 1e6:8.2f} "
            f"{truth / 1e6:9.2f} {100 * (result.step_ns / truth - 1):+5.0f}%"
        )
    sys.exit(worst > arguments.most_off / 100)


if __name__ == "__main__":
    main()
