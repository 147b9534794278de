"""The step view of a job: figures of every step of a device, and pictures of all of them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Final, Generic, TypeVar

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.breakdown.outliers import PARTS
from stepscope.gaps.idle import CAUSES
from stepscope.jobs.view import Device
from stepscope.kernels.categories import classify
from stepscope.timeline.answers import (
    DeviceFigures,
    GridArray,
    GridHeader,
    Outlier,
    PackedSteps,
    PackedZero,
    StepsAnswer,
)
from stepscope.timeline.classes import CODE
from stepscope.timeline.extract import packed
from stepscope.timeline.stepview.alignment import (
    KERNEL,
    START,
    RangeName,
    Zero,
    range_names,
    zero_of,
)
from stepscope.timeline.stepview.grid import Cells, Picture, cells
from stepscope.timeline.stepview.partition import COLOURINGS, KINDS, Partition, Pieces, partition
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import AnyArray, IntArray
from stepscope.trace.units import milliseconds

SORTS: Final = ("index", "duration")
"""Orders of the rows: as they ran, or the longest first."""

MOST_REASONS = 3
"""Differences of an outlier step from a normal one that are listed, the largest first."""

MOST_PACKED = 200_000
"""Pieces of all devices that a page without a server holds: some 2 MB of it."""


class StepsOfDevice(ABC):
    """The steps of one device as the view asks for them, explained here or stored."""

    @property
    @abstractmethod
    def pieces(self) -> Pieces:
        """What the device does, each moment once."""

    @property
    @abstractmethod
    def lengths_ns(self) -> IntArray:
        """Length of each step."""

    @abstractmethod
    def zero(self, align: str) -> Zero:
        """Time zero of each step.

        Raises:
            UsageError: there is no such alignment.
        """

    @abstractmethod
    def figures(self, align: str) -> DeviceFigures:
        """Everything that is said of the steps; arrays as base64 of little-endian doubles, ns."""

    def sorted(self, sort: str) -> IntArray:
        """Numbers of the steps from top to bottom.

        Raises:
            UsageError: there is no such order.
        """
        lengths = self.lengths_ns
        number = np.arange(len(lengths))
        if sort not in SORTS:
            raise UsageError(f"steps cannot be sorted by {sort[:40]!r}; by {' or '.join(SORTS)}")
        return number if sort == "index" else np.lexsort((number, -lengths))

    def picture(
        self, align: str, sort: str, colour: str, rows: slice, group: int, columns: tuple[int, ...]
    ) -> tuple[Picture, Cells]:
        """Cells of some rows.

        Args:
            align: as for :meth:`zero`.
            sort: as for :meth:`sorted`.
            colour: one of ``COLOURINGS``.
            rows: which of the sorted steps.
            group: steps in a row.
            columns: begin of the first column after time zero, ns; width, ns; number.

        Raises:
            UsageError: one of them is impossible.
        """
        if colour not in COLOURINGS:
            raise UsageError(f"there is no colouring {colour[:40]!r}")
        begin, bucket, count = columns
        picture = Picture(self.sorted(sort)[rows], group, begin, bucket, count)
        codes = self.pieces.codes(colour)
        return picture, cells(self.pieces, codes, self.zero(align).at_ns, picture)

    def phases(self, align: str, picture: Picture) -> Cells:
        """The same cells by phase of the step."""
        return cells(self.pieces, self.pieces.codes("phase"), self.zero(align).at_ns, picture)


class DeviceSteps(StepsOfDevice):
    """The steps of one device.

    Args:
        device: the device.
        offset_ns: what is added to its times to be on the job's clock, ns.
    """

    def __init__(self, device: Device, offset_ns: int) -> None:
        self.device = device
        self.offset_ns = offset_ns

    @property
    def explanation(self) -> Explanation:
        """What the diagnosis says of the device."""
        return self.device.explanation

    @cached_property
    def pieces(self) -> Partition:
        """What the device does, each moment once."""
        return partition(self.explanation)

    @cached_property
    def ranges(self) -> list[RangeName]:
        """Ranges that steps can be aligned at."""
        return range_names(self.explanation)

    @property
    def median(self) -> int:
        """Number of the steady step of median length; of two the shorter."""
        lengths = self.explanation.steady_durations_ns
        order = np.argsort(lengths, kind="stable")
        return self.explanation.first + int(order[(len(lengths) - 1) // 2])

    def zero(self, align: str) -> Zero:
        """Time zero of each step, see :func:`~stepscope.timeline.stepview.alignment.zero_of`."""
        return zero_of(self.explanation, align, self.ranges)

    @property
    def lengths_ns(self) -> IntArray:
        """Length of each step."""
        return self.explanation.durations_ns

    def figures(self, align: str) -> DeviceFigures:
        """Everything that is said of the steps; arrays as base64 of little-endian doubles, ns."""
        e = self.explanation
        zero, columns = self.zero(align), self.columns()
        return {
            "rank": self.device.rank,
            "device": e.gpu.device,
            "found": e.steps.source,
            "message": e.steps.message,
            "set_aside": e.set_aside,
            "first": e.first,
            "last": e.last,
            "count": len(e.steps),
            "median": self.median,
            "outliers": self.outliers(),
            "ranges": [known.name for known in self.ranges],
            "missing": int(np.count_nonzero(~zero.found)),
            "begin": packed(e.bounds_ns[:-1] + self.offset_ns, "f8"),
            "end": packed(e.bounds_ns[1:] + self.offset_ns, "f8"),
            "zero": packed(zero.at_ns + self.offset_ns, "f8"),
            "columns": {name: packed(ns, "f8") for name, ns in columns.items()},
        }

    def columns(self) -> dict[str, IntArray]:
        """Accounting of each step and its idle time by cause, ns; what is nowhere is left out."""
        accounting = self.explanation.accounting
        columns = {name: getattr(accounting, name) for name in (*KINDS.values(), "idle_ns")}
        columns |= {f"idle:{cause}": ns for cause, ns in self.idle_by_cause().items()}
        return {name: ns for name, ns in columns.items() if ns.any()}

    def alignments(self) -> list[str]:
        """Everything that :meth:`zero` takes."""
        return [START, KERNEL, *(f"range:{i}" for i in range(len(self.ranges)))]

    def idle_by_cause(self) -> dict[str, IntArray]:
        """Idle time of each step by cause, ns; of steady steps only."""
        pieces, steps = self.pieces, len(self.explanation.steps)
        length = pieces.end - pieces.start
        found = {}
        for cause in CAUSES:
            mine = pieces.kind == CODE[f"idle_{cause}"]
            sums = np.zeros(steps, np.int64)
            np.add.at(sums, pieces.step[mine], length[mine])
            found[cause] = sums
        return found

    def outliers(self) -> list[Outlier]:
        """Steps that the diagnosis calls odd, and what takes longer in them than usual."""
        odd = self.explanation.outliers
        lengths = self.explanation.durations_ns
        found: list[Outlier] = []
        first = np.searchsorted(odd.parts["step"], odd.steps)  # the parts stand in their order
        last = np.searchsorted(odd.parts["step"], odd.steps, side="right")
        for step, low, high in zip(odd.steps.tolist(), first, last, strict=True):
            rows = np.arange(low, high)
            rows = rows[np.argsort(-odd.parts["excess_ns"][rows], kind="stable")]
            reasons = []
            for row in rows[:MOST_REASONS].tolist():
                excess = int(odd.parts["excess_ns"][row])
                if excess <= 0:
                    break
                part = PARTS[int(odd.parts["part"][row])]
                name = odd.names[int(odd.parts["name"][row])]
                more = int(odd.parts["more"][row])
                reasons.append(_reason(part, name, excess, more))
            found.append(
                {
                    "step": step,
                    "normal": odd.reference,
                    "excess_ns": int(lengths[step] - lengths[odd.reference]),
                    "message": "; ".join(reasons),
                }
            )
        return found


def _reason(part: str, name: str, excess_ns: int, more: int) -> str:
    what = {"idle": f"idle by {name.replace('_', ' ')}"}.get(part)
    if what is None:
        what = f"{part}: {classify(name).label or name}"
    count = f" ({more:+,} operations)" if more else ""
    return f"{what} +{milliseconds(excess_ns)}{count}"


Steps = TypeVar("Steps", bound=StepsOfDevice)


class StepView(Generic[Steps]):
    """The step view of a job.

    Args:
        devices: its devices.
        titles: what each is called.
    """

    def __init__(self, devices: Sequence[Steps], titles: Sequence[str]) -> None:
        self.devices = list(devices)
        self.titles = list(titles)

    def of(self, number: int) -> Steps:
        """One device.

        Raises:
            UsageError: there is no such device.
        """
        if not 0 <= number < len(self.devices):
            raise UsageError(f"there is no device {number}; there are {len(self.devices)}")
        return self.devices[number]

    def figures(self, number: int, align: str) -> StepsAnswer:
        """All figures of the steps of one device, and what the devices are called."""
        return {"titles": self.titles, "number": number, **self.of(number).figures(align)}

    def picture(
        self,
        number: int,
        *,
        align: str,
        sort: str,
        colour: str,
        rows: slice,
        group: int,
        columns: tuple[int, int, int],
        phases: bool,
    ) -> bytes:
        """Cells as bytes: a little-endian 32-bit length, a header of that many bytes, arrays.

        The header (JSON) tells rows, columns, steps a row; ``arrays`` names the arrays of one byte
        a cell that follow one another: busy, busy_code, idle, idle_code, and phase where asked for
        and known.
        """
        device = self.of(number)
        picture, found = device.picture(align, sort, colour, rows, group, columns)
        arrays: dict[GridArray, AnyArray] = {
            "busy": found.busy,
            "busy_code": found.busy_code,
            "idle": found.idle,
            "idle_code": found.idle_code,
        }
        if phases and device.pieces.has_phases:
            arrays["phase"] = device.phases(align, picture).busy_code
        header: GridHeader = {
            "rows": picture.rows,
            "columns": picture.columns,
            "group": picture.group,
            "begin": picture.begin,
            "bucket": picture.bucket,
            "arrays": list(arrays),
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        parts = [np.ascontiguousarray(values).tobytes() for values in arrays.values()]
        return b"".join((len(text).to_bytes(4, "little"), text, *parts))


class AlignedSteps(StepView[DeviceSteps]):
    """The step view of a job that is explained here.

    Args:
        devices: the explained devices.
        offsets_ns: what is added to the times of each to be on the job's clock, ns.
        titles: what each is called.
    """

    def __init__(
        self, devices: Sequence[Device], offsets_ns: Sequence[int], titles: Sequence[str]
    ) -> None:
        pairs = zip(devices, offsets_ns, strict=True)
        super().__init__([DeviceSteps(device, offset) for device, offset in pairs], titles)

    def packed(self) -> PackedSteps | None:
        """All of it for a page without a server; None where that would be too much."""
        if sum(len(device.pieces) for device in self.devices) > MOST_PACKED:
            return None
        return {
            "titles": self.titles,
            "devices": [
                {
                    "figures": device.figures("start"),
                    "zero": {align: _zero(device, align) for align in device.alignments()},
                    "start": packed(device.pieces.start + device.offset_ns, "f8"),
                    "length": packed(device.pieces.end - device.pieces.start, "f8"),
                    "step": packed(device.pieces.step, "u4"),
                    "codes": {
                        colour: packed(device.pieces.codes(colour), "u1") for colour in COLOURINGS
                    },
                    "phases": device.pieces.has_phases,
                }
                for device in self.devices
            ],
        }


def _zero(device: DeviceSteps, align: str) -> PackedZero:
    zero = device.zero(align)
    at = packed(zero.at_ns + device.offset_ns, "f8")
    return {"at": at, "missing": int(np.count_nonzero(~zero.found))}
