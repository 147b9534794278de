"""What an annotation costs: an NVTX pair in C, ``stepscope.range`` in Python, with and without us.

    python benchmarks/annotations.py [PAIRS]

Compiles ``nvtx_pair.c`` with the tests' stand-in of NVTX. Each figure is the best of many rounds in
the same minute; the clock read is the floor, twice for a pair.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from stepscope.capture.launcher import record
from stepscope.capture.options import Options

HERE = Path(__file__).parent
STAND_IN = HERE.parent / "tests" / "capture" / "native" / "fake_nvtx.c"
PYTHON = """
import sys, time, stepscope
def best(body, rounds=40, count=5000):
    found = 1e9
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        body(count)
        found = min(found, (time.perf_counter_ns() - begin) / count)
        time.sleep(0.01)
    return found
def empty(n):
    for _ in range(n): pass
def ranges(n):
    for _ in range(n):
        with stepscope.range("forward"): pass
def steps(n):
    for _ in range(n): stepscope.step()
floor = best(empty)
print(best(ranges) - floor, best(steps, rounds=10, count=2000) - floor)
"""


def outputs(command: list[str], *, recorded: bool, folder: Path) -> list[float]:
    """The numbers that a program prints."""
    target = folder / "out.txt"
    shell = ("sh", "-c", f'"$0" "$@" > {target}', *command)
    if recorded:
        options = Options(
            shell, folder / "run", "collector", counters=False, threads_hz=0, hook=False
        )
        record(options, "benchmark", lambda text: None)
        shutil.rmtree(folder / "run")
    else:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE")}
        subprocess.run(shell, check=True, env=environment)
    return [float(text) for text in target.read_text().split()]


def main() -> None:
    """Print the table."""
    pairs = sys.argv[1] if len(sys.argv) > 1 else "20000"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("needs a C compiler")
    print("ns                             nobody listens   recorded")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "nvtx_pair"
        sources = [str(HERE / "nvtx_pair.c"), str(STAND_IN)]
        subprocess.run(
            [compiler, "-O2", *sources, "-o", str(program), "-ldl", "-lpthread"], check=True
        )
        bare, full = (
            outputs([str(program), pairs], recorded=on, folder=folder) for on in (False, True)
        )
        print(f"NVTX push and pop in C         {bare[0]:14.1f} {full[0]:10.1f}")
        print(f"... domain, registered name    {'':14} {full[1]:10.1f}")
        print(f"one clock read                 {bare[2]:14.1f} {full[2]:10.1f}")
        command = [sys.executable, "-c", PYTHON]
        bare, full = (outputs(command, recorded=on, folder=folder) for on in (False, True))
        print(f"with stepscope.range(...)      {bare[0]:14.1f} {full[0]:10.1f}")
        print(f"stepscope.step()               {bare[1]:14.1f} {full[1]:10.1f}")


if __name__ == "__main__":
    main()
