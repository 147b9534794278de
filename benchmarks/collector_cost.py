#!/usr/bin/env python3
"""What recording costs a training step: untraced, Stepscope, nsys and torch.profiler, taking turns.

The program is any that prints a JSON line with ``ms_per_step`` and calls ``cudaProfilerStart`` and
``cudaProfilerStop`` around the steps it times, as ``benchmarks/captures/workloads.py SCENARIO
--capture nsys`` does. Runs take turns so that a machine that warms up or slows down touches all of
them alike; medians are compared. Standard library only: it runs where the GPU is.

    python benchmarks/collector_cost.py --rounds 5 -- python train.py launch_bound --capture nsys
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from stepscope.capture import launcher
from stepscope.capture.backends import collector
from stepscope.capture.backends.base import configuration
from stepscope.capture.options import PROFILER_RANGE, Options

NSYS_OPTIONS = (
    *("profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-f", "true"),
    *("-c", "cudaProfilerApi", "--capture-range-end=stop"),
)


def step_ms(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Run a program; the ms per step that it prints, NaN when it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    times = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    times = [row["ms_per_step"] for row in times if "ms_per_step" in row]
    if not times:
        print(done.stdout[-500:], done.stderr[-1500:], file=sys.stderr)
        return float("nan")
    return max(times)


def recorded(command: list[str], folder: Path) -> float:
    """Under ``stepscope run``, counters and all, without reading the result."""
    out = folder / "printed"
    wrapped = ["/bin/sh", "-c", f'exec "$@" > "{out}"', "sh", *command]
    launcher.record(
        Options(tuple(wrapped), folder / "run", backend="collector", range=PROFILER_RANGE),
        "benchmark",
        lambda line: None,
    )
    rows = [json.loads(li) for li in out.read_text().splitlines() if li.startswith("{")]
    return max(row["ms_per_step"] for row in rows if "ms_per_step" in row)


def variant(command: list[str], folder: Path, changes: dict[str, str]) -> float:
    """With the library alone and a changed configuration; ``-KEY`` leaves a variable out."""
    options = Options(tuple(command), folder / "run", backend="collector", range=PROFILER_RANGE)
    plan = collector.plan(options)
    (path, text), *_ = plan.files.items()
    values = dict(line.split("=", 1) for line in text.splitlines())
    values.update({key: value for key, value in changes.items() if not key.startswith("-")})
    values["pool"] = "/dev/shm"
    path.parent.mkdir(parents=True)
    path.write_text(configuration(dict(values)))
    environment = dict(plan.environment)
    for key in changes:
        if key.startswith("-"):
            environment.pop(key[1:])
    return step_ms(command, environment)


def main() -> None:
    """Run the turns and print medians and what each adds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nsys", default=shutil.which("nsys") or "")
    parser.add_argument("--torch", action="store_true", help="also with --capture torch")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE;...",
        help="the library with a changed configuration",
    )
    parser.add_argument("--only", default="", help="names of the ways to run, by comma")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    variants = {}
    for text in given.variant:
        name, _, rest = text.partition(":")
        pairs = (part.partition("=") for part in rest.split(";") if part)
        variants[name] = {key: value for key, _, value in pairs}
    ways = ["untraced", "stepscope", *variants]
    ways += ["nsys"] * bool(given.nsys) + ["torch"] * given.torch
    if given.only:
        ways = [way for way in ways if way in given.only.split(",")]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(given.rounds):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                if way == "untraced":
                    ms = step_ms(given.command)
                elif way == "stepscope":
                    ms = recorded(given.command, folder)
                elif way == "nsys":
                    ms = step_ms([given.nsys, *NSYS_OPTIONS, "-o", f"{folder}/n", *given.command])
                elif way == "torch":
                    changed = ["torch" if word == "nsys" else word for word in given.command]
                    ms = step_ms([*changed, "--out", f"{folder}/t"])
                else:
                    ms = variant(given.command, folder, variants[way])
            times[way].append(ms)
            print(f"{turn} {way:24} {ms:8.2f}", file=sys.stderr, flush=True)
    base = statistics.median(times["untraced"]) if "untraced" in times else float("nan")
    against = statistics.median(times["nsys"]) - base if "nsys" in times else float("nan")
    print(f"{'way':24} {'median ms':>10} {'least':>8} {'added':>8} {'%':>6} {'of nsys':>8}")
    for way, values in times.items():
        middle = statistics.median(values)
        added = middle - base
        print(
            f"{way:24} {middle:10.2f} {min(values):8.2f} {added:8.2f} "
            f"{100 * added / base:6.1f} {added / against:8.2f}"
        )


if __name__ == "__main__":
    main()
