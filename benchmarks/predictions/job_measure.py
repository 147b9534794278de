"""Times the exam's pairs on two GPUs and records their faulty sides; needs PyTorch.

usage: python3 benchmarks/predictions/job_measure.py all OUTPUT_FOLDER [--seconds N] [NAME...]

Writes what ``measure.py`` writes, for the programs of ``job_programs.py``: a trace of every rank.
Programs are started ahead of time, but only one uses the GPUs: its first rank holds a lock from
before the group is made until after the last step. With --seconds no program is started after so
many of them. With ``EXAM_SMALL=1`` it runs on a CPU, with gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import torch
import torch.distributed as dist
from job_programs import DEVICE, PROGRAMS, RANK
from measure import compile_collector, pack, whole_gpu
from program import SMALL, Program, Running

TURNS = 1 if SMALL else 2
WARMUP = 2 if SMALL else 12


def synchronize() -> None:
    if not SMALL:
        torch.cuda.synchronize()


def together() -> None:
    synchronize()
    dist.barrier()
    synchronize()


@contextlib.contextmanager
def made(program: Program, *, repaired: bool) -> Iterator[Running]:
    torch.manual_seed(0)
    running = program.make(repaired)
    try:
        for _ in range(WARMUP):
            running.step()
        yield running
    finally:
        running.close()
        del running
        gc.collect()
        if not SMALL:
            torch.cuda.empty_cache()


def turn(running: Running, steps: int) -> tuple[float, float]:
    """Mean of the slowest rank and median of the host of this one, ms a step."""
    together()
    at = [time.perf_counter()]
    for _ in range(steps):
        running.step()
        at.append(time.perf_counter())
    synchronize()
    mean = slowest((time.perf_counter() - at[0]) / steps * 1e3)
    return mean, statistics.median(b - a for a, b in zip(at, at[1:], strict=False)) * 1e3


def slowest(ms: float) -> float:
    value = torch.tensor([ms], device=DEVICE, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return round(float(value), 3)


def length(program: Program) -> int:
    """Steps of a turn: whole periods."""
    return 3 if SMALL else 40 if program.period > 1 else 25


def untraced(program: Program, folder: Path) -> None:
    """The sides take turns: before, after, before, after."""
    means: dict[bool, list[float]] = {False: [], True: []}
    medians: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(TURNS):
        for repaired in (False, True):
            with made(program, repaired=repaired) as running:
                mean, median = turn(running, length(program))
            means[repaired].append(mean)
            medians[repaired].append(round(median, 3))
    if RANK:
        return

    def side(repaired: bool) -> dict[str, list[float] | list[int]]:
        return {
            "mean_ms": means[repaired],
            "median_ms": medians[repaired],
            "steps": [length(program)] * TURNS,
        }

    truth = {
        "name": program.name,
        "cause": program.cause,
        "others": list(program.others),
        "family": program.family,
        "repair": program.repair,
        "marks": program.marks,
        "period": program.period,
        "ranks": program.ranks,
        "samples": program.samples,
        "before": side(False),
        "after": side(True),
        "recorded": {},
        "device": "CPU" if SMALL else torch.cuda.get_device_name(),
        "torch": torch.__version__.split("+")[0],
        "written_after": "",
    }
    (folder / f"{program.name}.json").write_text(json.dumps(truth, indent=1) + "\n")
    print(f"{program.name:26} {means[False]} -> {means[True]} ms", flush=True)


def captured(program: Program) -> int:
    return 3 if SMALL else 20 if program.period > 1 or "uneven_l" in program.name else 10


@contextlib.contextmanager
def marked(i: int) -> Iterator[None]:
    nvtx = contextlib.nullcontext() if SMALL else torch.cuda.nvtx.range(f"step_{i}")
    with nvtx, torch.profiler.record_function(f"step_{i}"):
        yield


def steps(running: Running, count: int) -> float:
    begin = time.perf_counter()
    for i in range(count):
        with marked(i):
            running.step()
    synchronize()
    return slowest((time.perf_counter() - begin) / count * 1e3)


def kineto(program: Program, folder: Path) -> torch.profiler.profile:
    """Record every rank by torch.profiler."""
    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CPU] if SMALL else [activity.CPU, activity.CUDA]
    with made(program, repaired=False) as running:
        together()
        with torch.profiler.profile(activities=kinds, record_shapes=True) as profiler:
            took = steps(running, captured(program))
    if RANK == 0:
        (folder / f"{program.name}.kineto.ms").write_text(str(took))
    return profiler


def own(program: Program, folder: Path) -> None:
    """Run so that a collector beside the program records it."""
    with made(program, repaired=False) as running:
        together()
        if not SMALL:
            torch.cuda.profiler.start()
        took = steps(running, captured(program))
        if not SMALL:
            torch.cuda.profiler.stop()
    if RANK == 0:
        (folder / f"{program.name}.own.ms").write_text(str(took))


def one(mode: str, program: Program, folder: Path) -> None:
    """A rank of one program."""
    if not SMALL:
        torch.cuda.set_device(DEVICE)
        torch.backends.cuda.matmul.allow_tf32 = True
    profiler = None
    with whole_gpu() if RANK == 0 else contextlib.nullcontext():
        dist.init_process_group(*(["gloo"] if SMALL else ["nccl"]))
        if mode == "own":
            own(program, folder)
        else:
            untraced(program, folder)
            profiler = kineto(program, folder)
        together()
        dist.destroy_process_group()
    if profiler is not None:
        place = folder / f"{program.name}.kineto"
        place.mkdir(exist_ok=True)
        profiler.export_chrome_trace(str(place / f"rank{RANK}.json"))


def work(program: Program, mode: str, folder: Path) -> None:
    """All ranks of one program; what fails is told."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += [str(HERE / "job_measure.py"), mode, str(folder), program.name]
    made_at = folder / f"{program.name}.own"
    if mode == "own":
        run = [sys.executable, "-m", "stepscope", "run", "-o", str(made_at), "--no-diagnose"]
        words = [*run, "--range", "cudaProfilerApi", "--", *words]
    log = folder / f"{program.name}.{mode}.log"
    with log.open("w") as file:
        code: int | str
        try:
            code = subprocess.run(
                words, stdout=file, stderr=subprocess.STDOUT, timeout=180, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = "timeout"
    said = log.read_text(errors="replace").strip()
    place = made_at if mode == "own" else folder / f"{program.name}.kineto"
    found = sorted(place.glob("rank*"))
    if code or len(found) != program.ranks:
        print(f"FAILED {program.name} {mode} {code} {len(found)}: {said[-900:]}", flush=True)
        return
    log.unlink()
    print("\n".join(line for line in said.splitlines() if "->" in line), flush=True)
    with tarfile.open(
        folder / f"{program.name}.{'own' if mode == 'own' else 'kineto'}.tar", "w"
    ) as tar:
        for rank in found:
            tar.add(rank, arcname=rank.name)


def everything(folder: Path, names: list[str], seconds: float) -> None:
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    if not SMALL:
        compile_collector(folder)
    chosen = [p for p in PROGRAMS if not names or p.name in names]
    # by a hash, so that what is left out is no kind of program
    chosen.sort(key=lambda p: hashlib.sha256(p.name.encode()).digest()[2:])
    tasks = [(p, mode) for mode in ("pair", "own") for p in chosen]
    left = []

    def started(task: tuple[Program, str]) -> None:
        program, mode = task
        if time.monotonic() - begin > seconds:
            left.append(f"{program.name} {mode}")
        else:
            work(program, mode, folder)

    with ThreadPoolExecutor(1 if SMALL else 3) as pool:
        list(pool.map(started, tasks))
    for program in chosen:
        file = folder / f"{program.name}.json"
        if file.exists():
            truth = json.loads(file.read_text())
            for source in ("own", "kineto"):
                ms = folder / f"{program.name}.{source}.ms"
                if ms.exists():
                    truth["recorded"][source] = float(ms.read_text())
            file.write_text(json.dumps(truth))
    print(f"left out {left}; {time.monotonic() - begin:.0f} s", flush=True)
    pack(folder)
    print(f"packed; {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("all", "pair", "own"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    if given.mode == "all":
        everything(given.folder, given.names, given.seconds)
    else:
        program = next(p for p in PROGRAMS if p.name == given.names[0])
        one(given.mode, program, given.folder)


if __name__ == "__main__":
    main()
