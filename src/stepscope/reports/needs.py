"""What a capture must hold for a report, and which option provides it where it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.reports.source import Source


@dataclass(frozen=True)
class Need:
    """Something a report cannot do without.

    Attributes:
        what: the data, as in "holds no ...".
        table: canonical table, or ``osrt``, as in the trace's list of what is absent.
        flag: the capture option that provides it, where the trace does not say.
        held: what follows FROM in the statement whose rows show that a trace holds it.
    """

    what: str
    table: str
    flag: str
    held: str


def missing(needs: Sequence[Need], source: Source) -> str:
    """The sentence about the first need that a trace does not meet; empty when it meets all."""
    trace = source.trace
    for need in needs:
        if not source.holds(need.held):
            flags = {unavailable.table: unavailable.flag for unavailable in trace.meta.missing}
            flag = flags.get(need.table) if trace.meta.source == "nsys" else None
            if flag is None:
                flag = need.flag
            if need.table == "gpu_op" and source.holds("gpu_op WHERE kind = 'graph'"):
                flag = _INSIDE_GRAPHS
            return f"{trace.path.name} holds no {need.what}; to have it, capture with {flag}"
    return ""


_INSIDE_GRAPHS = "nsys profile --cuda-graph-trace=node: its CUDA graphs were recorded as a whole"
_CUDA = "nsys profile -t cuda (torch.profiler: ProfilerActivity.CUDA)"
_NVTX = "nsys profile -t nvtx and nvtx.range in the program (torch.profiler: record_function)"
_UM = "nsys profile --cuda-um-{}-page-faults=true"

KERNELS = Need("kernels", "gpu_op", _CUDA, "gpu_op WHERE kind = 'kernel'")
GPU_WORK = Need("GPU work", "gpu_op", _CUDA, "gpu_op WHERE kind IN ('kernel', 'memcpy', 'memset')")
MEMORY_OPS = Need(
    "memory copies or fills", "gpu_op", _CUDA, "gpu_op WHERE kind IN ('memcpy', 'memset')"
)
COPIES = Need("memory copies", "gpu_op", _CUDA, "gpu_op WHERE kind = 'memcpy'")
MEMSETS = Need("memory fills", "gpu_op", _CUDA, "gpu_op WHERE kind = 'memset'")
CUDA_CALLS = Need(
    "CUDA API calls", "api_call", _CUDA, "api_call WHERE api IN ('runtime', 'driver')"
)
RANGES = Need(
    "NVTX ranges", "range", _NVTX, "range WHERE kind IN ('pushpop', 'startend', 'annotation')"
)


def _calls(what: str, api: str) -> Need:
    return Need(what, api, f"nsys profile -t {api}", f"api_call WHERE api = '{api}'")


OSRT = _calls("calls of the OS runtime", "osrt")
SYSCALLS = _calls("system calls", "syscall")
CUBLAS = _calls("cuBLAS calls", "cublas")
CUDNN = _calls("cuDNN calls", "cudnn")


def _events(what: str, model: str) -> Need:
    table = f"{model}_event"
    return Need(what, table, f"nsys profile -t {model}", table)


MPI = _events("MPI events", "mpi")
OPENACC = _events("OpenACC events", "openacc")
OPENMP = _events("OpenMP events", "openmp")
NETWORK = Need(
    "NIC or InfiniBand switch counters",
    "network_sample",
    "nsys profile --nic-metrics=true or --ib-switch-metrics-device=...",
    "network_sample",
)
CPU_FAULTS = Need(
    "CPU page faults of unified memory",
    "cpu_page_fault",
    _UM.format("cpu"),
    "page_fault WHERE kind = 'cpu'",
)
GPU_FAULTS = Need(
    "GPU page faults of unified memory",
    "gpu_page_fault",
    _UM.format("gpu"),
    "page_fault WHERE kind = 'gpu'",
)
