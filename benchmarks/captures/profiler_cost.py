"""Measure what torch.profiler costs the host per recorded event, on a GPU.

Times the same host-bound loops with and without the profiler (each variant in turn, five
repetitions, median) and solves for the cost of one operator, one CUDA call, one Python function and
one memory event. The results are the constants in stepscope/gaps/profiler_overhead.py.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

N = 3000
A = torch.ones(16, device="cuda")
C = torch.ones(16)


def call(depth: int) -> int:
    return depth if depth == 0 else call(depth - 1)


def launches() -> None:  # one operator, one launch, no allocation
    for _ in range(N):
        A.add_(1)


def cpu_ops() -> None:  # one operator, no launch
    for _ in range(N):
        C.add_(1)


def allocations() -> None:  # operators that allocate and release
    for _ in range(N):
        torch.empty(16, device="cuda")


def calls() -> None:  # eleven Python calls and one operator a round
    for _ in range(N):
        call(10)
        C.add_(1)


LOOPS = {"launches": launches, "cpu_ops": cpu_ops, "allocations": allocations, "calls": calls}
VARIANTS = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "memory": {"profile_memory": True},
    "stack": {"with_stack": True},
    "all": {"record_shapes": True, "profile_memory": True, "with_stack": True},
}


def timed(loop) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    loop()
    return (time.perf_counter() - begin) / N * 1e9


for name, loop in LOOPS.items():
    loop()
    base = [timed(loop) for _ in range(5)]
    for variant, options in VARIANTS.items():
        runs = []
        counts: dict[str, int] = {}
        for _ in range(3):
            with profile(
                activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], **options
            ) as prof:
                timed(loop)
                runs.append(timed(loop))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cost.json"
            prof.export_chrome_trace(str(file))
            events = json.loads(file.read_text())["traceEvents"]
        for event in events:
            counts[event.get("cat", "")] = counts.get(event.get("cat", ""), 0) + 1
        print(
            json.dumps(
                {
                    "loop": name,
                    "variant": variant,
                    "base_ns": round(statistics.median(base)),
                    "profiled_ns": round(statistics.median(runs)),
                    "events_per_round": {
                        k: round(v / N / 2, 2)
                        for k, v in counts.items()
                        if k in ("cpu_op", "cuda_runtime", "python_function", "cpu_instant_event")
                    },
                }
            ),
            flush=True,
        )
