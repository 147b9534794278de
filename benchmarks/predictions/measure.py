"""Times the exam's single-GPU pairs and records their faulty sides; needs a GPU and PyTorch.

usage: python3 benchmarks/predictions/measure.py all OUTPUT_FOLDER [--seconds N]
       [--module MODULE] [NAME...]

Writes NAME.json, NAME.own.tar and NAME.kineto.json of each pair to the folder, a line each to
standard output, and the output of programs that failed to NAME.MODE.log. Programs are started ahead
of time, but only one uses the GPU: it holds a lock from its warm-up to its last step. With
--seconds no program is started after so many of them, and the rest is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import io
import itertools
import json
import lzma
import os
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from program import SMALL, Marker, Program, Running

HERE = Path(__file__).parent
WARMUP = 8
LEAST_STEPS, MOST_STEPS = 6, 100
TURN_S = 0.35
"""What a turn of one side lasts, where its steps are short."""
RECORDED = 6
MODULES = ("single_programs", "second_programs")


def programs() -> dict[str, Program]:
    """All programs by name; those of a module that is not there are left out."""
    found: dict[str, Program] = {}
    for module in MODULES:
        if (HERE / f"{module}.py").exists():
            for program in __import__(module).PROGRAMS:
                assert program.name not in found, program.name
                found[program.name] = program
    return found


@contextlib.contextmanager
def whole_gpu() -> Iterator[None]:
    """No other program of the exam uses the GPU meanwhile."""
    with Path(os.environ.get("EXAM_LOCK", "/tmp/exam.lock")).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def drained() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def loop(
    run: Running, steps: int, between: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """So many steps: mean and median, ms; the GPU has nothing to do before and after."""
    drained()
    times = [time.perf_counter()]
    for _ in range(steps):
        run.step()
        between()
        times.append(time.perf_counter())
    drained()
    mean = (time.perf_counter() - times[0]) / steps * 1e3
    median = statistics.median(b - a for a, b in itertools.pairwise(times)) * 1e3
    return {"mean_ms": round(mean, 4), "median_ms": round(median, 4), "steps": steps}


def warm(run: Running, program: Program) -> float:
    """Warm up; the time of a late step, ms."""
    run.enter()
    loop(run, WARMUP)
    found = loop(run, max(4, program.period))["mean_ms"]
    run.leave()
    return found


def count(program: Program, step_ms: float) -> int:
    """Steps of a turn: whole periods."""
    wanted = min(max(TURN_S * 1e3 / step_ms, LEAST_STEPS), MOST_STEPS)
    periods = max(round(wanted / program.period), 2 if program.period > 1 else LEAST_STEPS)
    return periods * program.period


def recorded_steps(program: Program) -> int:
    return max(RECORDED, 2 * program.period + 2)


def turns(program: Program, sides: list[Running]) -> dict[str, dict[str, list[float]]]:
    """Both sides in turn, twice."""
    steps = [count(program, warm(side, program)) for side in sides]
    found: dict[str, dict[str, list[float]]] = {
        name: {"mean_ms": [], "median_ms": [], "steps": []} for name in ("before", "after")
    }
    for _ in range(2):
        for name, side, n in zip(found, sides, steps, strict=True):
            side.enter()
            for _ in range(2):
                side.step()
            for key, value in loop(side, n).items():
                found[name][key].append(value)
            side.leave()
    return found


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
    plan = schedule(wait=0, warmup=2, active=steps, repeat=1) if by_profiler else None
    run.enter()
    profiler = profile(activities=activities, record_shapes=shapes, schedule=plan)
    if by_profiler:
        profiler.start()
        for _ in range(2):
            run.step()
            profiler.step()
        found = loop(run, steps, profiler.step)
        with contextlib.suppress(Exception):
            profiler.stop()
    else:
        run.step()
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


def truth(program: Program, found: dict[str, Any]) -> dict[str, Any]:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "name": program.name,
        "cause": program.cause,
        "others": list(program.others),
        "family": program.family,
        "repair": program.repair,
        "marks": program.marks,
        "period": program.period,
        "ranks": program.ranks,
        "samples": program.samples,
        **found,
        "device": device,
        "torch": torch.__version__.split("+")[0],
        "written_after": getattr(sys.modules[program.make.__module__], "WRITTEN_AFTER", ""),
    }


def measure_pair(program: Program, out: Path) -> None:
    """Time both sides in turn, then record the faulty one by torch.profiler."""
    import torch

    started = time.perf_counter()
    torch.manual_seed(0)
    sides = [program.make(False)]
    drained()
    with whole_gpu():
        got = time.perf_counter()
        sides.append(program.make(True))  # may capture or compile
        found: dict[str, Any] = dict(turns(program, sides))
        timed = time.perf_counter()
        sides[1].close()
        found["recorded"] = {}
        result = truth(program, found)
        file = out / f"{program.name}.json"
        file.write_text(json.dumps(result))
        kineto = out / f"{program.name}.kineto.json"
        found["recorded"]["kineto"], write = traced(program, sides[0], kineto)
    file.write_text(json.dumps(result))
    ended = time.perf_counter()
    write()
    before, after = (statistics.mean(found[side]["mean_ms"]) for side in ("before", "after"))
    print(
        f"{program.name:30} {before:8.2f} -> {after:8.2f} ms {after / before:5.2f}; traced "
        f"{found['recorded']['kineto']:8.2f}; made {got - started:.1f} s, timed {timed - got:.1f}, "
        f"recorded {ended - timed:.1f}",
        flush=True,
    )
    os._exit(0)  # workers and compilers must not keep the process


def hook_counts(program: Program) -> bool:
    """Whether the own capture is by optimizer steps: half of the programs that only have those."""
    return program.marks == "profiler"


def record_own(program: Program, out: Path) -> None:
    """The faulty side under ``stepscope run``, by its steps or between calls of cudaProfilerApi."""
    import torch

    torch.manual_seed(0)
    run = program.make(False)
    drained()
    steps = recorded_steps(program)
    cuda = torch.cuda.is_available()
    with whole_gpu():
        run.enter()
        if hook_counts(program):
            loop(run, WARMUP)
            mean = loop(run, steps)["mean_ms"]
            run.step()
        else:
            if program.marks == "phases" and cuda:
                Marker.open, Marker.close = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
            loop(run, WARMUP + 1)
            if cuda:
                torch.cuda.profiler.start()
            pushes = torch.cuda.nvtx.range_push if cuda else print
            pops = torch.cuda.nvtx.range_pop if cuda else print
            mean = loop(marked(program, run, pushes, pops), steps)["mean_ms"]
            if cuda:
                torch.cuda.profiler.stop()
        run.leave()
    (out / f"{program.name}.own.ms").write_text(str(mean))
    run.close()
    sys.stdout.flush()


def command(program: Program, mode: str, out: Path) -> list[str]:
    """What measures one program in a process of its own."""
    plain = [sys.executable, str(HERE / "measure.py"), mode, str(out), program.name]
    if mode != "own":
        return plain
    steps = str(recorded_steps(program))
    what = (
        ["--steps", steps, "--warmup", str(WARMUP)]
        if hook_counts(program)
        else ["--range", "cudaProfilerApi"]
    )
    folder = out / f"{program.name}.own"
    return [
        *(sys.executable, "-m", "stepscope", "run", "-o", str(folder), "--no-diagnose"),
        *(*what, *program.record, "--", *plain),
    ]


def work(program: Program, mode: str, out: Path) -> None:
    """One program in a process of its own; what fails is told."""
    log = out / f"{program.name}.{mode}.log"
    with log.open("w") as file:
        code: int | str
        try:
            code = subprocess.run(
                command(program, mode, out), stdout=file, stderr=subprocess.STDOUT, timeout=150,
                check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = "timeout"
    said = log.read_text(errors="replace").strip()
    if code:
        print(f"FAILED {program.name} {mode} {code}: {said[-600:]}", flush=True)
        return
    log.unlink()
    if mode == "pair":
        print(said.splitlines()[-1] if said else f"{program.name}: silent", flush=True)
    if mode == "own":
        folder = out / f"{program.name}.own"
        if not list(folder.glob("rank*.stepscope")):
            print(f"FAILED {program.name} own, nothing recorded: {said[-600:]}", flush=True)
            return
        with tarfile.open(out / f"{program.name}.own.tar", "w") as tar:
            for rank in sorted(folder.glob("rank*.stepscope")):
                tar.add(rank, arcname=rank.name)


def compile_collector(out: Path) -> None:
    """The collector is compiled when it is first used."""
    program = "import torch; torch.cuda.is_available() and torch.zeros(8).cuda().sum().item()"
    stepscope = [
        sys.executable,
        "-m",
        "stepscope",
        "run",
        "-o",
        str(out / "first"),
        "--no-diagnose",
    ]
    with (out / "first.log").open("w") as log:
        subprocess.run(
            [*stepscope, "--", sys.executable, "-c", program],
            stdout=log, stderr=subprocess.STDOUT, timeout=150, check=False,
        )  # fmt: skip


def everything(out: Path, names: list[str], seconds: float, module: str) -> None:
    """All programs; those that compile fill the compiler's cache first, at the same time."""
    begin = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    found = {p.name: p for p in __import__(module).PROGRAMS} if module else programs()
    chosen = [p for n, p in found.items() if not names or n in names]
    compiled = [p for p in chosen if p.compiles and not SMALL]
    with ThreadPoolExecutor(len(compiled) + 1) as pool:
        first = pool.submit(compile_collector, out)
        list(pool.map(lambda p: work(p, "warm", out), compiled))
        first.result()
    print(f"compiled {len(compiled)} in {time.monotonic() - begin:.0f} s", flush=True)
    left = 0
    guard = threading.Lock()

    def one(task: tuple[Program, str]) -> None:
        nonlocal left
        if time.monotonic() - begin > seconds:
            with guard:
                left += 1
            return
        work(*task, out)

    # by a hash, so that what is left out is no kind of program
    chosen.sort(key=lambda p: hashlib.sha256(p.name.encode()).digest()[2:])
    tasks = [(p, mode) for p in chosen for mode in ("pair", "own")]
    with ThreadPoolExecutor(1 if SMALL else 6) as pool:
        list(pool.map(one, tasks))
    for program in chosen:  # the own step joins the truth
        file, own = out / f"{program.name}.json", out / f"{program.name}.own.ms"
        if file.exists() and own.exists():
            result = json.loads(file.read_text())
            result["recorded"]["own"] = float(own.read_text())
            file.write_text(json.dumps(result))
    print(f"left out {left}; {time.monotonic() - begin:.0f} s", flush=True)
    pack(out)
    print(f"packed; {time.monotonic() - begin:.0f} s", flush=True)


ARCHIVES, ARCHIVE_BYTES = 7, 15_500_000


def pack(out: Path) -> None:
    """All files in a few archives below OUT/packed, each file compressed by itself."""
    files = [f for f in sorted(out.iterdir()) if f.suffix in (".json", ".tar", ".log")]

    def compressed(file: Path) -> tuple[str, bytes]:
        return f"{file.name}.xz", lzma.compress(file.read_bytes(), preset=5)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # lzma lets other threads run
        small = sorted(pool.map(compressed, files), key=lambda f: len(f[1]))
    folder = out / "packed"
    folder.mkdir(exist_ok=True)
    room = [ARCHIVE_BYTES] * ARCHIVES
    parts: list[list[tuple[str, bytes]]] = [[] for _ in room]
    for name, data in small:
        place = max(range(ARCHIVES), key=lambda i: room[i])
        takes = len(data) + 2048
        if takes > room[place]:
            print(f"no room for {name}: {len(data)} bytes", flush=True)
            continue
        room[place] -= takes
        parts[place].append((name, data))
    for number, part in enumerate(parts):
        with tarfile.open(folder / f"part{number}.tar", "w") as archive:
            for name, data in part:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("all", "pair", "own", "warm"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--module", default=MODULES[0], help="whose programs; all if empty")
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    if given.mode == "all":
        everything(given.out, given.names, given.seconds, given.module)
        return
    program = programs()[given.names[0]]
    __import__("models").precision("high")()
    if given.mode == "pair":
        measure_pair(program, given.out)
    elif given.mode == "own":
        record_own(program, given.out)
    else:
        run = program.make(True)
        run.enter()
        for _ in range(3):
            run.step()
        drained()
        os._exit(0)


if __name__ == "__main__":
    main()
