"""Tables that analyses compute and SQL can use beside the canonical ones, one file each.

A module here registers its table as ``TABLE``. Evidence statements use these tables, so that a
figure can be recomputed from the capture.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.jobs.view import Device, JobView
    from stepscope.trace.frame import IntArray


DEVICE: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
}
"""The first columns of a table about devices."""


def of_device(device: Device, rows: int) -> dict[str, IntArray]:
    """The columns of ``DEVICE`` for some rows of one device."""
    import numpy as np

    gpu = device.explanation.gpu
    facts = {"rank": device.rank, "process_id": gpu.process_id, "device": gpu.device}
    return {name: np.full(rows, value, np.int64) for name, value in facts.items()}


@dataclass(frozen=True)
class DerivedTable:
    """One table.

    Attributes:
        name: name in SQL.
        doc: what one row is.
        columns: name -> meaning with unit, in order.
        build: computes it; the columns must be those declared.
    """

    name: str
    doc: str
    columns: dict[str, str]
    build: Callable[[JobView], pa.Table]


@cache
def names() -> tuple[str, ...]:
    """The names of all derived tables, each that of its module; nothing is imported for them."""
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def derived_table(name: str) -> DerivedTable:
    """One derived table. What computes it is imported only now: few questions need all of them."""
    table: DerivedTable = importlib.import_module(f"{__name__}.{name}").TABLE
    assert table.name == name
    return table


def derived_tables() -> dict[str, DerivedTable]:
    """Every derived table by name."""
    return {name: derived_table(name) for name in names()}
