"""Stepscope's own captures: the raw files that the collector writes, whole or cut short.

A folder holds the files of one or more processes; ``stepscope run`` makes a folder a rank. It may
be copied to another machine and read there. The layout of the files is documented, and declared,
in ``importers/stepscope/layout.py``.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.importers.base import Importer
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_MAGICS = (b"SSB2", b"SSB1")


def _sniff(path: Path, head: bytes) -> float:
    """Confidence that this is a raw capture, or a folder of them."""
    if head:
        return 1.0 if head.startswith(_MAGICS) else 0.0
    if not path.is_dir():
        return 0.0
    for file in path.glob("*.raw"):
        if file.is_file():
            with file.open("rb") as stream:
                if stream.read(4) in _MAGICS:
                    return 1.0
    return 0.0


def _read(path: Path, writer: TraceWriter) -> Meta:
    from stepscope.importers.stepscope.read import read

    return read(path, writer)


IMPORTER = Importer(
    name="stepscope",
    title="Stepscope capture",
    revision=5,
    sniff=_sniff,
    read=_read,
)
"""Registered by :func:`stepscope.importers.registry.importers`."""
