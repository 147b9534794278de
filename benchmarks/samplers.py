"""What sampling costs: thread states from outside, Python stacks from inside, and py-spy.

    python benchmarks/samplers.py [THREADS]

A program does a fixed amount of pure Python work, 25 frames deep, beside idle threads. Printed is
the CPU time of its process for that work (the best of some runs that take turns), and what the
launcher's sampler of thread states takes of one core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stepscope.capture.threads import ThreadSampler

HERE = Path(__file__).parent
HOOK = HERE.parent / "src" / "stepscope" / "capture" / "hook" / "sampling.py"
ROUNDS = 4
WORK = """
import importlib.util, sys, threading, time
threads, hertz, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if hertz:
    spec = importlib.util.spec_from_file_location("sampling", {hook!r})
    module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
    module.Sampler(folder, hertz).start()
end = threading.Event()
for _ in range(threads): threading.Thread(target=end.wait, daemon=True).start()
def deep(n): return deep(n - 1) if n else sum(i * i for i in range(300))
begin, cpu = time.monotonic(), time.process_time()
for _ in range(60_000): deep(25)
print(time.process_time() - cpu, time.monotonic() - begin)
"""


def main() -> None:
    """Print the table."""
    threads = sys.argv[1] if len(sys.argv) > 1 else "100"
    spy = shutil.which("py-spy") or os.environ.get("PY_SPY")
    cases: dict[str, tuple[float, float, list[str]]] = {
        "alone": (0, 0, []),
        "thread states at 20 Hz": (0, 20, []),
        "thread states at 100 Hz": (0, 100, []),
        "Python stacks at 50 Hz": (50, 0, []),
        "Python stacks at 100 Hz": (100, 0, []),
    }
    if spy:
        record = [spy, "record", "-r", "100", "-f", "raw", "-o"]
        cases["py-spy at 100 Hz"] = (0, 0, record)
        cases["py-spy at 100 Hz, --nonblocking"] = (
            0,
            0,
            [*record[:1], *record[1:-1], "--nonblocking", "-o"],
        )
    best: dict[str, list[float]] = {name: [1e9, 1e9, 0.0, 0.0] for name in cases}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(ROUNDS):
            for case, (stacks, states, spying) in cases.items():
                work = [sys.executable, "-c", WORK.format(hook=str(HOOK))]
                command = [*work, threads, str(stacks), str(folder)]
                if spying:
                    command = [*spying, str(folder / "spy.txt"), "--", *command]
                begin = time.monotonic()
                child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                sampler = ThreadSampler(folder / "t.tsv", states) if states else None
                if sampler:
                    sampler.start(child.pid)
                text = child.communicate()[0].decode()
                took = time.monotonic() - begin
                figures = best[case]
                if sampler:
                    sampler.stop()
                    figures[2] = max(figures[2], sampler.cpu_s / took)
                    figures[3] = (folder / "t.tsv").stat().st_size / took
                numbers = [line.split() for line in text.splitlines() if line[:1].isdigit()]
                if numbers:
                    figures[0] = min(figures[0], float(numbers[0][0]))
                    figures[1] = min(figures[1], float(numbers[0][1]))
    alone = best["alone"][0]
    print(f"{threads} idle threads              CPU, s     more   launcher, of a core   file, kB/s")
    for case, (cpu, _, share, rate) in best.items():
        more = f"{100 * (cpu / alone - 1):+.1f} %"
        print(f"{case:33} {cpu:6.2f} {more:>8} {100 * share:15.2f} % {rate / 1e3:12.1f}")


if __name__ == "__main__":
    main()
