"""Times the exam's jobs on several GPUs and records their faulty sides; needs PyTorch.

usage: python3 benchmarks/predictions/job_measure.py all OUTPUT_FOLDER [NAME...] [--seconds N]
       [--module MODULE] [--ranks N]

Writes what ``measure.py`` writes, for programs of several ranks: a trace of every rank. A job has
the first GPUs of the machine, one a rank; those of more ranks than there are GPUs are left out, and
named. With --ranks only jobs of so many ranks are measured.
With ``EXAM_SMALL=1`` it runs on a CPU, with gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from cores import anywhere, on_a_quiet_core
from gates import Gate
from job_programs import DEVICE, RANK, WORLD
from measure import PREPARING, afterwards, by_hash, by_steps, everything, recording
from program import SMALL, Program, Running
from timing import Meeting, drained, line, loop, settled, truth, turns

HERE = Path(__file__).parent
WARMUP = 9
TOGETHER = 1 if SMALL else 4
"""Jobs that are prepared at the same time."""
MODULES = (
    *("job_programs", "sixth_job_programs", "eighth_job_programs", "ninth_job_programs"),
    *("tenth_job_programs", "eleventh_job_programs"),
    *("twelfth_job_programs", "fourteenth_job_programs", "nineteenth_job_programs"),
    "twentieth_job_programs",
    "twenty_first_job_programs",
    "twenty_second_job_programs",
    "twenty_third_job_programs",
    "twenty_fourth_job_programs",
)


def programs(module: str = "") -> dict[str, Program]:
    """All jobs by name, or those of one module."""
    chosen = (module,) if module else MODULES
    return {program.name: program for name in chosen for program in __import__(name).PROGRAMS}


def called(mode: str, folder: Path, program: Program) -> list[str]:
    """This file once more, for one program."""
    words = [sys.executable, str(HERE / "job_measure.py"), mode, str(folder), program.name]
    return [*words, "--module", program.make.__module__]


def together() -> None:
    drained()
    dist.barrier()
    drained()


def slowest(ms: float) -> float:
    value = torch.tensor([ms], device=DEVICE, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return round(float(value), 4)


quiet = partial(on_a_quiet_core, RANK, WORLD)
MEETING = Meeting(together, slowest, quiet)


def recorded_steps(program: Program) -> int:
    uneven = program.name == "job_uneven_lengths"
    return 3 if SMALL else 12 if uneven else 3 * program.period if program.period > 1 else 6


def prepared(program: Program, *, repaired: bool) -> Running:
    torch.manual_seed(0)
    running = program.make(repaired)
    running.enter()
    for _ in range(PREPARING):
        running.step()
    drained()
    running.leave()
    return running


def marked(running: Running) -> Running:
    """With a range around each step."""
    number = iter(range(1 << 40))

    def step() -> None:
        name = f"step_{next(number)}"
        nvtx = contextlib.nullcontext() if SMALL else torch.cuda.nvtx.range(name)
        with nvtx, torch.profiler.record_function(name):
            running.step()

    return Running(step, running.enter, running.leave, running.close)


def measure_pair(program: Program, folder: Path, gate: Gate) -> None:
    """Time both sides in turn, then record every rank of the faulty one by torch.profiler."""
    sides = [prepared(program, repaired=repaired) for repaired in (False, True)]
    together()
    gate.reached()
    found = turns(program, sides, MEETING)
    sides[1].close()
    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CPU] if SMALL else [activity.CPU, activity.CUDA]
    profiler = torch.profiler.profile(activities=kinds, record_shapes=True)
    sides[0].enter()
    quiet()
    settled(sides[0])
    together()
    profiler.start()
    took = loop(marked(sides[0]), recorded_steps(program), meeting=MEETING)["mean_ms"]
    profiler.stop()
    sides[0].leave()
    if RANK == 0:
        result = truth(program, found)
        result["recorded"]["kineto"] = took
        (folder / f"{program.name}.json").write_text(json.dumps(result))
        print(f"{line(program, found)}; traced {took:8.2f}", flush=True)
    together()
    gate.reached()
    anywhere()
    sides[0].close()
    place = folder / f"{program.name}.kineto"
    place.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(place / f"rank{RANK}.json"))


def record_own(program: Program, folder: Path, gate: Gate) -> None:
    """Run so that the collector records steps, and times some before and after them."""
    running = marked(prepared(program, repaired=False))
    together()
    gate.reached()
    running.enter()
    quiet()
    loop(running, WARMUP, meeting=MEETING)
    counted = by_steps(program)
    if not (SMALL or counted):
        torch.cuda.profiler.start()
    took = loop(running, recorded_steps(program), meeting=MEETING)["mean_ms"]
    if not (SMALL or counted):
        torch.cuda.profiler.stop()
    if counted:
        afterwards(running, took, MEETING)
    running.leave()
    if RANK == 0:
        (folder / f"{program.name}.own.ms").write_text(str(took))
    together()
    gate.reached()
    anywhere()
    running.close()


def rank_of(mode: str, program: Program, folder: Path) -> None:
    """One rank of a program."""
    gate = Gate(RANK)
    if not SMALL:
        torch.cuda.set_device(DEVICE)
        torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group("gloo" if SMALL else "nccl")
    {"pair": measure_pair, "own": record_own}[mode](program, folder, gate)
    sys.stdout.flush()
    if mode == "pair":
        os._exit(0)
    dist.destroy_process_group()


def ranks_of(mode: str, program: Program, folder: Path) -> int:
    """All ranks of a program; the first exit code that is not 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    more = {"WORLD_SIZE": str(program.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            called(f"rank-{mode}", folder, program),
            env={**os.environ, **more, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(program.ranks)
    ]
    return max(abs(rank.wait()) for rank in ranks)


def command(program: Program, mode: str, folder: Path) -> list[str]:
    """What measures one program."""
    words = called(f"ranks-{mode}", folder, program)
    if mode != "own":
        return words
    place, steps = folder / f"{program.name}.own", recorded_steps(program)
    return recording(program, place, PREPARING + WARMUP, steps, words)


def fitting(chosen: list[Program], ranks: int) -> list[Program]:
    """Jobs of so many ranks (any, if 0) that have a GPU for each rank."""
    chosen = [program for program in chosen if ranks in (0, program.ranks)]
    gpus = torch.cuda.device_count()
    if SMALL:
        return chosen
    large = [program.name for program in chosen if program.ranks > gpus]
    if large:
        print(f"left out for want of GPUs, {gpus} of them: {', '.join(large)}", flush=True)
    return [program for program in chosen if program.ranks <= gpus]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--module", default="", help="whose programs; all if empty")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--ranks", type=int, default=0, help="only jobs of so many; all if 0")
    parser.add_argument(
        "--together", type=int, default=TOGETHER, help="processes of pairs prepared at a time"
    )
    given = parser.parse_args()
    known = programs(given.module)
    what, _, mode = given.mode.partition("-")
    if what == "all":
        chosen = by_hash([p for n, p in known.items() if not given.names or n in given.names])
        everything(
            fitting(chosen, given.ranks), given.folder, given.seconds, command, given.together
        )
    elif what == "ranks":
        sys.exit(ranks_of(mode, known[given.names[0]], given.folder))
    else:
        rank_of(mode, known[given.names[0]], given.folder)


if __name__ == "__main__":
    main()
