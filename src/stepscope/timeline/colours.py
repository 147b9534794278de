"""The colours of all views, each with one meaning: timeline, steps, comparison, drawn reports.

Work of a GPU is cool (blue, green, purple), what waits and what holds it up is warm. A host call
has the colour of the idle time that it causes: synchronisation is one red, as a call and as a gap.
Where idle time stands in one row with work, it is hatched besides. Colours of one row can be told
apart with the common kinds of colour blindness, and all stand out from a light and a dark page;
``tests/timeline/test_colours.py`` measures both. Names of classes, labels and tips always say the
class in words, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stepscope.timeline.answers import Classes, DrawnClass, LegendEntry
from stepscope.timeline.classes import CLASSES, HUES


@dataclass(frozen=True)
class Colour:
    """One colour and what it means.

    Attributes:
        css: the colour, ``#rrggbb``.
        message: what it means, in words.
        section: heading under which the legend lists it.
    """

    css: str
    message: str
    section: str


WORK, KERNELS, COPIES = "What the GPU does", "Kernels by category", "Copies by direction"
WAITING, STEPS, HOST = "What it waits for, and calls that cause it", "Steps and phases", "Threads"
MARKS = "Marks"
MEMORY = "Memory by what holds it"

COLOURS: Final[dict[str, Colour]] = {
    "compute": Colour("#0072b2", "compute kernels", WORK),
    "communication": Colour("#cc79a7", "communication between GPUs", WORK),
    "copy": Colour("#117733", "copies", WORK),
    "memset": Colour("#0e49ae", "memory sets", WORK),
    "matmul": Colour("#008afc", "GEMMs", KERNELS),
    "attention": Colour("#cecfff", "fused attention", KERNELS),
    "convolution": Colour("#00486c", "convolutions", KERNELS),
    "elementwise": Colour("#00f09c", "element by element", KERNELS),
    "copying": Colour("#4c6cff", "copies and casts by kernels", KERNELS),
    "reduction": Colour("#ad008b", "reductions", KERNELS),
    "softmax": Colour("#2ed5ae", "softmax", KERNELS),
    "normalisation": Colour("#00b0bc", "normalisation", KERNELS),
    "index": Colour("#2a3e00", "indexing and embedding", KERNELS),
    "dropout": Colour("#a270d5", "dropout", KERNELS),
    "optimizer": Colour("#123e33", "optimizer", KERNELS),
    "sort": Colour("#597200", "sorting and scans", KERNELS),
    "random": Colour("#ff84ff", "random numbers", KERNELS),
    "loss": Colour("#00bdff", "loss functions", KERNELS),
    "recurrent": Colour("#2e19a1", "recurrent cells", KERNELS),
    "pooling": Colour("#76cb70", "pooling and resampling", KERNELS),
    "compiled": Colour("#72495f", "merged by a compiler", KERNELS),
    "graph": Colour("#6c0056", "whole CUDA graphs", KERNELS),
    "other": Colour("#85898f", "other kernels and calls", KERNELS),
    "htod": Colour("#c5dc6f", "host to device", COPIES),
    "dtoh": Colour("#6c8c63", "device to host", COPIES),
    "dtod": Colour("#10a303", "inside a device", COPIES),
    "ptop": Colour("#97cb00", "between devices", COPIES),
    "input": Colour("#d55e00", "input starvation", WAITING),
    "sync": Colour("#9b2226", "synchronisation: host sync", WAITING),
    "host": Colour("#ffae52", "host compute", WAITING),
    "launch": Colour("#d9b400", "launching: launch bound", WAITING),
    "copy_call": Colour("#f60051", "copy calls: blocking copy", WAITING),
    "allocation": Colour("#d3db13", "allocation: allocator churn", WAITING),
    "module": Colour("#ef927a", "module loading: compilation or warmup", WAITING),
    "checkpoint": Colour("#bb0060", "checkpoint stall", WAITING),
    "offload": Colour("#8a4300", "CPU offload", WAITING),
    "lock": Colour("#473500", "waiting for Python's lock: GIL contention", WAITING),
    "overhead": Colour("#edcf8b", "the profiler: profiler overhead", WAITING),
    "small": Colour("#9c9187", "small kernels", WAITING),
    "unexplained": Colour("#5d626a", "unexplained", WAITING),
    "straggler": Colour("#ffb7d5", "straggler", WAITING),
    "imbalance": Colour("#ff614a", "load imbalance", WAITING),
    "bubble": Colour("#661b34", "pipeline bubble", WAITING),
    "jitter": Colour("#ff6bb6", "step jitter", WAITING),
    "steady": Colour("#6f93b3", "step that counts", STEPS),
    "aside": Colour("#969ba1", "step set aside", STEPS),
    "forward": Colour("#63007c", "forward pass", STEPS),
    "backward": Colour("#02e8ff", "backward pass", STEPS),
    "phase_none": Colour("#b7bf9a", "of no known phase", STEPS),
    "os_wait": Colour("#997700", "waits in the operating system", HOST),
    "lock_holding": Colour("#ffadff", "holds Python's lock", HOST),
    "running": Colour("#b05ff3", "runs on a CPU", HOST),
    "runnable": Colour("#aa1800", "wants a CPU and has none", HOST),
    "sleeping": Colour("#c3c8cf", "sleeps", HOST),
    "disk": Colour("#ff9700", "sleeps uninterruptibly, mostly for a disk", HOST),
    "stopped": Colour("#4b4f55", "is stopped", HOST),
    "mark": Colour("#e8112d", "what a finding points at; outlier steps", MARKS),
    "range": Colour("#5b6b80", "the chosen range", MARKS),
    "found": Colour("#ffe100", "what was searched, or chosen in a table", MARKS),
    "note": Colour("#e6009e", "notes", MARKS),
    "median": Colour("#00a86b", "the median step", MARKS),
    "counter": Colour("#8fa1b5", "counters", MARKS),
    "held_parameter": Colour("#458463", "parameters", MEMORY),
    "held_optimizer_state": Colour("#ecbb2c", "optimizer state", MEMORY),
    "held_input": Colour("#7db36f", "inputs", MEMORY),
    "held_temporary": Colour("#a194d6", "temporaries", MEMORY),
    "held_activation": Colour("#d5735a", "activations", MEMORY),
    "held_gradient": Colour("#5168dd", "gradients", MEMORY),
    "held_autograd_detail": Colour("#6ea5ff", "autograd detail", MEMORY),
    "held_unknown": Colour("#cfaebc", "memory of unknown use", MEMORY),
}
"""Meaning -> colour."""

NAMED: Final = (
    "#7fa8c9", "#c9a27f", "#8fbf9f", "#c08fb5", "#b5b56a", "#7fbfc4", "#b59acb", "#cf9a9a",
)  # fmt: skip
"""Pale colours that mean nothing but a name: ranges, operators, functions."""
assert len(NAMED) == HUES

_OF_CLASS: Final = {
    "kernel_copy": "copying",
    "copy_other": "copy",
    "idle_input_starvation": "input",
    "idle_host_sync": "sync",
    "idle_host_compute": "host",
    "idle_launch_bound": "launch",
    "idle_blocking_copy": "copy_call",
    "idle_allocator_churn": "allocation",
    "idle_compilation_or_warmup": "module",
    "idle_checkpoint_stall": "checkpoint",
    "idle_cpu_offload": "offload",
    "idle_gil_contention": "lock",
    "idle_profiler_overhead": "overhead",
    "idle_small_kernels": "small",
    "api_copy": "copy_call",
    "lock_waiting": "lock",
    "lock_holding": "lock_holding",
    "os_wait": "os_wait",
    "os_other": "other",
    "phase_none": "phase_none",
    "step_steady": "steady",
    "step_aside": "aside",
}
_PREFIXES: Final = ("kernel_", "copy_", "busy_", "idle_", "api_", "phase_", "state_")

OF_CAUSE: Final = {
    "straggler": "straggler",
    "load_imbalance": "imbalance",
    "pipeline_bubble": "bubble",
    "step_jitter": "jitter",
    "exposed_communication": "communication",
    "unfused_attention": "attention",
    "unfused_optimizer": "optimizer",
    "low_precision_unused": "matmul",
    "fusion_opportunity": "elementwise",
    "memory_bound_kernels": "compute",
    "inefficient_kernel": "compute",
    "gpu_bound_healthy": "compute",
    "gpu_throttled": "compute",
}
"""Causes that no idle time is charged to: they have the colour of what they are about."""


def meaning(key: str) -> str:
    """The meaning of a class, a key of :data:`COLOURS`; empty for what is coloured by name."""
    if key in _OF_CLASS:
        return _OF_CLASS[key]
    for prefix in _PREFIXES:
        if key.startswith(prefix) and key.removeprefix(prefix) in COLOURS:
            return key.removeprefix(prefix)
    return key if key in COLOURS else ""


def colour_of(key: str) -> str:
    """The colour of a class."""
    if key.startswith("name_"):
        return NAMED[int(key.removeprefix("name_")) % HUES]
    return COLOURS[meaning(key)].css


IDLE: Final = {
    key.removeprefix("idle_"): colour_of(key) for key in CLASSES if key.startswith("idle_")
}
"""Cause of idle time -> colour."""


def drawn_classes() -> list[DrawnClass]:
    """Classes as the page wants them: key, words, meaning and colour; the position is the code."""
    return [
        {"key": key, "message": message, "meaning": meaning(key), "colour": colour_of(key)}
        for key, message in CLASSES.items()
    ]


def legend() -> list[LegendEntry]:
    """All meanings in the order of the legend, and the causes that share one."""
    return [
        {"key": key, "colour": c.css, "message": c.message, "section": c.section}
        for key, c in COLOURS.items()
    ]


def classes() -> Classes:
    """Classes of what is drawn, and what colours mean, as the page wants them."""
    causes = {cause: COLOURS[key].css for cause, key in OF_CAUSE.items()}
    return {"classes": drawn_classes(), "legend": legend(), "causes": causes}
