"""The reports and rules that ship: one file each under ``catalog`` and ``rules``."""

from __future__ import annotations

from functools import cache

from stepscope.reports.report import Report, registered

DEFAULT = (
    *("nvtx_sum", "osrt_sum", "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum"),
    *("cuda_gpu_mem_size_sum", "openmp_sum", "um_sum", "um_total_sum", "um_cpu_page_faults_sum"),
    "openacc_sum",
)
"""What is shown when nothing is asked for: the default set of Nsight Systems without graphics."""

DEFAULT_RULES = (
    *("cuda_api_sync", "cuda_memcpy_async", "cuda_memcpy_sync", "cuda_memset_sync"),
    *("gpu_gaps", "gpu_time_util"),
)
"""What is checked when nothing is asked for: the rules of Nsight Systems."""


@cache
def reports() -> dict[str, Report]:
    """Every report by name: each module of ``catalog`` registers some."""
    import stepscope.reports.catalog as package

    return registered(package, "REPORTS")


@cache
def rules() -> dict[str, Report]:
    """Every rule by name: each module of ``rules`` registers some."""
    import stepscope.reports.rules as package

    return registered(package, "RULES")
