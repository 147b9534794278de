"""Other Python threads hold the lock of the interpreter that the training thread wants."""

from __future__ import annotations

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.gaps.gil import GIL_EVIDENCE, MIN_ON_INTERVAL, PATTERN, SWITCH_NS

_ID = "gil_contention"
_OF_WAITS = f"FROM host_event WHERE cause = '{_ID}' AND {{gpu}}"


def detect(case: Case) -> Detection | None:
    """Idle time while a launching thread waits for the lock."""
    gil = case.explanation.gil
    time = case.idle_ns(_ID)
    if gil.evidence < 0 or not time:
        return None
    thin = gil.evidence == PATTERN
    message = "the thread that launches waits {waits} times for the GIL in this capture; "
    message += GIL_EVIDENCE[gil.evidence]
    if thin and gil.on_interval >= MIN_ON_INTERVAL:
        message += " ({on_interval} of them end on a multiple of it)"
    return Detection(
        time_ns=time,
        direct_ns=case.direct_ns(_ID),
        uncertain_ns=case.idle_ns("launch_bound") + case.idle_ns("host_compute"),
        message=message,
        recommendations=[
            "move Python threads that compute (data preparation, metrics, logging, monitoring) to "
            "other processes: DataLoader(num_workers=...), multiprocessing",
            "let such threads sleep or block on a queue or an event instead of polling in a loop",
            "use functions that release the lock while they compute (NumPy, torch, zlib) in larger "
            "pieces",
            "launch less often from Python: CUDA graphs, torch.compile",
        ],
        figures=[
            idle_figure(_ID),
            Figure("waits", "count", f"SELECT count(*) {_OF_WAITS}"),
            Figure("median_wait_ns", "ns", f"SELECT median(end_ns - start_ns)::BIGINT {_OF_WAITS}"),
            Figure(
                "on_interval",
                "share",
                f"SELECT avg((((end_ns - start_ns) + {SWITCH_NS // 33}) % {SWITCH_NS} "
                f"< {SWITCH_NS * 13 // 100})::INT) {_OF_WAITS}",
            ),
        ],
        where=case.place(_ID),
        next_capture=(
            "py-spy record --gil --native --pid PID shows who holds the lock (py-spy dump for one "
            "look); or " + captures.WAITS
            if thin
            else None
        ),
    )


CAUSE = Cause(
    id=_ID,
    title="GIL contention",
    definition=(
        "Python runs one thread at a time. PyTorch gives up the interpreter's lock around every "
        "operator; while another thread computes in Python, each of these costs a switch interval "
        "(5 ms by default) or several before the training thread goes on."
    ),
    differential=(
        "host_compute comes at the same few places in each step and in any length; waits for the "
        "lock come wherever an operator ends and are never shorter than the switch interval. "
        "input_starvation is a wait between steps. A thread that the operating system does not "
        "let run pauses for other times."
    ),
    prediction="the step without the idle time in waits for the lock and what run-ahead they cost",
    reference="Python documentation: sys.setswitchinterval; threading, global interpreter lock",
    min_share=0.05,
    remedies=(
        "move Python threads that compute to other processes: DataLoader(num_workers=...), "
        "multiprocessing",
        "let such a thread sleep or block on a queue instead of polling",
    ),
    detect=detect,
)
