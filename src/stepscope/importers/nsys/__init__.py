"""Nsight Systems: SQLite, Arrow and Parquet exports, and reports through an installed ``nsys``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.importers.base import Importer

if TYPE_CHECKING:
    from stepscope.trace.meta import Meta
    from stepscope.trace.store import TraceWriter


def _sniff(path: Path, head: bytes) -> float:
    from stepscope.importers.nsys.source import confidence

    return confidence(path, head)


def _read(path: Path, writer: TraceWriter) -> Meta:
    from stepscope.importers.nsys.read import read

    return read(path, writer)


IMPORTER = Importer(
    name="nsys",
    title="Nsight Systems report or export",
    revision=4,
    sniff=_sniff,
    read=_read,
)
"""Registered by :func:`stepscope.importers.registry.importers`."""
