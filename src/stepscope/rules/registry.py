"""The rules that ship: one file each under ``catalog``."""

from __future__ import annotations

from functools import cache

from stepscope.tabular.report import Report, registered

DEFAULT = (
    *("cuda_api_sync", "cuda_memcpy_async", "cuda_memcpy_sync", "cuda_memset_sync"),
    *("gpu_gaps", "gpu_time_util"),
)
"""What is checked when nothing is asked for: the rules of Nsight Systems."""


@cache
def rules() -> dict[str, Report]:
    """Every rule by name: each module of ``catalog`` registers some."""
    import stepscope.rules.catalog as package

    return registered(package, "RULES")
