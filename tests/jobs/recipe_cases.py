"""Recipes that the real tool has answered too: on which captures, and with which options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.captures import DATA, unpack

CAPTURES = {
    "imbalance": [DATA.parent / "ranks" / f"ddp_imbalance.rank{i}.sqlite.xz" for i in (0, 1)],
    "pageable": [DATA / "nsys" / "gpt_pageable.sqlite.xz"],
}


@dataclass(frozen=True)
class Case:
    """One recipe on some captures.

    Attributes:
        recipe: its name.
        captures: key of ``CAPTURES``.
        settings: our options; the real tool has the same ones.
    """

    recipe: str
    captures: str = "imbalance"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return "+".join([self.recipe, self.captures, *self.settings])

    @property
    def real_options(self) -> list[str]:
        words = []
        for name, value in self.settings.items():
            words += [f"--{name}"] if value == "true" else [f"--{name}", value]
        return words


def captures_of(case: Case) -> list[Path]:
    return [unpack(path) for path in CAPTURES[case.captures]]


CASES = [
    Case("cuda_api_sum"),
    Case("cuda_gpu_kern_sum"),
    Case("cuda_gpu_kern_sum", settings={"base": "true"}),
    Case("cuda_gpu_mem_size_sum"),
    Case("cuda_gpu_mem_time_sum"),
    Case("nvtx_sum"),
    Case("nccl_sum"),
    Case("nvtx_gpu_proj_sum"),
    Case("nccl_gpu_proj_sum"),
    Case("nvtx_gpu_proj_trace"),
    Case("nvtx_pace", settings={"name": "forward"}),
    Case("nvtx_gpu_proj_pace", settings={"name": "forward"}),
    Case("cuda_gpu_kern_pace", settings={"name": "vectorized_elementwise_kernel"}),
    Case("cuda_gpu_time_util_map"),
    Case("cuda_gpu_time_util_map", settings={"bins": "7", "cumulative": "true"}),
    Case("nccl_gpu_time_util_map"),
    Case("cuda_api_sync"),
    Case("cuda_memcpy_async", "pageable"),
    Case("cuda_memcpy_sync", "pageable"),
    Case("gpu_gaps", settings={"gap": "0", "rows": "20"}),
    Case("gpu_time_util", settings={"threshold": "95"}),
]
