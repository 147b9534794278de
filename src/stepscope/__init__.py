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
    from stepscope.api import Job, open

_ANNOTATE = {
    *("huggingface_callback", "lightning_callback", "profile", "range", "schedule", "step"),
    *("step_time", "kernel_count"),
}
"""What a training script uses as ``stepscope.NAME``; loaded on first use."""
_API = {"Job", "open"}
"""What a script or a notebook that looks at captures uses; loaded on first use, too."""

__all__ = [
    "Job",
    "__version__",
    "huggingface_callback",
    "kernel_count",
    "lightning_callback",
    "open",
    "profile",
    "range",
    "schedule",
    "step",
    "step_time",
]


def __getattr__(name: str) -> Any:
    if name == "annotate":  # as in stepscope.annotate.end_steps(), before anything has loaded it
        from importlib import import_module

        return import_module("stepscope.annotate")
    if name in _ANNOTATE:
        from stepscope import annotate as room
    elif name in _API:
        from stepscope import api as room  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(room, name)
    return found
