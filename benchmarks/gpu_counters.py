"""Try the GPU counters: what can be read here, how fast, at what cost, and whether it makes sense.

    python benchmarks/gpu_counters.py [HERTZ]

On a machine with an NVIDIA GPU; with PyTorch the GPU is first idle, then multiplies matrices, then
copies. Prints the mean of each counter in each phase, the rate that was reached, and the time that
reading all counters once takes. Expect on a Hopper GPU: tensor_active_percent near nothing but in
the multiplication, dram_bandwidth_percent high in the copies, pcie near nothing but in host copies.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from stepscope.capture.nvml import Nvml, Sampler

_PHASE_S = 3.0


def phases() -> dict[str, Callable[[], None]]:
    """What the GPU does, one after the other."""
    found: dict[str, Callable[[], None]] = {"idle": lambda: time.sleep(_PHASE_S)}
    try:
        import torch
    except ImportError:
        return found
    if not torch.cuda.is_available():
        return found
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.empty(1 << 28, device="cuda")
    c = torch.empty_like(b)
    host = torch.empty(1 << 26).pin_memory()

    def until(work: Callable[[], object]) -> None:
        end = time.monotonic() + _PHASE_S
        while time.monotonic() < end:
            for _ in range(10):
                work()
            torch.cuda.synchronize()

    found["multiply"] = lambda: until(lambda: a @ a)
    found["copy"] = lambda: until(lambda: c.copy_(b))
    found["from host"] = lambda: until(lambda: c[: len(host)].copy_(host, non_blocking=True))
    return found


def main() -> None:
    """Print the tables."""
    hertz = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    library = Nvml()
    print(f"driver {library.driver()}")
    for gpu in library.gpus():
        counters = library.open_gpm(gpu)
        print(f"gpu {gpu.index}: {gpu.name}, GPM {'yes' if counters else 'no'}")
        times = []
        for _ in range(50):
            begin = time.perf_counter()
            list(library.sample(gpu))
            if counters:
                counters.sample()
            times.append(1e3 * (time.perf_counter() - begin))
        print(f"  one reading: median {statistics.median(times):.2f} ms, most {max(times):.2f} ms")
    columns: dict[str, dict[tuple[str, str], list[float]]] = {}
    for phase, work in phases().items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "counters.csv"
            sampler = Sampler(path, 1 / hertz)
            sampler.start()
            work()
            sampler.stop()
            if sampler.failure:
                sys.exit(sampler.failure)
            found = columns[phase] = defaultdict(list)
            moments = set()
            with path.open(encoding="utf-8", newline="") as stream:
                for moment, number, _, name, value in csv.reader(stream):
                    found[number, name].append(float(value))
                    moments.add((number, moment))
            gpus = {number for number, _ in moments}
            print(f"{phase}: {len(moments) / len(gpus) / _PHASE_S:.1f} readings a second")
    keys = sorted({key for found in columns.values() for key in found})
    print(f"{'gpu counter':46}" + "".join(f"{phase:>16}" for phase in columns))
    for key in keys:
        means = [statistics.fmean(found[key]) if found[key] else 0.0 for found in columns.values()]
        print(f"{key[0]:3} {key[1]:42}" + "".join(f"{mean:16,.1f}" for mean in means))


if __name__ == "__main__":
    main()
