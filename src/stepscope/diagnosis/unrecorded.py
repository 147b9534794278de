"""What is said of idle time of which the record holds nothing: no fault of the program."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.warned import Warned
from stepscope.gaps.unrecorded import BUSY, HOLE
from stepscope.kernels.categories import classify
from stepscope.trace.frame import IntArray

_WORTH_A_WARNING: Final = 0.05
"""Share of the step from which on it is spoken of."""

_HOLE_WORDS: Final = (
    "for {hole_ns} between two stretches of GPU work neither a call nor an operator nor a sample "
    "of the program was recorded: nothing was recorded there, and what the program did cannot be "
    "told"
)


def unrecorded_ns(case: Case, kind: str) -> float:
    """Idle time of one kind (``BUSY`` or ``HOLE``), ns per step."""
    e, rows = case.explanation, _rows(case, kind)
    found = e.unrecorded
    start = np.maximum(found.start_ns[rows], e.begin_ns)
    return float((np.minimum(found.end_ns[rows], e.end_ns) - start).sum()) / e.n_steady


def unrecorded_warnings(case: Case) -> list[Warned]:
    """What the record does not hold."""
    return [
        Warned(_busy_words(case) if kind == BUSY else _HOLE_WORDS, _figures(case, kind, name))
        for kind, name in ((BUSY, "busy_unrecorded_ns"), (HOLE, "hole_ns"))
        if unrecorded_ns(case, kind) >= _WORTH_A_WARNING * case.step_ns
    ]


def _figures(case: Case, kind: str, name: str) -> list[Figure]:
    figures = [Figure(name, "ns", _SQL.format(kind=kind))]
    call = _waiting(case, kind)
    if call >= 0:
        of_call = int(case.explanation.gpu.host.api["id"][call])
        length = (
            f"SELECT (end_ns - start_ns)::BIGINT FROM api_call WHERE id = {of_call} AND {{process}}"
        )
        figures.append(Figure("waiting_call_ns", "ns", length))
    return figures


def _busy_words(case: Case) -> str:
    """Which stream was busy with work that was not recorded, a template."""
    gpu = case.explanation.gpu
    rows = _rows(case, BUSY)
    op = int(case.explanation.unrecorded.op[rows[0]])
    name = classify(gpu.ops.text("name", op)).label.replace("{", "(").replace("}", ")")
    words = (
        f"for {{busy_unrecorded_ns}} stream {int(gpu.ops['stream'][op])} was busy with work that "
        f"is not recorded: {name!r}, the first recorded operation there, had been launched before, "
        "and nothing is recorded on the device meanwhile. That work was launched before the "
        "recording began; this is no idle time of the program's doing"
    )
    if call := busy_call(case):
        words += f", and the wait in {call} ({{waiting_call_ns}}) is for it"
    return words


def busy_call(case: Case) -> str:
    """The call in which the host waits for the busy stream; empty where it does not wait."""
    call = _waiting(case, BUSY)
    return case.explanation.gpu.host.api.text("name", call) if call >= 0 else ""


def _rows(case: Case, kind: str) -> IntArray:
    """The stretches of a kind in the steady steps, longest first."""
    e = case.explanation
    found = e.unrecorded
    rows = found.is_hole == (kind == HOLE)
    rows &= (found.start_ns < e.end_ns) & (found.end_ns > e.begin_ns)
    at = np.flatnonzero(rows)
    return at[np.argsort(found.start_ns[at] - found.end_ns[at], kind="stable")]


def _waiting(case: Case, kind: str) -> int:
    rows = _rows(case, kind)
    return int(case.explanation.unrecorded.waiting[rows[0]]) if len(rows) else -1


_SQL: Final = (
    "SELECT coalesce(sum(end_ns - start_ns), 0)::BIGINT FROM host_event "
    "WHERE cause = 'unexplained' AND evidence = '{kind}' AND {{gpu}}"
)
