"""Make the bundled answers of the real tool: ``python -m tests.reports.make_oracle PATH_TO_NSYS``.

They come from nsys 2023.4; every file is one report or rule, named as in the shared captures
(``+`` stands for ``:`` in arguments, ``rule.`` precedes a rule). An absent file is an empty answer.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support import nsys_libraries
from tests.support.nsys_export import build

HERE = Path(__file__).parent
ORACLE = HERE.parent / "data" / "oracle"
BUNDLED = HERE.parents[1] / "src" / "stepscope" / "data" / "h200_input_starvation.sqlite.xz"
KERNELS = ("cuda_gpu_kern_sum", "cuda_gpu_kern_gb_sum", "cuda_gpu_sum", "cuda_api_gpu_sum")
SUMMARIES = [
    *("cuda_api_sum", "cuda_gpu_mem_size_sum", "cuda_gpu_mem_time_sum", "cuda_kern_exec_sum"),
    *(f"{name}{form}" for name in KERNELS for form in ("", ":base", ":mangled", ":nvtx-name")),
    *("nvtx_sum", "nvtx_pushpop_sum", "nvtx_startend_sum", "nvtx_gpu_proj_sum"),
    *("nvtx_gpu_proj_trace", "nvtx_kern_sum", "nvtx_kern_sum:base", "nvtx_pushpop_trace"),
]
TRACES = [
    *("cuda_api_trace", "cuda_gpu_trace", "cuda_gpu_trace:nvtx-name:base"),
    *("cuda_kern_exec_trace", "cuda_kern_exec_trace:base"),
]
OTHERS = [
    *("osrt_sum", "um_sum", "um_sum:rows=3", "um_total_sum", "um_cpu_page_faults_sum"),
    *("mpi_event_trace", "openacc_sum", "openmp_sum", "network_congestion"),
    "network_congestion:ticks_threshold=900",
]
RULES = [
    *("cuda_api_sync", "cuda_memcpy_async", "cuda_memcpy_sync", "cuda_memset_sync"),
    *("gpu_gaps", "gpu_gaps:gap=0", "gpu_gaps:gap=1", "gpu_gaps:gap=0:rows=5", "gpu_time_util"),
    *("gpu_time_util:threshold=90", "gpu_time_util:chunks=100:rows=3:threshold=80"),
]
# on the made-up trace, the tool joins copies and calls of different processes, and ties of its
# unsorted tables are in no order
RULES_OF_ONE_PROCESS = {
    "cuda_api_sync",
    "cuda_memcpy_async",
    "cuda_memcpy_sync",
    "cuda_memset_sync",
}


def ask(nsys: str, database: Path, command: str, name: str) -> bytes:
    done = subprocess.run(
        [nsys, command, "-q", "-r", name, "-f", "csv", str(database)],
        capture_output=True,
        check=True,
    )
    return done.stdout.rstrip(b"\n") + b"\n" if done.stdout.strip() else b""


def pack(nsys: str, database: Path, name: str, reports: list[str], rules: list[str]) -> None:
    target = ORACLE / f"{name}.tar.xz"
    with lzma.open(target, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        wanted = [("stats", "", r) for r in reports] + [("analyze", "rule.", r) for r in rules]
        for command, prefix, report in wanted:
            if content := ask(nsys, database, command, report):
                entry = tarfile.TarInfo(f"{name}/{prefix}{report.replace(':', '+')}.csv")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    print(target.name, target.stat().st_size)


def borrow(nsys: str, folder: Path) -> None:
    """What the real tool's osrt_sum makes of the rows of reports that it does not have."""
    made = folder / "libraries.sqlite"
    nsys_libraries.build(made)
    target = ORACLE / "libraries.tar.xz"
    with lzma.open(target, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for report in nsys_libraries.INTERVALS:
            rewritten = folder / f"{report}.sqlite"
            nsys_libraries.as_os_runtime(made, report, rewritten)
            content = ask(nsys, rewritten, "stats", "osrt_sum")
            entry = tarfile.TarInfo(f"libraries/{report}.csv")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    (ORACLE / "libraries.sqlite.xz").write_bytes(lzma.compress(made.read_bytes(), preset=9))
    print(target.name, target.stat().st_size)


def main() -> None:
    nsys = sys.argv[1]
    ORACLE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        borrow(nsys, Path(folder))
        made = Path(folder) / "made_up.sqlite"
        build(made)
        (ORACLE / "made_up.sqlite.xz").write_bytes(lzma.compress(made.read_bytes(), preset=9))
        every = [*SUMMARIES, *TRACES, *OTHERS]
        rules = [name for name in RULES if name not in RULES_OF_ONE_PROCESS]
        pack(nsys, made, "made_up", every, rules)
        real = Path(folder) / "input_starvation.sqlite"
        real.write_bytes(lzma.decompress(BUNDLED.read_bytes()))
        pack(nsys, real, "input_starvation", SUMMARIES, RULES)


if __name__ == "__main__":
    main()
