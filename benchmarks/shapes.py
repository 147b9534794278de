"""Time a diagnosis of traces of awkward shapes, each at two sizes: does the time grow linearly?

usage: python benchmarks/shapes.py [--operations 20000] [--times 4] [--shape NAME ...]

Every shape puts the same number of GPU operations into what could make a path quadratic: many
streams, threads, processes, names, steps, synchronisations, graphs, gaps, communicators, and so on.
Each is diagnosed in a process of its own at one size and at ``--times`` that size. Printed are CPU
seconds less those of a trace of a hundred operations (start-up), and the exponent of the growth:
1 is linear, 2 quadratic. Fixed costs push it below 1.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diagnose import measure
from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog
from stepscope.trace.store import TraceWriter, write_meta

PID = 4000
BEAT_NS = 20_000
"""From one launch to the next."""
KERNELS_A_STEP = 100
COMMUNICATION = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Ints = npt.NDArray[np.int64]
Columns = dict[str, Any]
Tables = dict[str, Columns]


def loop(n: int) -> Tables:
    """A loop of ``n`` kernels, 100 a step, launched one after the other."""
    at = 1_000_000 + np.arange(n, dtype=np.int64) * BEAT_NS
    steps = np.arange(max(n // KERNELS_A_STEP, 2))
    return {
        "gpu_op": {
            "kind": texts(["kernel"] * n), "process_id": np.full(n, PID),
            "device": np.zeros(n, np.int32), "stream": np.full(n, 7),
            "correlation_id": np.arange(1, n + 1), "start_ns": at + 6_000, "end_ns": at + 18_000,
            "name": texts([f"gemm_{i % 20}" for i in range(n)]),
        },
        "api_call": calls(at, at + 4_000, "cudaLaunchKernel", correlation=np.arange(1, n + 1)),
        "range": ranges(
            1_000_000 + steps * KERNELS_A_STEP * BEAT_NS - 500,
            1_000_000 + (steps + 1) * KERNELS_A_STEP * BEAT_NS - 600,
            [f"step {i}" for i in steps],
        ),
    }  # fmt: skip


def calls(
    begin: Ints, end: Ints, name: str, *, correlation: Ints | None = None, thread: int = PID
) -> Columns:
    """Calls of one function."""
    n = len(begin)
    ids = np.full(n, -1) if correlation is None else correlation
    return {
        "api": texts(["runtime"] * n), "process_id": np.full(n, PID),
        "thread_id": np.full(n, thread), "start_ns": begin, "end_ns": end,
        "name": texts([name] * n), "raw_name": texts([name] * n), "correlation_id": ids,
    }  # fmt: skip


def ranges(begin: Ints, end: Ints, names: list[str], thread: int = PID) -> Columns:
    """Push/pop ranges."""
    n = len(begin)
    return {
        "kind": texts(["pushpop"] * n), "process_id": np.full(n, PID),
        "thread_id": np.full(n, thread), "start_ns": begin, "end_ns": end, "name": texts(names),
        "closed": np.ones(n, bool),
    }  # fmt: skip


def texts(values: list[str]) -> list[str]:
    """Text of a column, encoded when it is written."""
    return values


def joined(*parts: Columns) -> Columns:
    """Rows of several parts."""
    found: Columns = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        found[name] = (
            [*chain.from_iterable(columns)]
            if isinstance(columns[0], list)
            else np.concatenate(columns)
        )
    return found


def synchronised(n: int) -> Tables:
    """Every launch followed by a synchronisation of its stream."""
    tables = loop(n)
    at = tables["gpu_op"]["start_ns"] - 6_000
    waits = calls(at + 4_200, at + 18_500, "cudaStreamSynchronize")
    tables["api_call"] = joined(tables["api_call"], waits)
    return tables


def streams(n: int) -> Tables:
    """One stream for every 20 operations, and a synchronisation of the device in between."""
    tables = loop(n)
    tables["gpu_op"]["stream"] = np.arange(n) % max(n // 20, 1)
    at = tables["gpu_op"]["start_ns"][::5] - 6_000
    tables["api_call"] = joined(
        tables["api_call"], calls(at + 4_200, at + 18_500, "cudaDeviceSynchronize")
    )
    return tables


def two_streams(n: int) -> Tables:
    """Two streams, every operation told to wait for the other's last; the events recorded."""
    tables = loop(n)
    stream = 7 + np.arange(n) % 2
    tables["gpu_op"]["stream"] = stream
    at = tables["gpu_op"]["start_ns"] - 6_000
    ids = np.arange(n) + n + 1
    tables["api_call"] = joined(
        tables["api_call"],
        calls(at + 4_200, at + 5_000, "cudaEventRecord", correlation=ids),
        calls(at + 5_200, at + 6_000, "cudaStreamWaitEvent", correlation=ids + n),
    )
    tables["event_record"] = {
        "process_id": np.full(n, PID), "stream": stream, "correlation_id": ids,
        "event_id": np.arange(n) % 64,
    }  # fmt: skip
    tables["sync"] = {
        "process_id": np.full(n, PID), "stream": 15 - stream, "correlation_id": ids + n,
        "start_ns": at + 5_200, "end_ns": at + 6_000, "kind": texts(["stream_wait_event"] * n),
        "event_id": np.arange(n) % 64,
    }  # fmt: skip
    return tables


def stream_waits(n: int) -> Tables:
    """The same on many streams, and nothing tells which event was meant."""
    tables = loop(n)
    tables["gpu_op"]["stream"] = 7 + np.arange(n) % max(n // 200, 2)
    at = tables["gpu_op"]["start_ns"] - 6_000
    tables["api_call"] = joined(
        tables["api_call"], calls(at + 4_200, at + 5_000, "cudaStreamWaitEvent")
    )
    return tables


def graphs(n: int) -> Tables:
    """Graphs of ten nodes, launched one after the other; each launch takes long."""
    tables = loop(n)
    ids = np.arange(n) // 10 + 1
    tables["gpu_op"]["correlation_id"] = ids
    tables["gpu_op"]["graph_id"] = np.full(n, 3)
    at = tables["gpu_op"]["start_ns"][::10] - 6_000
    tables["api_call"] = calls(at, at + 120_000, "cudaGraphLaunch", correlation=np.unique(ids))
    return tables


def allocations(n: int) -> Tables:
    """A long allocation after every other launch."""
    tables = loop(n)
    at = tables["gpu_op"]["start_ns"][::2] - 6_000
    tables["api_call"] = joined(
        tables["api_call"], calls(at + 24_500, at + 38_000, "cudaMalloc"),
        calls(at + 5_000, at + 19_000, "cudaFree"),
    )  # fmt: skip
    return tables


def copies(n: int) -> Tables:
    """Every other operation is a small read back."""
    tables = loop(n)
    kinds = np.arange(n) % 2
    gpu = tables["gpu_op"]
    gpu["kind"] = texts([("kernel", "memcpy")[k] for k in kinds])
    gpu["bytes"] = np.where(kinds == 1, 8, -1)
    gpu["copy_kind"] = [None if k == 0 else "DtoH" for k in kinds]
    gpu["src_memory"] = [None if k == 0 else "device" for k in kinds]
    gpu["dst_memory"] = [None if k == 0 else "pageable" for k in kinds]
    api = tables["api_call"]
    api["end_ns"] = np.where(kinds == 1, gpu["end_ns"] + 500, api["end_ns"])
    api["name"] = texts([("cudaLaunchKernel", "cudaMemcpy")[k] for k in kinds])
    return tables


def threads(n: int) -> Tables:
    """One thread for every 20 launches."""
    tables = loop(n)
    tables["api_call"]["thread_id"] = PID + np.arange(n) % max(n // 20, 1)
    tables["thread"] = {
        "process_id": np.full(max(n // 20, 1), PID),
        "thread_id": PID + np.arange(max(n // 20, 1)),
        "name": texts([f"worker {i}" for i in range(max(n // 20, 1))]),
    }
    return tables


def processes(n: int) -> Tables:
    """One process with a GPU for every 2,000 operations."""
    tables = loop(n)
    for table in ("gpu_op", "api_call"):
        tables[table]["process_id"] = PID + np.arange(n) % max(n // 2000, 2)
        tables[table]["thread_id" if table == "api_call" else "context"] = PID + np.arange(n) % max(
            n // 2000, 2
        )
    del tables["gpu_op"]["context"]
    return tables


def devices(n: int) -> Tables:
    """One device of one process for every 2,000 operations."""
    tables = loop(n)
    tables["gpu_op"]["device"] = (np.arange(n) % max(n // 2000, 2)).astype(np.int32)
    return tables


def names(n: int) -> Tables:
    """Every kernel and every range has a name of its own."""
    tables = loop(n)
    tables["gpu_op"]["name"] = texts([f"void kernel_{i}<float, {i}>(int)" for i in range(n)])
    at = tables["gpu_op"]["start_ns"] - 6_100
    tables["range"] = joined(
        tables["range"], ranges(at, at + 4_500, [f"tag{word(i)}" for i in range(n)])
    )
    return tables


def word(number: int) -> str:
    """A number in letters, so that names have no digits in common places."""
    return "".join(chr(97 + int(digit)) for digit in str(number))


def stem(n: int) -> Tables:
    """One range for each launch, all of one name and a number."""
    tables = loop(n)
    at = tables["gpu_op"]["start_ns"] - 6_100
    tables["range"] = joined(
        tables["range"], ranges(at, at + 4_500, [f"request {i}" for i in range(n)])
    )
    return tables


def short_steps(n: int) -> Tables:
    """Steps of two operations."""
    tables = loop(n)
    at = tables["gpu_op"]["start_ns"][::2] - 6_100
    tables["range"] = ranges(at, at + 2 * BEAT_NS - 100, [f"step {i}" for i in range(len(at))])
    return tables


def unmarked(n: int) -> Tables:
    """No ranges: steps are found in the kernels, whose names do not repeat exactly."""
    tables = loop(n)
    del tables["range"]
    chosen = np.random.default_rng(3).integers(0, 400, n)
    tables["gpu_op"]["name"] = texts([f"gemm_{i}" for i in chosen])
    return tables


def repeating(n: int) -> Tables:
    """No ranges: steps are found in the kernels, which repeat."""
    tables = loop(n)
    del tables["range"]
    tables["gpu_op"]["name"] = texts([f"gemm_{(i % 100) ** 2 % 61}" for i in range(n)])
    return tables


def nested(n: int) -> Tables:
    """Ranges as deep as there are launches in ten steps, around everything."""
    tables = loop(n)
    depth = np.arange(n // 10)
    end = int(tables["gpu_op"]["end_ns"].max()) + 1_000_000
    tables["range"] = joined(
        ranges(100 + depth, end - depth, [f"level{word(i % 50)}" for i in depth.tolist()]),
        tables["range"],
    )
    return tables


def operators(n: int) -> Tables:
    """Five nested operators and five Python functions around each launch."""
    tables = loop(n)
    at = tables["gpu_op"]["start_ns"] - 6_000
    begin = np.concatenate([at - 100 * (5 - k) for k in range(5)])
    end = np.concatenate([at + 4_000 + 100 * (5 - k) for k in range(5)])
    label = [f"aten::op{k}" for k in range(5) for _ in range(n)]
    base = {
        "process_id": np.full(5 * n, PID), "thread_id": np.full(5 * n, PID), "start_ns": begin,
        "end_ns": end, "name": texts(label),
    }  # fmt: skip
    tables["operator"] = {
        **base, "external_id": np.arange(5 * n), "sequence_number": np.arange(5 * n),
        "input_shapes": texts([f"[[{i % 97}, 64], [64, 128]]" for i in range(5 * n)]),
        "input_types": texts(['["float", "float"]'] * (5 * n)),
    }  # fmt: skip
    tables["python_function"] = {
        **base,
        "name": texts([f"train.py({i % 1000}): f{i % 1000}" for i in range(5 * n)]),
    }
    return tables


def gaps(n: int) -> Tables:
    """An idle stretch before each operation, each with a call of the system in it."""
    tables = loop(n)
    tables["gpu_op"]["end_ns"] = tables["gpu_op"]["start_ns"] + 3_000
    at = tables["gpu_op"]["start_ns"] - 6_000
    system = calls(at + 5_000, at + 17_000, "poll", thread=PID + 1)
    system["api"] = texts(["osrt"] * n)
    busy = calls(at + 4_500, at + 19_000, "read")
    busy["api"] = texts(["osrt"] * n)
    tables["api_call"] = joined(tables["api_call"], system, busy)
    return tables


def collectives(n: int) -> Tables:
    """Every fifth operation a collective, in one of a fiftieth as many communicators."""
    tables = loop(n)
    which = np.flatnonzero(np.arange(n) % 5 == 0)
    tables["gpu_op"]["name"] = texts(
        [COMMUNICATION if i % 5 == 0 else f"gemm_{i % 20}" for i in range(n)]
    )
    tables["gpu_op"]["stream"] = np.where(np.arange(n) % 5 == 0, 20, 7)
    groups = [f"pg{i % max(n // 50, 1)}" for i in range(len(which))]
    tables["collective"] = {
        "process_id": np.full(len(which), PID), "correlation_id": which + 1,
        "name": texts(["allreduce"] * len(which)), "in_elements": np.full(len(which), 4096),
        "out_elements": np.full(len(which), 4096), "dtype": texts(["Float"] * len(which)),
        "group_name": texts(groups), "group_size": np.full(len(which), 8),
        "group_ranks": texts([f"[{int(g[2:])}, {int(g[2:]) + 1}]" for g in groups]),
        "sequence": np.arange(len(which)) // max(n // 50, 1), "rank": np.zeros(len(which), int),
    }  # fmt: skip
    several = max(n // 50, 1)
    tables["communicator"] = {
        "name": texts([f"pg{i}" for i in range(several)]),
        "size": np.full(several, 8), "backend": texts(["nccl"] * several),
    }  # fmt: skip
    return tables


def samples(n: int) -> Tables:
    """A sampled stack of thirty frames and a change of the thread's state for each launch."""
    tables = loop(n)
    at = tables["gpu_op"]["start_ns"] - 6_000
    distinct = max(n // 10, 1)
    tables["cpu_sample"] = {
        "time_ns": at + 5_000, "process_id": np.full(n, PID), "thread_id": np.full(n, PID),
        "weight": np.full(n, 20_000), "stack_id": np.arange(n) % distinct,
    }  # fmt: skip
    tables["stack_frame"] = {
        "stack_id": np.repeat(np.arange(distinct), 30),
        "depth": np.tile(np.arange(30, dtype=np.int32), distinct),
        "function": texts([f"f{i % 5000}" for i in range(30 * distinct)]),
        "module": texts(["train.py"] * (30 * distinct)),
        "line": np.full(30 * distinct, 7, np.int32),
    }
    state = np.concatenate((at, at + 8_000))
    tables["thread_state"] = {
        "process_id": np.full(2 * n, PID), "thread_id": np.full(2 * n, PID),
        "start_ns": state, "end_ns": state + 7_900,
        "state": texts(["running"] * n + ["sleeping"] * n),
    }  # fmt: skip
    tables["gil"] = {**tables["thread_state"]}
    del tables["gil"]["state"]
    tables["gil"]["state"] = texts(["holding"] * n + ["waiting"] * n)
    return tables


def memory(n: int) -> Tables:
    """An allocation and a release for each launch."""
    tables = loop(n)
    at = tables["gpu_op"]["start_ns"] - 6_000
    tables["memory_event"] = {
        "process_id": np.full(2 * n, PID), "time_ns": np.concatenate((at - 500, at + 4_500)),
        "kind": texts(["cache"] * (2 * n)), "device": np.zeros(2 * n, np.int32),
        "address": np.tile(np.arange(n) % 512 * 4096, 2),
        "bytes": np.concatenate((np.full(n, 4096), np.full(n, -4096))),
        "total_allocated_bytes": np.concatenate((np.full(n, 8192), np.full(n, 4096))),
        "total_reserved_bytes": np.full(2 * n, 1 << 30),
    }  # fmt: skip
    return tables


SHAPES: dict[str, Callable[[int], Tables]] = {
    shape.__name__: shape
    for shape in (
        loop, synchronised, streams, two_streams, stream_waits, graphs, allocations, copies,
        threads, processes, devices, names, stem, short_steps, unmarked, repeating, nested,
        operators, gaps, collectives, samples, memory,
    )
}  # fmt: skip


def write(folder: Path, tables: Tables, rank: int | None = None) -> None:
    """Write the tables as a trace."""
    folder.mkdir(parents=True)
    writer = TraceWriter(folder, ProblemLog())
    for table, columns in tables.items():
        encoded = {}
        for name, values in columns.items():
            if isinstance(values, list):
                encoded[name] = pa.array(values, pa.string()).dictionary_encode()
            elif name in ("correlation_id", "bytes"):
                encoded[name] = pa.array(values, mask=values < 0)
            else:
                encoded[name] = pa.array(values)
        writer.append(table, encoded)
    end = max(int(c["end_ns"].max()) for c in tables.values() if "end_ns" in c)
    meta = Meta(source="synthetic", window_end_ns=end + 1000, input_name=folder.name, rank=rank)
    meta.rows = writer.close()
    write_meta(folder, meta)


def ranks(folder: Path, n: int, several: int) -> list[Path]:
    """Ranks of one job, each with its share of the operations and its collectives."""
    found = []
    for rank in range(several):
        tables = collectives(n // several)
        tables["collective"]["rank"][:] = rank
        groups = [f"pg{i % 4}" for i in range(len(tables["collective"]["name"]))]
        tables["collective"]["group_name"] = groups
        tables["collective"]["group_ranks"] = [str(list(range(several)))] * len(groups)
        tables["collective"]["group_size"][:] = several
        found.append(folder / f"rank{rank}.stepscope")
        write(found[-1], tables, rank)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--shape", nargs="*", default=[*SHAPES, "ranks"])
    arguments = parser.parse_args()
    sizes = (arguments.operations, arguments.operations * arguments.times)
    with tempfile.TemporaryDirectory(prefix="stepscope-shapes-") as name:
        folder = Path(name)
        environment = {**os.environ, "STEPSCOPE_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, "-m", "stepscope", "diagnose", "--format", "json"]
        write(folder / "start.stepscope", loop(200))
        start = measure([*command, str(folder / "start.stepscope")], environment)[1]
        print(f"start-up {start:.2f} s CPU, taken off")
        heads = "".join(f"{f'{size:,}':>12}" for size in sizes)
        print(f"{'CPU s, operations':18}{heads} {'exponent':>9} {'peak MB':>8}")
        for shape in arguments.shape:
            taken, peak = [], 0.0
            for size in sizes:
                if shape == "ranks":
                    paths = ranks(folder / f"{shape}{size}", size, max(size // 2000, 2))
                else:
                    paths = [folder / f"{shape}{size}.stepscope"]
                    write(paths[0], SHAPES[shape](size))
                _, cpu, peak = measure([*command, *map(str, paths)], environment)
                taken.append(max(cpu - start, 0.01))
            exponent = math.log(taken[1] / taken[0]) / math.log(arguments.times)
            values = "".join(f"{t:12.2f}" for t in taken)
            print(f"{shape:18}{values} {exponent:9.2f} {peak:8.0f}", flush=True)


if __name__ == "__main__":
    main()
