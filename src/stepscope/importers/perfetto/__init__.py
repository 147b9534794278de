"""Traces of Perfetto (``.pftrace``): tracks with slices, of which those of GPU streams are work.

Recognised by content: a row of packets. The timelines that ``stepscope export`` writes are read
back; in those of others, tracks count that are named as a GPU's streams or queues.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.importers.base import Importer
from stepscope.importers.common.stream import unpacked_head
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter


def _sniff(path: Path, head: bytes) -> float:
    head = unpacked_head(path, head)
    if head[:1] != b"\x0a":
        return 0.0
    from stepscope.importers.perfetto.packets import looks_like_packets

    return 0.8 if looks_like_packets(head) else 0.0


def _read(path: Path, writer: TraceWriter) -> Meta:
    from stepscope.importers.perfetto.read import read

    return read(path, writer)


IMPORTER = Importer(name="perfetto", title="Perfetto trace", revision=1, sniff=_sniff, read=_read)
