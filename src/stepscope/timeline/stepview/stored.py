"""The step view, stored: the steps of a large job are then shown without explaining it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stepscope.cache.arrays import ArrayFile, ArrayWriter
from stepscope.timeline.answers import DeviceFigures, DeviceSteps
from stepscope.timeline.classes import Codes
from stepscope.timeline.extract import packed
from stepscope.timeline.stepview.alignment import Zero
from stepscope.timeline.stepview.partition import COLOURINGS, Pieces
from stepscope.timeline.stepview.steps import AlignedSteps, StepsOfDevice, StepView
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import IntArray

_ARRAYS: Final = ("begin", "end", "zero", "columns", "missing")
"""Figures that are not kept as they are: they depend on the clock or on the alignment."""


def write_steps(writer: ArrayWriter, view: AlignedSteps) -> dict[str, Any]:
    """Write all that the step view shows; returns what readers are told.

    Args:
        writer: of the file.
        view: the step view.

    Raises:
        OSError: the file cannot be written.
    """
    about = []
    for number, device in enumerate(view.devices):
        e, pieces = device.explanation, device.pieces
        writer.add(f"{number}.bounds", e.bounds_ns, "<i8")
        columns = device.columns()
        for name, values in columns.items():
            writer.add(f"{number}.column.{name}", values, "<i8")
        for align in device.alignments():
            zero = device.zero(align)
            writer.add(f"{number}.zero.{align}", zero.at_ns, "<i8")
            writer.add(f"{number}.found.{align}", zero.found.view(np.uint8), "|u1")
        writer.add(f"{number}.start", pieces.start, "<i8")
        writer.add(f"{number}.stop", pieces.end, "<i8")
        writer.add(f"{number}.step", pieces.step, "<u4")
        for colour in COLOURINGS:
            writer.add(f"{number}.{colour}", pieces.codes(colour), "|u1")
        figures = device.figures("start")
        about.append(
            {
                "trace_rank": device.device.trace_rank,
                "phases": pieces.has_phases,
                "columns": list(columns),
                "figures": {k: v for k, v in figures.items() if k not in _ARRAYS},
            }
        )
    return {"titles": view.titles, "devices": about}


def stored_view(
    file: ArrayFile, ranks: Sequence[int], offsets_ns: Sequence[int]
) -> StepView[StoredSteps]:
    """The step view in a file.

    Args:
        file: where it is.
        ranks: rank of each trace.
        offsets_ns: what is added to the times of each trace to be on the job's clock, ns.
    """
    offset_of = dict(zip(ranks, offsets_ns, strict=True))
    devices = [
        StoredSteps(file, number, offset_of[facts["trace_rank"]])
        for number, facts in enumerate(file.about["devices"])
    ]
    return StepView(devices, file.about["titles"])


@dataclass(frozen=True)
class StoredPieces(Pieces):
    """Pieces of a device's time, read where they are asked for.

    Attributes:
        by: class of each piece under each colouring.
        phased: whether more than one phase is told apart.
    """

    by: dict[str, Codes]
    phased: bool

    @property
    def has_phases(self) -> bool:
        """Whether more than one phase is told apart."""
        return self.phased

    def codes(self, colouring: str) -> Codes:
        """Class of each piece in one of ``COLOURINGS``."""
        return self.by[colouring]


class StoredSteps(StepsOfDevice):
    """The stored steps of one device.

    Args:
        file: where they are.
        number: number of the device.
        offset_ns: what is added to its times to be on the job's clock, ns.
    """

    def __init__(self, file: ArrayFile, number: int, offset_ns: int) -> None:
        self._file = file
        self._number = number
        self._about: dict[str, Any] = file.about["devices"][number]
        self._offset_ns = offset_ns

    @property
    def pieces(self) -> Pieces:
        """What the device does, each moment once."""
        return StoredPieces(
            start=self._array("start"),
            end=self._array("stop"),
            step=self._array("step"),
            by={colour: self._array(colour) for colour in COLOURINGS},
            phased=self._about["phases"],
        )

    @property
    def lengths_ns(self) -> IntArray:
        """Length of each step."""
        found: IntArray = np.diff(self._array("bounds"))
        return found

    def zero(self, align: str) -> Zero:
        """Time zero of each step.

        Raises:
            UsageError: there is no such alignment.
        """
        if f"{self._number}.zero.{align}" not in self._file:
            raise UsageError(f"steps cannot be aligned at {align[:40]!r}")
        return Zero(self._array(f"zero.{align}"), self._array(f"found.{align}").view(bool))

    def figures(self, align: str) -> DeviceFigures:
        """Everything that is said of the steps; arrays as base64 of little-endian doubles, ns."""
        zero, bounds = self.zero(align), self._array("bounds")
        columns = {name: self._array(f"column.{name}") for name in self._about["columns"]}
        known: DeviceSteps = self._about["figures"]
        return {
            **known,
            "missing": int(np.count_nonzero(~zero.found)),
            "begin": packed(bounds[:-1] + self._offset_ns, "f8"),
            "end": packed(bounds[1:] + self._offset_ns, "f8"),
            "zero": packed(zero.at_ns + self._offset_ns, "f8"),
            "columns": {name: packed(ns, "f8") for name, ns in columns.items()},
        }

    def _array(self, name: str) -> Any:
        return self._file[f"{self._number}.{name}"]
