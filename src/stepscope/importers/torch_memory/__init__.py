"""Memory snapshots of PyTorch's allocator (``torch.cuda.memory._dump_snapshot``).

They are pickles. Nothing in them is ever run: see :mod:`stepscope.importers.torch_memory.unpickle`.
"""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.importers.base import Importer
from stepscope.importers.common.stream import unpacked_head
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_SNAPSHOT = re.compile(rb"(?:segments|device_traces|allocator_settings|segment_type)")


def _sniff(path: Path, head: bytes) -> float:
    """Confidence that this is a snapshot, judged by its first bytes."""
    head = unpacked_head(path, head)
    return 0.95 if _PICKLE.match(head) and _SNAPSHOT.search(head) else 0.0


def _read(path: Path, writer: TraceWriter) -> Meta:
    from stepscope.importers.torch_memory.read import read

    return read(path, writer)


IMPORTER = Importer(
    name="torch_memory",
    title="memory snapshot of PyTorch",
    revision=1,
    sniff=_sniff,
    read=_read,
)
