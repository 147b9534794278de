"""What tables of GPU time need, stored: a table of a large job is then made without explaining it.

Kept are the columns that questions ask for: when each operation begins and how long it takes,
whether it is of the steady steps, its id, and of each grouping the group of each operation and
their order. They are mapped into memory and looked at where a question needs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.cache.arrays import ArrayFile, ArrayWriter
from stepscope.kernels.statements import GROUPINGS, grouped_by
from stepscope.timeline.tables import LONGEST_NAME, NOTHING, Grouping, Work
from stepscope.trace.frame import AnyArray, Frame, IntArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.timeline.tables import Window

_NAMES = list[tuple[str | None, ...]]


@dataclass(frozen=True)
class DeviceSteps:
    """What tables need to know of an explained device.

    Attributes:
        rank: rank of its trace.
        bounds_ns: boundaries of its steps on the trace's clock, ns.
        first: first steady step.
        last: last steady step.
        operations: number of its operations.
    """

    rank: int
    bounds_ns: IntArray
    first: int
    last: int
    operations: int


def write_tables(writer: ArrayWriter, devices: Sequence[DeviceSteps], work: Work) -> dict[str, Any]:
    """Write what tables need; returns what readers are told.

    Args:
        writer: of the file.
        devices: the explained devices.
        work: their operations, device by device.

    Raises:
        OSError: the file cannot be written.
    """
    for number, device in enumerate(devices):
        writer.add(f"bounds.{number}", device.bounds_ns, "<i8")
    end = work.categories["end_ns"]
    writer.add("start", end - work.ns, "<i8")
    writer.add("ns", work.ns, _unsigned(work.ns))
    writer.add("steady", work.steady.chosen.view(np.uint8), "|u1")
    writer.add("id", work.ids, _unsigned(work.ids))
    for by in GROUPINGS:
        grouping = work.grouped(by)  # not kept: one is in memory at a time
        writer.add(f"{by}.code", grouping.code, _unsigned(grouping.code))
        writer.add(f"{by}.order", grouping.order, _unsigned(grouping.order))
        lines = b"\n".join(msgspec.json.encode(names) for names in grouping.names)
        writer.add(f"{by}.names", np.frombuffer(lines, np.uint8), "|u1")
    about = [
        {"rank": d.rank, "first": d.first, "last": d.last, "operations": d.operations}
        for d in devices
    ]
    return {"devices": about}


class StoredTables:
    """Stored tables.

    Args:
        file: where they are.
    """

    def __init__(self, file: ArrayFile) -> None:
        self.file = file

    @property
    def devices(self) -> list[DeviceSteps]:
        """The explained devices."""
        return [
            DeviceSteps(bounds_ns=self.file[f"bounds.{number}"], **facts)
            for number, facts in enumerate(self.file.about["devices"])
        ]

    def work(self, late: IntArray, steady: Window) -> Work:
        """The operations.

        Args:
            late: what is added to the begin of each, ns.
            steady: the steady steps; its mask is read from the file.
        """
        return StoredWork(self.file, late, steady)


class StoredWork(Work):
    """Operations of a job, read where they are asked for.

    Args:
        file: where they are stored.
        late: what is added to the begin of each, ns.
        steady: the steady steps, without their mask.
    """

    def __init__(self, file: ArrayFile, late: IntArray, steady: Window) -> None:
        start: IntArray = file["start"]
        if late.any():
            start = start + late
        chosen = file["steady"].view(bool)
        super().__init__(Frame({}), start, replace(steady, chosen=chosen))
        self._file = file

    @cached_property
    def ns(self) -> IntArray:
        """Length of each operation."""
        return self._file["ns"].astype(np.int64)

    @property
    def ids(self) -> IntArray:
        """``gpu_op.id`` of each operation."""
        return self._file["id"].astype(np.int64)

    def kernel_names(self, rows: IntArray) -> list[str]:
        """Names of the kernels of some operations, as the page shows them."""
        kernels = self.grouping("kernel")
        names = (kernels.names[group][0] for group in kernels.code[rows].tolist())
        return [NOTHING if name is None else name[:LONGEST_NAME] for name in names]

    def grouped(self, by: str) -> Grouping:
        """The groups of a key."""
        grouped_by(by)
        lines = self._file[f"{by}.names"].tobytes()  # JSON ends no line inside a name
        names = msgspec.json.decode(b"[" + lines.replace(b"\n", b",") + b"]", type=_NAMES)
        return Grouping(names, self._file[f"{by}.code"], self._file[f"{by}.order"])


def _unsigned(values: AnyArray) -> str:
    """The shortest type that holds some numbers, none of them negative."""
    most: Any = values.max(initial=0)
    if values.min(initial=0) < 0 or most >= 1 << 32:
        return "<i8"
    return "<u2" if most < 1 << 16 else "<u4"
