"""Stepscope: why is my training step slow, and what happens if I fix it?"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stepscope.annotate import (
        huggingface_callback,
        kernel_count,
        lightning_callback,
        profile,
        range,
        schedule,
        step,
        step_time,
    )

_ANNOTATE = {
    *("huggingface_callback", "lightning_callback", "profile", "range", "schedule", "step"),
    *("step_time", "kernel_count"),
}
"""What a training script uses as ``stepscope.NAME``; loaded on first use."""

__all__ = [
    "__version__",
    "huggingface_callback",
    "kernel_count",
    "lightning_callback",
    "profile",
    "range",
    "schedule",
    "step",
    "step_time",
]


def __getattr__(name: str) -> Any:
    if name in _ANNOTATE:
        from stepscope import annotate

        found = globals()[name] = getattr(annotate, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
