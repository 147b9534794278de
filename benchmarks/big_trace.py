"""Write a synthetic trace of ten million events, as a folder that every command opens.

usage: python benchmarks/big_trace.py FOLDER.stepscope [--steps 520]

Each step is that of a training loop: 5,700 kernels on a compute and a communication stream, which
two threads launch, every other launch with a driver call inside, operating-system calls of a
loader thread, a synchronisation at the end, nested ranges to six levels with some 200,000 distinct
names, a sample of allocated memory each 0.5 ms. 520 steps make 3 million kernels, 5.5 million
calls and 1.3 million ranges. The numbers are random from a fixed seed; the host is late now and
then, so that there is idle time to explain.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog
from stepscope.trace.store import TraceWriter, write_meta

PID, AUTOGRAD, LOADER = 4000, 4001, 4002
KERNELS = 5700
LAYERS = 57
Ints = npt.NDArray[np.int64]

NAMES = (
    [f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{m}x128x64_cublas" for m in (64, 128, 256)]
    + [
        "void at::native::vectorized_elementwise_kernel<4, at::native::"
        f"CUDAFunctor_{what}<c10::BFloat16>, std::array<char*, 3ul>>(int)"
        for what in ("add", "mul", "gelu", "silu", "neg", "div", "exp", "sqrt")
    ]
    + [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void cunn_SoftMaxForward<4, float, float, float>",
    ]
)
COMMUNICATION = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CALLS = ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaEventRecord",
         "cudaStreamSynchronize", "pthread_cond_wait", "read")  # fmt: skip
API = (0, 1, 0, 0, 0, 2, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=520)
    arguments = parser.parse_args()
    print(", ".join(f"{n:,} {t}" for t, n in write(arguments.folder, arguments.steps).items()))


def write(folder: Path, steps: int) -> dict[str, int]:
    """Write the trace; returns rows of each table."""
    folder.mkdir(parents=True)
    problems = ProblemLog()
    writer = TraceWriter(folder, problems)
    random = np.random.default_rng(11)
    at = 1_000_000
    correlation = 1
    for step in range(steps):
        at, correlation = _step(writer, random, step, at, correlation)
    writer.append("thread", {"process_id": [PID] * 3, "thread_id": [PID, AUTOGRAD, LOADER],
                             "name": ["python", "pt_autograd_0", "loader"]})  # fmt: skip
    writer.append("device", {"process_id": [PID], "device": [0], "name": ["Synthetic GPU"]})
    meta = Meta(source="synthetic", window_start_ns=0, window_end_ns=at, input_name=folder.name)
    meta.rows = writer.close()
    write_meta(folder, meta)
    return meta.rows


def _step(
    writer: TraceWriter, random: np.random.Generator, step: int, at: int, correlation: int
) -> tuple[int, int]:
    """One step from time ``at`` on; returns the time and the correlation id to go on from."""
    n = KERNELS
    between = random.integers(18_000, 42_000, n)
    between[random.integers(0, n, 6)] += random.integers(500_000, 3_000_000, 6)  # a late host
    launch = at + 2_000_000 + np.cumsum(between)
    length = random.integers(4_000, 9_000, n)
    ns = np.maximum(1_200, random.lognormal(9.9, 0.8, n).astype(np.int64))
    communicates = np.arange(n) % 95 == 94
    ns[communicates] *= 12
    start = np.empty(n, np.int64)
    for rows in (np.flatnonzero(~communicates), np.flatnonzero(communicates)):
        done = np.cumsum(ns[rows]) - ns[rows]
        start[rows] = done + np.maximum.accumulate(launch[rows] + 6_000 - done)
    end = start + ns
    stop = int(end.max()) + 40_000
    ids = correlation + np.arange(n)
    order = np.argsort(start, kind="stable")
    names = np.where(communicates, len(NAMES), random.integers(0, len(NAMES), n))
    writer.append("gpu_op", {
        "kind": _texts(np.zeros(n, np.int32), ["kernel"]),
        "process_id": np.full(n, PID), "device": np.zeros(n, np.int32),
        "stream": np.where(communicates, 20, 7)[order], "correlation_id": ids[order],
        "start_ns": start[order], "end_ns": end[order],
        "name": _texts(names[order], [*NAMES, COMMUNICATION]),
        "grid_x": np.full(n, 132, np.int32), "block_x": np.full(n, 256, np.int32),
    })  # fmt: skip
    thread = np.where(np.arange(n) < n // 3, PID, AUTOGRAD)
    inner = np.arange(0, n, 2)
    recorded = np.arange(0, n, 3)
    waits = at + np.sort(random.integers(0, stop - at - 1_000_000, n // 12))
    wait_ns = np.minimum(
        np.append(np.diff(waits), 100_000), random.integers(5_000, 900_000, n // 12)
    )
    parts = [
        (launch, launch + length, np.zeros(n, np.int64), thread, ids),
        (launch[inner] + 800, launch[inner] + length[inner] - 600, np.full(len(inner), 1),
         thread[inner], ids[inner]),
        (launch[recorded] + length[recorded] + 500, launch[recorded] + length[recorded] + 1_700,
         np.full(len(recorded), 3), thread[recorded], np.full(len(recorded), -1)),
        (np.array([stop - 30_000]), np.array([stop]), np.array([4]), np.array([PID]),
         np.array([-1])),
        (waits, waits + wait_ns, random.integers(5, 7, len(waits)), np.full(len(waits), LOADER),
         np.full(len(waits), -1)),
    ]  # fmt: skip
    begin, finish, name, who, link = (np.concatenate(c) for c in zip(*parts, strict=True))
    order = np.argsort(begin, kind="stable")
    texts = _texts(name[order], CALLS)
    writer.append("api_call", {
        "api": _texts(np.array(API)[name[order]], ["runtime", "driver", "osrt"]),
        "process_id": np.full(len(order), PID), "thread_id": who[order],
        "start_ns": begin[order], "end_ns": finish[order], "name": texts, "raw_name": texts,
        "correlation_id": pa.array(link[order], mask=link[order] < 0),
    })  # fmt: skip
    _ranges(writer, step, at, stop, launch, length)
    samples = np.arange(at, stop, 500_000)
    writer.append("memory_event", {
        "process_id": np.full(len(samples), PID), "time_ns": samples,
        "kind": _texts(np.zeros(len(samples), np.int32), ["cache"]),
        "device": np.zeros(len(samples), np.int32),
        "total_allocated_bytes": (20e9 + 5e9 * np.sin(np.linspace(0, 3, len(samples)))).astype(int),
    })  # fmt: skip
    return stop + 200_000, correlation + n


def _ranges(writer: TraceWriter, step: int, at: int, stop: int, launch: Ints, length: Ints) -> None:
    """Ranges: step, phase, layer, block, module, and one around every third launch."""
    n = len(launch)
    rows: list[tuple[int, int, str, int]] = [(at, stop, f"step_{step}", PID)]
    rows.append((at + 10_000, int(launch[0]) - 1_000, "dataload", PID))
    for phase, low, high, thread in (
        ("forward", 0, n // 3, PID), ("backward", n // 3, n * 5 // 6, AUTOGRAD),
        ("optimizer", n * 5 // 6, n, AUTOGRAD),
    ):  # fmt: skip
        rows.append(
            (int(launch[low]) - 800, int(launch[high - 1] + length[high - 1]) + 800, phase, thread)
        )
        edges = np.linspace(low, high, LAYERS + 1).astype(int)
        for layer, (first, last) in enumerate(pairwise(edges)):
            rows.append((int(launch[first]) - 700, int(launch[last - 1] + length[last - 1]) + 700,
                         f"{phase} layer {layer}", thread))  # fmt: skip
            for part, at_ in enumerate(range(first, last, 8)):
                final = min(at_ + 8, last) - 1
                rows.append((int(launch[at_]) - 600, int(launch[final] + length[final]) + 600,
                             f"{phase} block {layer}.{part}", thread))  # fmt: skip
    thirds = np.arange(1, n, 3)
    starts = np.concatenate((np.array([r[0] for r in rows]), launch[thirds] - 300))
    ends = np.concatenate((np.array([r[1] for r in rows]), launch[thirds] + length[thirds] + 300))
    threads = np.concatenate((np.array([r[3] for r in rows]),
                              np.where(thirds < n // 3, PID, AUTOGRAD)))  # fmt: skip
    texts = [r[2] for r in rows] + [
        f"request {step * 380 + i // 5}" if i % 5 == 0 else f"aten::op_{i % 97}"
        for i in range(len(thirds))
    ]
    order = np.lexsort((-ends, starts))
    writer.append("range", {
        "kind": _texts(np.zeros(len(order), np.int32), ["pushpop"]),
        "process_id": np.full(len(order), PID), "thread_id": threads[order],
        "start_ns": starts[order], "end_ns": ends[order],
        "name": pa.array(texts).take(pa.array(order)), "closed": np.ones(len(order), bool),
    })  # fmt: skip


def _texts(codes: Any, texts: Any) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(texts)))


if __name__ == "__main__":
    main()
