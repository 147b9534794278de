"""Recipes against the real ``nsys recipe``, on the same captures, in one run.

    python benchmarks/recipes.py NSYS PYTHON CAPTURE.sqlite...

NSYS is version 2023.4, PYTHON an interpreter below 3.12 with pandas, pyarrow and psutil. The real
tool is given exports that are there already, SQLite and Parquet, and its result has no page. Ours
is measured with captures imported before, page written, and with an empty cache. Both take turns;
the shortest of ``--turns`` counts. A recipe that finds nothing in the captures is named. CPU time
is that of all processes: on a busy machine, it says more than the clock.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support import nsys_recipes

RECIPES: dict[str, dict[str, str]] = {
    "cuda_gpu_kern_sum": {},
    "cuda_gpu_mem_size_sum": {},
    "cuda_gpu_mem_time_sum": {},
    "cuda_api_sum": {},
    "nvtx_sum": {},
    "nvtx_gpu_proj_sum": {},
    "nvtx_gpu_proj_trace": {},
    "nvtx_pace": {"name": "forward"},
    "nvtx_gpu_proj_pace": {"name": "forward"},
    "cuda_gpu_kern_pace": {"name": "vectorized_elementwise_kernel"},
    "cuda_gpu_time_util_map": {},
    "nccl_sum": {},
    "nccl_gpu_proj_sum": {},
    "nccl_gpu_time_util_map": {},
    "osrt_sum": {},
    "cuda_api_sync": {},
    "cuda_memcpy_async": {},
    "cuda_memcpy_sync": {},
    "cuda_memset_sync": {},
    "gpu_gaps": {"gap": "0", "rows": "20"},
    "gpu_time_util": {},
}


Spent = tuple[float, float]
"""By the clock, and CPU time of all processes, s."""


@contextmanager
def timed(into: list[Spent]) -> Iterator[None]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    yield
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    into.append((wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime))


def ours(
    recipe: str, settings: dict[str, str], captures: list[Path], out: Path, cache: str, alone: bool
) -> None:
    words = [part for n, v in settings.items() for part in ("--set", f"{n}={v}")]
    words += ["-j", "1"] if alone else []
    subprocess.run(
        [sys.executable, "-m", "stepscope", "recipe", recipe, *captures, "-o", out, *words],
        check=True,
        capture_output=True,
        env={**os.environ, "STEPSCOPE_CACHE_DIR": cache},
    )


def measured(recipe: str, asked: argparse.Namespace, place: Path) -> list[Spent]:
    """Least of the real tool, of ours with captures imported, and with an empty cache.

    Raises:
        RuntimeError: the real tool gives nothing.
        CalledProcessError: ours gives nothing.
    """
    settings = RECIPES[recipe]
    words = [part for n, v in settings.items() for part in (f"--{n}", v)]
    words += ["--mode", "none"] if asked.alone else []
    real: list[Spent] = []
    warm: list[Spent] = []
    cold: list[Spent] = []
    for turn in range(asked.turns):
        inputs = nsys_recipes.stage(asked.captures, place / "in")
        with timed(real):
            nsys_recipes.run(asked.nsys, asked.python, recipe, inputs,
                             place / f"real-{recipe}-{turn}", *words)  # fmt: skip
        cache = str(place / f"cache-{recipe}-{turn}")
        out = place / f"{recipe}-{turn}"
        with timed(cold):
            ours(recipe, settings, asked.captures, out / "cold", cache, asked.alone)
        with timed(warm):
            ours(recipe, settings, asked.captures, out / "warm", cache, asked.alone)
    return [(min(w for w, _ in turns), min(c for _, c in turns)) for turns in (real, warm, cold)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nsys", type=Path)
    parser.add_argument("python", type=Path)
    parser.add_argument("captures", type=Path, nargs="+")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="one process on both sides")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    asked = parser.parse_args()
    head = (
        "nsys s",
        "CPU",
        "ours s",
        "ratio",
        "CPU",
        "ratio",
        "empty cache s",
        "ratio",
        "CPU",
        "ratio",
    )
    widths = [max(len(word), 6) for word in head]
    print(f"{'recipe':24} " + " ".join(f"{w:>{n}}" for w, n in zip(head, widths, strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for recipe in asked.recipes:
            try:
                real, warm, cold = measured(recipe, asked, place)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                text = said.decode() if isinstance(said, bytes) else said
                print(f"{recipe:24} {' '.join(text.split())[:100]}", flush=True)
                continue
            row = [*real]
            for spent in (warm, cold):
                for own, theirs in zip(spent, real, strict=True):
                    row += [own, theirs / own]
            cells = [f"{value:{n}.2f}" for value, n in zip(row, widths, strict=True)]
            print(f"{recipe:24} " + " ".join(cells), flush=True)


if __name__ == "__main__":
    main()
