"""Training stops while the program saves its state."""

from __future__ import annotations

from typing import Final

from stepscope.breakdown.recurrence import of_events
from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, idle_figure
from stepscope.gaps.stalls import NAMED, STALL_EVIDENCE

_ID = "checkpoint_stall"
_OF_STALLS = f"FROM host_event WHERE cause = '{_ID}' AND {{gpu}}"
_BEGUN_LATER = " AND start_ns > (SELECT min(start_ns) FROM step WHERE steady AND {gpu})"

LEFT_BY_THREADS: Final = 0.26
"""Part of a stall that a thread leaves which serialises and writes what was copied to pinned
memory: 26 % in either of two programs (45 MB in 77 tensors, 160 MB in 57) that were timed with and
without. Saving less often, or in another process, leaves the copies at most."""


def detect(case: Case) -> Detection | None:
    """Idle time and exposed copies while the state is read back and written."""
    e = case.explanation
    stalls = e.stalls
    if not len(stalls):
        return None
    copies = float(stalls.copy_ns.sum()) / e.n_steady
    repeated = len(stalls) > 1
    figures = [
        idle_figure(_ID),
        Figure("stalls", "count", f"SELECT count(*) {_OF_STALLS}"),
        Figure(
            "stall_ns",
            "ns",
            f"SELECT median(idle_ns + exposed_copy_ns)::BIGINT {_OF_STALLS}",
        ),
        Figure("state_bytes", "bytes", f"SELECT median(read_bytes)::BIGINT {_OF_STALLS}"),
        Figure("reads", "count", f"SELECT median(reads)::BIGINT {_OF_STALLS}"),
        Figure(
            "stall_copies_ns",
            "ns",
            f"SELECT coalesce(sum(exposed_copy_ns), 0)::BIGINT {_OF_STALLS}",
        ),
    ]
    if repeated:
        figures.append(
            Figure(
                "steps_between",
                "count",
                "SELECT ((max(step) - min(step)) / (count(*) - 1))::BIGINT "
                + _OF_STALLS
                # which step one began in that had begun before the window is not known
                + (_BEGUN_LATER if int((stalls.start_ns > e.begin_ns).sum()) > 1 else ""),
            )
        )
    read_back = int(stalls.copies.max()) > 0
    message = "training stops for {stall_ns} "
    message += "every {steps_between} steps" if repeated else "once"
    message += " while the program saves its state"
    if read_back:
        message += " ({state_bytes} in {reads} copies to the host, then it is written)"
    message += f"; {STALL_EVIDENCE[int(stalls.evidence.min())]}"
    return Detection(
        time_ns=case.idle_ns(_ID) + copies,
        direct_ns=case.direct_ns(_ID) + copies,
        time_sql=(
            "SELECT round((coalesce((SELECT sum(end_ns - start_ns) FROM idle_gap "
            f"WHERE cause = '{_ID}' AND {{gpu}}), 0) "
            f"+ (SELECT sum(exposed_copy_ns) {_OF_STALLS})) / count(*))::BIGINT "
            "FROM step WHERE steady AND {gpu}"
        ),
        message=message,
        recommendations=[
            "save in the background: torch.distributed.checkpoint.async_save, or copy the state "
            "once to pinned host buffers (non_blocking=True) and let another process serialise and "
            "write it; a thread of this process leaves about a quarter of the stall, since it "
            "holds the GIL meanwhile",
            "keep the pinned buffers from one checkpoint to the next, so that only the copy stops "
            "the step",
            "write to a local disk first and upload from there",
            "save less often, and not what can be made again",
        ],
        figures=figures,
        where=case.place(_ID),
        rare=of_events(e, stalls.start_ns, stalls.end_ns),
        work_ns=case.idle_ns(_ID),
        may_leave=LEFT_BY_THREADS,
        next_capture=(
            None
            if NAMED in stalls.evidence
            else captures.WAITS
            + ", with the saving annotated by torch.cuda.nvtx.range('checkpoint')"
        ),
    )


CAUSE = Cause(
    id=_ID,
    title="Checkpoint stall",
    definition=(
        "The training loop itself saves the state: it copies every tensor to the host, serialises "
        "and writes them, and enqueues the next step only afterwards. A few steps become very "
        "long; the figures are spread over all steps."
    ),
    differential=(
        "blocking_copy reads back in every step alike. step_jitter is a long step without anything "
        "that says saving: many tensors read back in a row, an annotation, a Python function, or "
        "files being written. An evaluation every few steps launches kernels, which saving does "
        "not. Activation checkpointing shares the name only."
    ),
    prediction=(
        "the mean step without the idle time and the exposed copies of the stalls, as when another "
        "process did it or it were rare; the range holds what a thread leaves; where these come "
        "back after the same number of steps each time, the run holds as many as that says"
    ),
    reference="PyTorch documentation: torch.distributed.checkpoint, asynchronous saving",
    min_share=0.03,
    remedies=(
        "save in the background: torch.distributed.checkpoint.async_save",
        "copy the state to page-locked buffers once, and let another process write it",
        "save less often",
    ),
    detect=detect,
)
