"""What a device does at each moment of its steps, each moment once: what the step view draws.

Busy time is that of the accounting identity, so the pieces of a kind sum to the step's accounting
exactly; idle time is that of the diagnosis, with the cause that it is charged to. Of operations of
one kind that overlap, the one that began first has the time until it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity.host import cut
from stepscope.breakdown.explain import Explanation
from stepscope.gaps.idle import CAUSES
from stepscope.intervals import subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import distinct_values
from stepscope.kernels.kernels import PHASES
from stepscope.timeline.classes import CLASSES, CODE, Codes, gpu_codes
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

COLOURINGS: Final = ("kind", "category", "phase")
"""What busy time may be coloured by; idle time always shows its cause."""

KINDS: Final = {
    "busy_compute": "compute_ns",
    "busy_communication": "exposed_communication_ns",
    "busy_copy": "exposed_copy_ns",
    "busy_memset": "memset_ns",
}
"""Class of busy time -> column of the accounting that holds it, in the accounting's order."""

PHASE_CODES: Final = (*(CODE[f"phase_{phase}"] for phase in PHASES), CODE["phase_none"])
IDLE: Final = np.array([key.startswith("idle_") for key in CLASSES])
"""Which classes are idle time."""


@dataclass(frozen=True)
class Pieces:
    """Disjoint pieces of a device's time, ascending, none across a boundary of steps.

    Idle time of the steps that are set aside has no cause and no piece.

    Attributes:
        start: begins on the trace's clock, ns.
        end: ends, ns.
        step: number of the step.
    """

    start: IntArray
    end: IntArray
    step: AnyArray

    def __len__(self) -> int:
        return len(self.start)

    @property
    def has_phases(self) -> bool:
        """Whether more than one phase is told apart."""
        raise NotImplementedError

    def codes(self, colouring: str) -> Codes:
        """Class of each piece in one of ``COLOURINGS``."""
        raise NotImplementedError

    def of_steps(self, chosen: IntArray) -> IntArray | slice:
        """Rows of the pieces of some steps, each given once; in any order of the steps."""
        if len(chosen) and int(chosen.max() - chosen.min()) == len(chosen) - 1:
            first, end = np.searchsorted(self.step, [chosen.min(), chosen.max() + 1])
            return slice(int(first), int(end))  # neighbours: views instead of copies
        low = np.searchsorted(self.step, chosen, side="left")
        size = np.searchsorted(self.step, chosen, side="right") - low
        before = np.cumsum(size) - size
        return np.repeat(low - before, size) + np.arange(int(size.sum()))


@dataclass(frozen=True)
class Partition(Pieces):
    """Pieces as they follow from an explanation.

    Attributes:
        op: row of ``GPU.ops``; -1 for idle time.
        kind: class: kind of busy time, or cause of idle time.
        explanation: what it was made from.
    """

    op: AnyArray
    kind: Codes
    explanation: Explanation

    def codes(self, colouring: str) -> Codes:
        """Class of each piece in one of ``COLOURINGS``."""
        return {"kind": self.kind, "category": self.category, "phase": self.phase}[colouring]

    @cached_property
    def category(self) -> Codes:
        """Class of each piece: kernel category, direction of a copy, or cause of idle time."""
        codes = gpu_codes(self.explanation.gpu.ops)
        return np.where(self.op >= 0, codes[np.maximum(self.op, 0)], self.kind).astype(np.uint8)

    @cached_property
    def phase(self) -> Codes:
        """Class of each piece: phase of the step, or cause of idle time."""
        phase = self.explanation.kernels.phase
        if len(distinct_values(phase[phase >= 0])) < 2:  # nothing tells them apart
            phase = np.full(len(phase), -1)
        of_op = np.array(PHASE_CODES, np.uint8)[phase]
        return np.where(self.op >= 0, of_op[np.maximum(self.op, 0)], self.kind).astype(np.uint8)

    @cached_property
    def has_phases(self) -> bool:
        """Whether more than one phase is told apart."""
        return bool((self.phase[self.op >= 0] != PHASE_CODES[-1]).any())


def partition(e: Explanation) -> Partition:
    """The pieces of all steps of a device."""
    gpu, ops = e.gpu, e.gpu.ops
    above: Intervals = EMPTY
    pieces: list[dict[str, AnyArray]] = []
    for kind, mask in gpu.by_class.items():
        if not mask.any():
            continue
        found = _once(ops["start_ns"], ops["end_ns"], mask, above)
        pieces.append({**found, "kind": np.full(len(found["op"]), CODE[f"busy_{kind}"], np.uint8)})
        own = gpu.union_of(mask)
        above = union(np.concatenate((above[0], own[0])), np.concatenate((above[1], own[1])))
    gap = e.gaps.segments
    cause = np.array([CODE[f"idle_{cause}"] for cause in CAUSES], np.uint8)
    pieces.append(
        {
            "start_ns": gap["start_ns"],
            "end_ns": gap["end_ns"],
            "op": np.full(len(gap), -1, np.int32),
            "kind": cause[gap["cause"]],
        }
    )
    joined = {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}
    order = np.argsort(joined["start_ns"], kind="stable")
    joined = {key: values[order] for key, values in joined.items()}
    joined = cut(joined, distinct_values(e.bounds_ns))
    step = np.searchsorted(e.bounds_ns, joined["start_ns"], side="right") - 1
    inside = (step >= 0) & (step < len(e.bounds_ns) - 1) & (joined["end_ns"] > joined["start_ns"])
    return Partition(
        start=joined["start_ns"][inside],
        end=joined["end_ns"][inside],
        step=step[inside],
        op=joined["op"][inside],
        kind=joined["kind"][inside].astype(np.uint8),
        explanation=e,
    )


def _once(start: IntArray, end: IntArray, mask: BoolArray, above: Intervals) -> dict[str, AnyArray]:
    """Time of the chosen operations, each moment once, without what is covered above."""
    rows = np.flatnonzero(mask)
    start, end = start[rows], end[rows]
    reach = np.maximum.accumulate(end)
    start = np.maximum(start, np.concatenate((start[:1], reach[:-1])))
    own = start < end
    start, end, rows = start[own], end[own], rows[own]
    if not len(start):
        return {"start_ns": start, "end_ns": end, "op": rows.astype(np.int32)}
    left = subtract((start, end), above)
    which = np.searchsorted(start, left[0], side="right") - 1
    return {"start_ns": left[0], "end_ns": left[1], "op": rows[which].astype(np.int32)}
