"""Waits that a framework makes on its own behalf: said whose they are, held against nobody."""

from __future__ import annotations

from typing import Final

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS, idle_time_sql
from stepscope.diagnosis.warned import Warned

_MOSTLY: Final = 0.8
"""Share of the waiting from which on the rest is not worth a finding."""

_WORTH_A_WARNING: Final = 0.02
"""Idle time from which on these waits are spoken of, as a share of the step."""


def mostly_of_ddp(case: Case) -> bool:
    """Whether nearly all waiting in synchronisations is that of DDP's logger."""
    waiting = case.explanation.waiting
    total = int(waiting.waited_ns.sum())
    return bool(total) and int(waiting.waited_ns[waiting.of_ddp].sum()) >= _MOSTLY * total


def own_wait_warning(case: Case) -> Warned | None:
    """Whose waits these are; None where they are not worth it."""
    idle = case.idle_ns("host_sync")
    if idle < _WORTH_A_WARNING * case.step_ns or not mostly_of_ddp(case):
        return None
    return Warned(
        "the GPU idles {own_wait_idle_ns_per_step} per step after {event_waits_per_step} waits for "
        "events that DistributedDataParallel makes itself at the beginning of forward: its logger "
        "times the first ten iterations, and then one of every hundred; this passes, and is no "
        "fault of the program",
        [
            Figure("own_wait_idle_ns_per_step", "ns_per_step", idle_time_sql("host_sync")),
            Figure(
                "event_waits_per_step",
                "per_step",
                f"SELECT count(*) / {STEADY_STEPS} FROM api_call WHERE regexp_matches(name, "
                "'^(cuda|hip|cu)EventSynchronize') AND {process} AND {window}",
            ),
        ],
    )
