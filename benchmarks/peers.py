"""The same tables of one trace by Stepscope, by Holistic Trace Analysis and by TraceLens.

    python benchmarks/peers.py TRACE.json.gz [--hta PYTHON] [--tracelens PYTHON] [--repeat 2]

Each contender runs in a process of its own, from the file to the tables, and the best of the
repetitions counts: wall seconds, peak memory (resident), and the ratio to Stepscope. Stepscope
starts with an empty cache, so that the import counts; what it takes with the import in the cache
stands beside it. ``--hta`` names a Python that has ``HolisticTraceAnalysis`` (with ``pandas<3``),
``--tracelens`` one that has TraceLens; without them, they are left out.

Of HTA the analyses run that both have: temporal and kernel breakdown, idle time, launch statistics,
queue lengths, copy bandwidths, overlap. Of TraceLens its report runs, which has other tables of the
same kind (operators, kernels, GPU time); Stepscope is given kernels by operator, kernels, GPU time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPORTS = (
    *("gpu_temporal_breakdown", "gpu_kernel_type_breakdown", "gpu_kernel_breakdown"),
    *("gpu_idle_breakdown", "gpu_launch_stats", "gpu_queue_length_sum"),
    *("gpu_memory_bandwidth_sum", "comm_compute_overlap"),
)
# with its rounding to microseconds, HTA fails an assertion of its own on some traces
HTA = """
import os, sys, warnings, logging
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
t = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
t.get_temporal_breakdown(visualize=False)
t.get_gpu_kernel_breakdown(visualize=False)
t.get_idle_time_breakdown(visualize=False, show_idle_interval_stats=True)
t.get_cuda_kernel_launch_stats(visualize=False)
t.get_queue_length_summary()
t.get_memory_bw_summary()
t.get_comm_comp_overlap(visualize=False)
"""


def measured(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall seconds and peak memory in MB of a process."""
    began = time.perf_counter()
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert child.stderr is not None
    stated = child.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[0]} failed:\n{stated[-2000:]}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--hta", metavar="PYTHON")
    parser.add_argument("--tracelens", metavar="PYTHON")
    parser.add_argument("--repeat", type=int, default=2)
    asked = parser.parse_args()
    trace = str(asked.trace.resolve())
    stats = ["-m", "stepscope", "stats", "-q", "-f", "csv", "-r", ",".join(REPORTS), trace]
    names = "gpu_operator_kernels:rows=-1,cuda_gpu_kern_sum,gpu_temporal_breakdown"
    operators = ["-m", "stepscope", "stats", "-q", "-f", "csv", "-r", names, trace]
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def best(label: str, command: list[str], *, fresh: bool = False) -> None:
            runs = []
            for turn in range(asked.repeat):
                cache = folder / (f"{label}{turn}" if fresh else "warm")
                runs.append(measured(command, os.environ | {"STEPSCOPE_CACHE_DIR": str(cache)}))
            found[label] = min(run[0] for run in runs), min(run[1] for run in runs)

        best("Stepscope, tables of HTA", [sys.executable, *stats], fresh=True)
        measured(
            [sys.executable, *stats], os.environ | {"STEPSCOPE_CACHE_DIR": str(folder / "warm")}
        )
        best("  again, import in the cache", [sys.executable, *stats])
        if asked.hta:
            best("Holistic Trace Analysis", [asked.hta, "-c", HTA, trace])
        best("Stepscope, operators", [sys.executable, *operators], fresh=True)
        if asked.tracelens:
            module = "TraceLens.Reporting.generate_perf_report_pytorch"
            best("TraceLens", [asked.tracelens, "-m", module, "--profile_json_path", trace,
                               "--output_csvs_dir", str(folder / "tracelens")])  # fmt: skip
    print(f"{asked.trace.name}, {asked.trace.stat().st_size / 1e6:.1f} MB\n")
    print(f"{'':30} {'s':>8} {'MB':>8} {'time':>8} {'memory':>8}")
    against = None
    for label, (seconds, memory) in found.items():
        if label.startswith("Stepscope"):
            against = seconds, memory
        ratio = ""
        if against is not None and not label.startswith(("Stepscope", " ")):
            ratio = f"{seconds / against[0]:7.1f}x {memory / against[1]:7.1f}x"
        print(f"{label:30} {seconds:8.2f} {memory:8.0f} {ratio}")


if __name__ == "__main__":
    main()
