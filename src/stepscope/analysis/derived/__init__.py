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
from typing import TYPE_CHECKING

from stepscope.analysis.job import JobView

if TYPE_CHECKING:
    import pyarrow as pa


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
def derived_tables() -> dict[str, DerivedTable]:
    """Every derived table by name."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        table: DerivedTable = importlib.import_module(f"{__name__}.{module.name}").TABLE
        found[table.name] = table
    return found
