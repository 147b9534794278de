"""Colours of what is drawn without the browser's page: those of its ``colours.ts``.

Hues are those of Okabe and Ito and of Paul Tol's muted scheme, which people with the common kinds
of colour blindness can tell apart. Causes of idle time share hues with kinds of work, so idle time
is hatched wherever both are shown.
"""

from __future__ import annotations

from typing import Final

KINDS: Final = {
    "compute": "#0072b2",
    "communication": "#cc79a7",
    "copy": "#117733",
    "memset": "#b0b4bb",
}
"""Kind of work -> colour; the position is the kind's number in a profile's timeline."""

CAUSES: Final = {
    "input_starvation": "#d55e00",
    "host_sync": "#cc79a7",
    "host_compute": "#e69f00",
    "launch_bound": "#f0e442",
    "blocking_copy": "#0072b2",
    "allocator_churn": "#56b4e9",
    "compilation_or_warmup": "#882255",
    "checkpoint_stall": "#6f63b5",
    "cpu_offload": "#8a5fa8",
    "gil_contention": "#aa4499",
    "profiler_overhead": "#999933",
    "small_kernels": "#9aa0a8",
    "unexplained": "#5d626a",
}
"""Cause of idle time -> colour."""
