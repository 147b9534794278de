"""Diagnoses made-up jobs of 64, 256 and 1024 ranks: 20 with a planted straggler, 20 healthy ones.

usage: python3 benchmarks/jobs.py [--seed NUMBER] [FOLDER_OF_DIGESTS...]

Jobs are made from real ranks (``tests/support/digest_jobs.py`` says how): those in
``tests/data/digests``, and the folders given, each a family of ranks of one job that were healthy.
``--seed`` draws other jobs. Prints one JSON line a job, then the score: planted stragglers found
with rank and reason, alarms on healthy jobs, and how CPU time and memory grow with the ranks when
files are read and diagnosed.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.digest_jobs import PLANTS, Plant, Shape, made  # noqa: E402

from stepscope.api.digest_files import SUFFIX, read_digests, write_digests  # noqa: E402
from stepscope.api.digests import diagnose_digests  # noqa: E402
from stepscope.jobs.digest import Digest  # noqa: E402
from stepscope.jobs.job import diagnose_job  # noqa: E402

SIZES = (64, 256, 1024)
LAYOUTS = ("hsdp", "ddp", "stages")
AMOUNTS = (0.05, 0.1, 0.2, 0.4)
"""What is planted, in parts of the step."""


def families(folders: list[str]) -> list[list[Digest]]:
    """Healthy ranks, one list a job that they are of."""
    known = ROOT / "tests" / "data" / "digests"
    groups = [sorted(known.glob(f"healthy_{name}.*")) for name in ("one", "two", "four")]
    groups += [sorted(Path(folder).glob(f"*{SUFFIX}")) for folder in folders]
    return [
        [d for path in paths for d in read_digests(path, whole=True)] for paths in groups if paths
    ]


def jobs(first: int) -> Iterator[tuple[int, Shape, Plant | None]]:
    """Seed, shape and plant of each job: four of each plant, and as many healthy ones."""
    for number in range(4 * len(PLANTS)):
        kind = PLANTS[number % len(PLANTS)]
        size = SIZES[number % 3]
        # with one communicator of all ranks nothing tells whose link is slow
        layout = "hsdp" if kind == "slow_link" else LAYOUTS[number // 2 % 3]
        amount = AMOUNTS[number // len(PLANTS)]
        rank = (7 * (first + number) + 3) % size
        yield first + number, Shape(size, layout), Plant(kind, rank, amount)
    for number in range(20):
        yield first + 100 + number, Shape(SIZES[number % 3], LAYOUTS[number // 3 % 3]), None


def main() -> None:
    """Run all and print the score."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("folders", nargs="*")
    asked = parser.parse_args()
    known = families(asked.folders)
    found = alarms = 0
    for seed, shape, plant in jobs(asked.seed):
        digests = made(known[seed % len(known)], shape, seed, plant)
        result = diagnose_job(digests)
        late = [f for f in result.findings if f.reason]
        told = [(f.reason, f.ranks, f.share_of_step) for f in late]
        right = plant is not None and told[:1] and told[0][:2] == (plant.kind, [plant.rank])
        found += bool(right)
        alarms += plant is None and bool(told)
        planted = [plant.kind, plant.rank, plant.amount] if plant else None
        row = {"ranks": shape.ranks, "layout": shape.layout, "seed": seed, "planted": planted,
               "found": told, "outliers": result.outliers[:5],
               "right": bool(right) if plant else not told}  # fmt: skip
        print(json.dumps(row), flush=True)
    print(json.dumps({"planted_found": f"{found} of 20", "alarms_on_healthy": f"{alarms} of 20"}))
    grow(known[-1])


def grow(family: list[Digest]) -> None:
    """CPU time and memory by number of ranks, from files."""
    folder = Path(tempfile.mkdtemp())
    try:
        first = 0.0
        for size in SIZES:
            place = folder / str(size)
            for digest in made(family, Shape(size), 1, Plant("slow_gpu", 5, 0.1)):
                write_digests([digest], place / f"rank{digest.rank:04d}{SUFFIX}")
            begin, wall = time.process_time(), time.monotonic()
            diagnose_digests([place])
            spent = time.process_time() - begin
            first = first or spent / size
            print(json.dumps({
                "ranks": size,
                "cpu_s": round(spent, 2),
                "wall_s": round(time.monotonic() - wall, 2),
                "cpu_a_rank_against_64": round(spent / size / first, 2),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }), flush=True)  # fmt: skip
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
