"""Times the exam's single-GPU pairs and records their faulty sides; needs a GPU and PyTorch.

usage: python3 benchmarks/predictions/measure.py all OUTPUT_FOLDER [NAME...] [--seconds N]
       [--module MODULE] [--part I/N]

Writes NAME.json, NAME.own.tar and NAME.kineto.json of each pair to the folder, a line each to
standard output, and the output of programs that failed to NAME.MODE.log. Programs are prepared some
at a time, but while one is timed or recorded all others are stopped. With --seconds no program is
measured after so many of them, and the rest is left out. With --part only every N-th pair is
measured, from the I-th on.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cores import anywhere, on_a_quiet_core
from gates import Gate, Task, in_batches, pack
from program import SMALL, Marker, Program, Running
from timing import ALONE, Meeting, drained, line, loop, settled, truth, turns

HERE = Path(__file__).parent
PREPARING = 3
"""Steps of a program before it waits for its turn."""
WARMUP = 12
"""Steps before the recorded ones: what two workers had ready, and some that are timed."""
RECORDED = 6
LETS_GO_MS = 100 if SMALL else 1_350
"""The collector leaves the process 1.5 s after a recording."""
PART_MS = 100
TIMED_AFTERWARDS = 14
"""Steps after that, of which some are timed."""
TOGETHER = 1 if SMALL else 8
"""Pairs that are prepared at the same time."""
SETS = (
    *("single", "second", "third", "fourth", "fifth", "sixth", "sixth_science", "sixth_loops"),
    *("seventh", "seventh_more", "eighth", "eighth_tables", "eighth_gpu", "eighth_gpu_pictures"),
    *("eighth_rare", "eighth_more", "eighth_last"),
    *("ninth", "ninth_signals", "ninth_sounds", "ninth_hosts"),
    *("tenth", "tenth_tables", "tenth_pictures", "tenth_late", "tenth_wide"),
    *("eleventh", "eleventh_kernels", "eleventh_mixed"),
    *("twelfth", "twelfth_kernels", "twelfth_mixed"),
    *("thirteenth", "thirteenth_kernels", "thirteenth_mixed"),
    *("fourteenth", "fourteenth_kernels", "fourteenth_mixed"),
    *("fifteenth", "fifteenth_kernels", "fifteenth_mixed"),
    *("sixteenth", "sixteenth_kernels", "sixteenth_mixed"),
    *("seventeenth_kernels", "seventeenth_mixed"),
    *("eighteenth_everyday", "eighteenth_mixed"),
    *("nineteenth_everyday", "nineteenth_mixed"),
    *("twentieth_everyday", "twentieth_mixed"),
    *("twenty_first_everyday", "twenty_first_mixed"),
    *("twenty_second_everyday", "twenty_second_mixed"),
    *("twenty_third_everyday", "twenty_third_planted", "twenty_third_textbook"),
    *("twenty_fourth_everyday", "twenty_fourth_planted"),
)
MODULES = tuple(f"{name}_programs" for name in SETS)


def programs(module: str = "") -> dict[str, Program]:
    """All programs by name, or those of one module."""
    found: dict[str, Program] = {}
    for name in (module,) if module else MODULES:
        for program in __import__(name).PROGRAMS:
            assert program.name not in found, program.name
            found[program.name] = program
    return found


def recorded_steps(program: Program) -> int:
    return max(RECORDED, 2 * program.period + 2)


# ---- in a process of its own


def prepare(program: Program, *, repaired: bool) -> Running:
    """A side that has made its first steps: what is compiled or tuned then is done."""
    run = program.make(repaired)
    run.enter()
    for _ in range(PREPARING):
        run.step()
    drained()
    run.leave()
    return run


def measure_pair(program: Program, out: Path) -> None:
    """Time both sides in turn, then record the faulty one by torch.profiler."""
    import torch

    gate = Gate()
    torch.manual_seed(0)
    sides = [prepare(program, repaired=repaired) for repaired in (False, True)]
    gate.reached()
    begun = time.perf_counter()
    found = turns(program, sides)
    timed = time.perf_counter()
    sides[1].close()
    result = truth(program, found)
    file = out / f"{program.name}.json"
    file.write_text(json.dumps(result))
    kineto = out / f"{program.name}.kineto.json"
    result["recorded"]["kineto"], write = traced(program, sides[0], kineto)
    file.write_text(json.dumps(result))
    print(
        f"{line(program, found)}; traced {result['recorded']['kineto']:8.2f}; timed "
        f"{timed - begun:.1f} s, recorded {time.perf_counter() - timed:.1f} s",
        flush=True,
    )
    gate.reached()
    anywhere()
    write()
    os._exit(0)  # workers and compilers must not keep the process


def traced(program: Program, run: Running, file: Path) -> tuple[float, Callable[[], None]]:
    """Record by torch.profiler; the recorded step, ms, and what writes the trace."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    opened: list[Any] = []

    def opens(name: str) -> None:
        opened.append(record_function(name))
        opened[-1].__enter__()

    def closes() -> None:
        opened.pop().__exit__(None, None, None)

    if program.marks == "phases":
        Marker.open, Marker.close = opens, closes
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    shapes = bool(hashlib.sha256(program.name.encode()).digest()[1] & 1)
    steps = recorded_steps(program)
    by_profiler = program.marks == "profiler"
    plan = schedule(wait=1, warmup=2, active=steps, repeat=1) if by_profiler else None
    run.enter()
    on_a_quiet_core()
    settled(run)
    profiler = profile(activities=activities, record_shapes=shapes, schedule=plan)
    if by_profiler:
        profiler.start()
        for _ in range(3):
            run.step()
            profiler.step()
        found = loop(run, steps, profiler.step)
        with contextlib.suppress(Exception):
            profiler.stop()
    else:
        drained()
        profiler.start()
        found = loop(marked(program, run, opens, closes), steps)
        profiler.stop()
    run.leave()
    Marker.open = Marker.close = None
    return found["mean_ms"], lambda: profiler.export_chrome_trace(str(file))


def marked(
    program: Program, run: Running, opens: Callable[[str], object], closes: Callable[[], object]
) -> Running:
    """A range around each step, where the program has one."""
    if program.marks not in ("steps", "phases"):
        return run
    number = itertools.count()

    def step() -> None:
        opens(f"step_{next(number)}")
        run.step()
        closes()

    return Running(step, run.enter, run.leave, run.close)


def record_own(program: Program, out: Path) -> None:
    """The faulty side under ``stepscope run``: steps before, in and after the recording."""
    import torch

    gate = Gate()
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    if program.marks == "phases" and cuda:
        Marker.open, Marker.close = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    run = prepare(program, repaired=False)
    # the timed process holds both sides: Python's garbage collector must walk as far here
    other = program.make(True)
    other.close()
    if cuda:
        run = marked(program, run, torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
    steps = recorded_steps(program)
    gate.reached()
    run.enter()
    on_a_quiet_core()
    loop(run, WARMUP)
    if by_steps(program):
        mean = loop(run, steps)["mean_ms"]
        afterwards(run, mean)
    elif cuda:
        torch.cuda.profiler.start()
        mean = loop(run, steps)["mean_ms"]
        torch.cuda.profiler.stop()
    else:
        mean = loop(run, steps)["mean_ms"]
    run.leave()
    (out / f"{program.name}.own.ms").write_text(str(mean))
    gate.reached()
    anywhere()
    with contextlib.suppress(Exception):
        run.close()
    sys.stdout.flush()


def afterwards(run: Running, step_ms: float, meeting: Meeting = ALONE) -> None:
    """So many steps that some are timed after the recording; each rank makes as many."""
    spent = 0.0
    while spent < LETS_GO_MS:
        steps = max(1, int(PART_MS / step_ms))
        step_ms = loop(run, steps, meeting=meeting)["mean_ms"]
        spent += steps * step_ms
    for _ in range(math.ceil(4 * PART_MS / step_ms) + TIMED_AFTERWARDS):
        run.step()
    drained()


# ---- outside


def by_steps(program: Program) -> bool:
    """Whether the own capture is by optimizer steps: those that have an optimizer."""
    return program.family != "decode" and program.name != "job_tensor_parallel"


def recording(
    program: Program, folder: Path, warmup: int, steps: int, words: list[str]
) -> list[str]:
    """The command that records a program by ``stepscope run``."""
    what = (
        ["--steps", str(steps), "--warmup", str(warmup)]
        if by_steps(program)
        else ["--range", "cudaProfilerApi"]
    )
    return [
        *(sys.executable, "-m", "stepscope", "run", "-o", str(folder), "--no-diagnose"),
        *(*what, *program.record, "--", *words),
    ]


def command(program: Program, mode: str, out: Path) -> list[str]:
    """What measures one program in a process of its own."""
    plain = [sys.executable, str(HERE / "measure.py"), mode, str(out), program.name]
    if mode != "own":
        return plain
    folder, steps = out / f"{program.name}.own", recorded_steps(program)
    return recording(program, folder, PREPARING + WARMUP, steps, plain)


def ended(task: Task, why: str) -> None:
    """What a program said; what it recorded, packed."""
    assert task.process is not None
    out = task.log.parent
    said = task.log.read_text(errors="replace").strip()
    folders = {"own": out / f"{task.name}.own", "pair": out / f"{task.name}.kineto"}
    found = sorted(folders[task.mode].glob("rank*"))
    single = (out / f"{task.name}.kineto.json").exists() and task.mode == "pair"
    if not why and task.process.returncode:
        why = f"exit code {task.process.returncode}"
    if not why and not single and len(found) != task.ranks:
        why = f"{len(found)} of {task.ranks} ranks recorded"
    if why:
        print(f"FAILED {task.name} {task.mode}, {why}: {said[-700:]}", flush=True)
        return
    task.log.unlink()
    told = [part for part in said.splitlines() if part.startswith(task.name)]
    print("\n".join([*told, f"   {task.name} {task.mode} took {task.took_s} s"]), flush=True)
    if found:
        with tarfile.open(f"{folders[task.mode]}.tar", "w") as tar:
            for rank in found:
                tar.add(rank, arcname=rank.name)


def compile_collector(out: Path) -> None:
    """The collector is compiled when it is first used."""
    program = "import torch; torch.cuda.is_available() and torch.zeros(8).cuda().sum().item()"
    stepscope = [sys.executable, "-m", "stepscope", "run", "-o", str(out / "first")]
    with (out / "first.log").open("w") as log:
        subprocess.run(
            [*stepscope, "--no-diagnose", "--", sys.executable, "-c", program],
            stdout=log, stderr=subprocess.STDOUT, timeout=150, check=False,
        )  # fmt: skip


def by_hash(chosen: list[Program]) -> list[Program]:
    """In an order in which what is left out is no kind of program; those that compile are first."""
    return sorted(
        chosen,
        key=lambda p: (not p.compiles, hashlib.sha256(p.name.encode()).digest()[2:]),
    )


def everything(
    chosen: list[Program],
    out: Path,
    seconds: float,
    words: Callable[[Program, str, Path], list[str]],
    together: int,
) -> None:
    """Measure all of them, and pack what was measured."""
    begin = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)

    def task(program: Program, mode: str) -> Task:
        log = out / f"{program.name}.{mode}.log"
        patience = 150.0 if program.compiles else 75.0
        run = words(program, mode, out)
        return Task(program.name, mode, run, log, ended, program.ranks, patience)

    # those that compile take long to prepare, so they share one wait
    compiled = [p for p in chosen if p.compiles and not SMALL]
    others = [p for p in chosen if p not in compiled]
    parts = [others[at : at + together] for at in range(0, len(others), together)]
    batches = [
        [task(p, mode) for mode in ("pair", "own") for p in part]
        for part in [*([compiled] if compiled else []), *parts]
    ]
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    left = in_batches(batches, seconds, lambda: compile_collector(out))
    for program in chosen:  # the own step joins the truth
        file = out / f"{program.name}.json"
        for source in ("own", "kineto"):
            ms, tar = (out / f"{program.name}.{source}.{kind}" for kind in ("ms", "tar"))
            if file.exists() and ms.exists() and tar.exists():
                result = json.loads(file.read_text())
                result["recorded"][source] = float(ms.read_text())
                file.write_text(json.dumps(result))
    told = ", ".join(f"{task.name} {task.mode}" for task in left)
    print(f"left out {len(left)}: {told}; {time.monotonic() - begin:.0f} s", flush=True)
    pack(out)
    print(f"packed; {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("all", "pair", "own"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--module", default="", help="whose programs; all if empty")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument(
        "--together", type=int, default=TOGETHER, help="pairs prepared at once, as memory allows"
    )
    parser.add_argument("--part", default="0/1", help="I/N: every N-th pair, from the I-th on")
    given = parser.parse_args()
    if given.mode == "all":
        every = by_hash(list(programs(given.module).values()))
        number, of = map(int, given.part.split("/"))
        compiled = [p for p in every if p.compiles]
        chosen = (compiled if number == 0 else []) + every[len(compiled) :][number::of]
        if given.names:
            chosen = [p for p in every if p.name in given.names]
        everything(chosen, given.out, given.seconds, command, given.together)
        return
    program = programs()[given.names[0]]
    __import__("models").precision("high")()
    {"pair": measure_pair, "own": record_own}[given.mode](program, given.out)


if __name__ == "__main__":
    main()
