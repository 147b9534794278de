"""The reports that ship: one file each under ``catalog``."""

from __future__ import annotations

from functools import cache

from stepscope.tabular.report import Report, registered

DEFAULT = (
    *("nvtx_sum", "osrt_sum", "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum"),
    *("cuda_gpu_mem_size_sum", "openmp_sum", "um_sum", "um_total_sum", "um_cpu_page_faults_sum"),
    "openacc_sum",
)
"""What is shown when nothing is asked for: the default set of Nsight Systems without graphics."""


@cache
def reports() -> dict[str, Report]:
    """Every report that ships, by name: each module of ``catalog`` registers some."""
    import stepscope.reports.catalog as package

    return registered(package, "REPORTS")
