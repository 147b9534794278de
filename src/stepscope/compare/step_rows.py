"""One step of one side of a comparison, to be drawn: each operation with what it is matched as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypedDict

import numpy as np

from stepscope.compare.profile import Profile
from stepscope.intervals.distinct import distinct_rows, distinct_values, with_inverse
from stepscope.timeline.classes import gpu_codes
from stepscope.timeline.extract import packed
from stepscope.timeline.stepview.steps import DeviceSteps
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import AnyArray, IntArray

MOST_OPERATIONS: Final = 50_000
"""Operations of a step that are drawn one by one; of more the longest are."""
NO_ROW: Final = 0xFFFF_FFFF
"""Stands for an operation that no row of the comparison is about."""
LONGEST_NAME: Final = 300

_SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


class PairDevice(TypedDict):
    """A device of a side, and how long its steps are, ns."""

    title: str
    count: int
    first: int
    last: int
    median: int
    lengths: list[int]


class PackedBoxes(TypedDict):
    """Boxes of one row of the picture, ns from the step's begin."""

    start: str
    end: str


class PackedPieces(PackedBoxes):
    """What the device does."""

    code: str


class PackedSpans(PackedBoxes):
    """Runs of operations of one range."""

    row: str


class PackedOperations(PackedBoxes):
    """Operations, each with its rows of the comparison, and the set of ranges that it is in."""

    code: str
    stream: str
    name: str
    kernel: str
    range: str
    operator: str


class StepPicture(TypedDict):
    """What is drawn of one step; arrays are base64 of little-endian numbers."""

    step: int
    begin: int
    length: int
    first_kernel: int
    counted: bool
    left_out: int
    streams: list[int]
    names: list[str]
    range_sets: list[list[int]]
    pieces: PackedPieces
    spans: PackedSpans
    operations: PackedOperations


@dataclass(frozen=True)
class Matched:
    """Which rows of a comparison the kernels, ranges and operators of one side are.

    Attributes:
        profile: the side's profile.
        kernels: row of each of its kernels.
        ranges: names of the comparison's ranges.
        operators: names of its operators.
    """

    profile: Profile
    kernels: Sequence[int]
    ranges: Sequence[str]
    operators: Sequence[str]

    @cached_property
    def by_shape(self) -> dict[tuple[str, tuple[int, ...], tuple[int, ...]], int]:
        """Name and launch shape to the kernel's row."""
        uses = zip(self.profile.kernels, self.kernels, strict=True)
        return {(use.name, use.grid, use.block): row for use, row in uses}

    @cached_property
    def by_range(self) -> dict[str, int]:
        """Range's name to its row."""
        return {name: row for row, name in enumerate(self.ranges)}

    @cached_property
    def by_operator(self) -> dict[str, int]:
        """Operator's name to its row."""
        return {name: row for row, name in enumerate(self.operators)}


def step_rows(device: DeviceSteps, step: int, matched: Matched) -> StepPicture:
    """What is drawn of one step; times in ns from its begin, arrays as base64.

    Args:
        device: the device.
        step: number of the step.
        matched: what its operations are in the comparison.

    Raises:
        UsageError: there is no such step.
    """
    e = device.explanation
    if not 0 <= step < len(e.steps):
        raise UsageError(f"there is no step {step}; there are 0 to {len(e.steps) - 1}")
    begin, end = int(e.bounds_ns[step]), int(e.bounds_ns[step + 1])
    pieces = device.pieces
    mine = pieces.of_steps(np.array([step]))
    ops = e.gpu.ops
    rows = np.flatnonzero((ops["start_ns"] < end) & (ops["end_ns"] > begin))
    kernels = ops["start_ns"][rows[e.gpu.is_kernel[rows]]]
    kernels = kernels[kernels >= begin]
    ranges = _rows_of(e.kernels.attribution.range_names, rows, matched.by_range)
    spans = _spans(ops["start_ns"][rows], ops["end_ns"][rows], ranges)
    left_out = max(0, len(rows) - MOST_OPERATIONS)
    kept = np.arange(len(rows))
    if left_out:
        length = ops["end_ns"][rows] - ops["start_ns"][rows]
        kept = np.sort(np.argsort(-length, kind="stable")[:MOST_OPERATIONS])
    operators = _rows_of(e.kernels.attribution.operator_names, rows, matched.by_operator)
    rows, operators = rows[kept], operators[kept]
    around, range_sets = e.kernels.attribution.ranges_around(rows)
    streams, stream = with_inverse(ops["stream"][rows])
    names, name = with_inverse(ops["name"][rows])
    labels = [e.kernels.classes[code].label or ops.texts["name"][code] for code in names.tolist()]
    return {
        "step": step,
        "begin": begin + device.offset_ns,
        "length": end - begin,
        "first_kernel": int(kernels[0]) - begin if len(kernels) else 0,
        "counted": e.first <= step <= e.last,
        "left_out": left_out,
        "streams": streams.tolist(),
        "names": [label[:LONGEST_NAME] for label in labels],
        "range_sets": [
            [matched.by_range[name] for name in names if name in matched.by_range]
            for names in range_sets
        ],
        "pieces": {
            "start": packed(pieces.start[mine] - begin, "f8"),
            "end": packed(pieces.end[mine] - begin, "f8"),
            "code": packed(pieces.kind[mine], "u1"),
        },
        "spans": {
            "start": packed(spans[0] - begin, "f8"),
            "end": packed(spans[1] - begin, "f8"),
            "row": packed(spans[2], "u4"),
        },
        "operations": {
            "start": packed(ops["start_ns"][rows] - begin, "f8"),
            "end": packed(ops["end_ns"][rows] - begin, "f8"),
            "code": packed(gpu_codes(ops)[rows], "u1"),
            "stream": packed(stream, "u4"),
            "name": packed(name, "u4"),
            "kernel": packed(_kernel_rows(device, rows, matched), "u4"),
            "range": packed(around, "u4"),
            "operator": packed(operators, "u4"),
        },
    }


def _kernel_rows(device: DeviceSteps, rows: IntArray, matched: Matched) -> IntArray:
    """Row of the comparison that each operation is."""
    e = device.explanation
    ops, grid = e.gpu.ops, e.kernels.grid
    if not len(rows):
        return np.empty(0, np.int64)
    first, which = distinct_rows([ops["name"][rows], *(grid[column][rows] for column in _SHAPE)])
    found = np.full(len(first), NO_ROW, np.int64)
    for kind, at in enumerate(rows[first].tolist()):
        shape = tuple(int(grid[column][at]) for column in _SHAPE)
        key = (ops.text("name", at), shape[:3], shape[3:])
        if e.gpu.is_kernel[at]:
            found[kind] = matched.by_shape.get(key, NO_ROW)
    return found[which]


def _rows_of(
    named: tuple[IntArray, list[str]], operations: IntArray, known: dict[str, int]
) -> IntArray:
    """Row of the comparison that the range or operator of some operations is."""
    codes, texts = named
    codes = codes[operations]
    found: AnyArray = np.full(len(codes), NO_ROW, np.int64)
    for code in distinct_values(codes[codes >= 0]).tolist():
        found[codes == code] = known.get(texts[code], NO_ROW)
    return found


def _spans(start: IntArray, end: IntArray, row: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Runs of operations that one range launched, from the first's begin to the last's end."""
    known = np.flatnonzero(row != NO_ROW)
    start, end, row = start[known], end[known], row[known]
    if not len(row):
        return start, end, row
    head = np.flatnonzero(np.concatenate(([True], np.diff(row) != 0)))
    return start[head], np.maximum.reduceat(end, head), row[head]
