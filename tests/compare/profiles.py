"""Hand-made profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.compare.profile import FindingUse, KernelUse, Profile


def kernel(
    label: str,
    ns: float = 1000.0,
    *,
    calls: float = 1.0,
    category: str = "matmul",
    grid: int = 1,
    name: str = "",
    error: float = 0.0,
) -> KernelUse:
    return KernelUse(
        name or label, label, category, (grid, 1, 1), (128, 1, 1), calls, ns, error, "", ""
    )


def finding(cause: str, ns: int, predicted: int, low: int, high: int) -> FindingUse:
    return FindingUse(cause, ns, 0.5, predicted, low, high, [0], f"{cause} costs")


def profile(
    steps: Sequence[int] = (1_000_000,) * 8,
    *,
    parts: dict[str, Sequence[int]] | None = None,
    kernels: Sequence[KernelUse] = (),
    sequence: Sequence[int] = (),
    devices: int = 1,
    setup: dict[str, str] | None = None,
    figures: dict[str, float] | None = None,
    **more: Any,
) -> Profile:
    values: dict[str, Any] = {
        "paths": ["a.sqlite"],
        "ranks": 1,
        "devices": devices,
        "steps": len(steps),
        "wall_ns": list(steps),
        "parts_ns": {k: list(v) for k, v in (parts or {"compute": steps}).items()},
        "kernels": list(kernels),
        "sequence": list(sequence),
        "ranges": [],
        "operators": [],
        "collectives": [],
        "findings": [],
        "verdict": "gpu_bound_healthy",
        "setup": {"source": "nsys"} | (setup or {}),
        "figures": figures or {},
        "timeline": [],
        "marks": [],
    }
    return Profile(**(values | more))
