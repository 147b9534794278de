"""The rules that ship: one file each under ``catalog``."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from stepscope.analysis.tabular.report import Report

DEFAULT = (
    *("cuda_api_sync", "cuda_memcpy_async", "cuda_memcpy_sync", "cuda_memset_sync"),
    *("gpu_gaps", "gpu_time_util"),
)
"""What is checked when nothing is asked for: the rules of Nsight Systems."""


@cache
def rules() -> dict[str, Report]:
    """Every rule by name: each module of ``catalog`` registers some."""
    import stepscope.rules.catalog as package

    found: dict[str, Report] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for rule in importlib.import_module(f"{package.__name__}.{module.name}").RULES:
            found[rule.name] = rule
    return dict(sorted(found.items()))
