"""Recipes against the real ``nsys recipe``, on the same captures, in one run.

    python benchmarks/recipes.py NSYS PYTHON CAPTURE.sqlite...

NSYS is version 2023.4, PYTHON an interpreter below 3.12 with pandas, pyarrow and psutil. The real
tool is given exports that are there already, SQLite and Parquet, and its result has no page. Ours
is measured with captures imported before, page written, and with an empty cache. Both take turns;
the shortest of ``--turns`` counts. A recipe that finds nothing in the captures is named.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
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


def ours(
    recipe: str, settings: dict[str, str], captures: list[Path], out: Path, cache: str, alone: bool
) -> float:
    words = [part for n, v in settings.items() for part in ("--set", f"{n}={v}")]
    words += ["-j", "1"] if alone else []
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "stepscope", "recipe", recipe, *captures, "-o", out, *words],
        check=True,
        capture_output=True,
        env={**os.environ, "STEPSCOPE_CACHE_DIR": cache},
    )
    return time.monotonic() - began


def measured(recipe: str, asked: argparse.Namespace, place: Path) -> tuple[float, float, float]:
    """Shortest times of the real tool, of ours with captures imported, and with an empty cache, s.

    Raises:
        RuntimeError: the real tool gives nothing.
        CalledProcessError: ours gives nothing.
    """
    settings = RECIPES[recipe]
    words = [part for n, v in settings.items() for part in (f"--{n}", v)]
    words += ["--mode", "none"] if asked.alone else []
    real, warm, cold = [], [], []
    for turn in range(asked.turns):
        inputs = nsys_recipes.stage(asked.captures, place / "in")
        began = time.monotonic()
        nsys_recipes.run(asked.nsys, asked.python, recipe, inputs,
                         place / f"real-{recipe}-{turn}", *words)  # fmt: skip
        real.append(time.monotonic() - began)
        cache = str(place / f"cache-{recipe}-{turn}")
        out = place / f"{recipe}-{turn}"
        cold.append(ours(recipe, settings, asked.captures, out / "cold", cache, asked.alone))
        warm.append(ours(recipe, settings, asked.captures, out / "warm", cache, asked.alone))
    return min(real), min(warm), min(cold)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nsys", type=Path)
    parser.add_argument("python", type=Path)
    parser.add_argument("captures", type=Path, nargs="+")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="one process on both sides")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    asked = parser.parse_args()
    print(
        f"{'recipe':24} {'nsys s':>8} {'ours s':>8} {'ratio':>6} {'empty cache s':>14} {'ratio':>6}"
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for recipe in asked.recipes:
            try:
                r, w, c = measured(recipe, asked, place)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                text = said.decode() if isinstance(said, bytes) else said
                print(f"{recipe:24} {' '.join(text.split())[:100]}", flush=True)
                continue
            print(f"{recipe:24} {r:8.2f} {w:8.2f} {r / w:6.1f} {c:14.2f} {r / c:6.1f}", flush=True)


if __name__ == "__main__":
    main()
