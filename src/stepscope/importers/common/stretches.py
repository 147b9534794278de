"""Steps that the hook of ``stepscope run`` timed, recorded and not: the table ``timed_stretch``.

The file ``steps.PID.tsv`` of a process has lines of ``C``, monotonic time and wall-clock time of
one moment, and of 1 or 0 (recorded or not), begin and end in monotonic ns, number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = "timed_stretch"
KEY = "stepscopeTimedStretches"
"""Under which ``stepscope run`` puts the same into the JSON of torch.profiler, in wall-clock ns."""
_MOST = 2**62


@dataclass(frozen=True)
class Stretch:
    """Some whole steps, timed by one clock.

    Attributes:
        recorded: whether these are the steps of the capture.
        begin_ns: their begin.
        end_ns: their end.
        steps: how many they are.
    """

    recorded: bool
    begin_ns: int
    end_ns: int
    steps: int


def stretch_of(values: Sequence[Any]) -> Stretch | None:
    """A stretch from what was written of it; None where that makes no sense."""
    if len(values) != 4 or not all(isinstance(value, int) for value in values):
        return None
    recorded, begin, end, steps = values
    sound = recorded in (0, 1) and 0 < begin < end < _MOST and 0 < steps < _MOST
    return Stretch(bool(recorded), begin, end, steps) if sound else None


def read_file(path: Path) -> list[Stretch]:
    """The stretches of one process, by its monotonic clock; lines that were cut short are left out.

    Args:
        path: the file; it may be missing.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        values = [int(part) for part in line.split("\t") if part.isdigit()]
        if (stretch := stretch_of(values)) is not None:
            found.append(stretch)
    return found


def read_header(header: Mapping[str, Any]) -> list[Stretch]:
    """The stretches that stand in a trace's header, in wall-clock time."""
    listed = header.get(KEY)
    if not isinstance(listed, list):
        return []
    found = (stretch_of(values) for values in listed if isinstance(values, list))
    return [stretch for stretch in found if stretch is not None]


def columns(stretches: Sequence[Stretch], process: int, origin_ns: int) -> dict[str, list[Any]]:
    """The table's columns.

    Args:
        stretches: of one process.
        process: its id.
        origin_ns: the trace's zero on the clock of the stretches.
    """
    ordered = sorted(stretches, key=lambda stretch: stretch.begin_ns)
    return {
        "process_id": [process] * len(ordered),
        "start_ns": [stretch.begin_ns - origin_ns for stretch in ordered],
        "end_ns": [stretch.end_ns - origin_ns for stretch in ordered],
        "steps": [stretch.steps for stretch in ordered],
        "recorded": [stretch.recorded for stretch in ordered],
    }
