"""Profiles of JAX and TensorFlow: ``HOST.xplane.pb``, an XSpace of XLA's profiler.

``jax.profiler`` and TensorFlow write one file a host below ``plugins/profile/DATE/``. Recognised by
content: a row of planes whose names begin with ``/host:`` or ``/device:``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from stepscope.importers.base import Importer
from stepscope.importers.common.stream import unpacked_head
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_PLANE: Final = re.compile(
    rb"\x12[\x03-\x7f](/(?:host|device):[\x20-\x7e]+|Task Environment|#Chip|/#)"
)
_LOOKED_AT: Final = 4096


def _sniff(path: Path, head: bytes) -> float:
    head = unpacked_head(path, head)
    return 0.9 if head[:1] == b"\x0a" and _PLANE.search(head[:_LOOKED_AT]) else 0.0


def _read(path: Path, writer: TraceWriter) -> Meta:
    from stepscope.importers.xplane.read import read

    return read(path, writer)


IMPORTER = Importer(
    name="xplane", title="JAX or TensorFlow profile", revision=4, sniff=_sniff, read=_read
)
