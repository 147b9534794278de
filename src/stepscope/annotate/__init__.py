"""What a training script may import to say what it does: steps, ranges, when to record, step times.

Standard library only. Nothing here needs a GPU, torch or a recorder: where nobody listens, calls do
next to nothing, so they can stay in the script.
"""

from stepscope.annotate.callbacks import huggingface_callback, lightning_callback
from stepscope.annotate.ranges import end_steps, range, step
from stepscope.annotate.recording import profile, schedule
from stepscope.annotate.timing import KernelCount, StepTimes, kernel_count, step_time

__all__ = [
    "KernelCount",
    "StepTimes",
    "end_steps",
    "huggingface_callback",
    "kernel_count",
    "lightning_callback",
    "profile",
    "range",
    "schedule",
    "step",
    "step_time",
]
