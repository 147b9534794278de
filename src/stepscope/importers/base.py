"""What an importer is, and how a format announces itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

HEAD_BYTES = 65536
"""How much of a file's beginning ``sniff`` gets to see."""


@dataclass(frozen=True)
class Importer:
    """One source format.

    Attributes:
        name: short public name, shown as ``trace.source`` (``nsys``, ``kineto``).
        title: what a user calls the format.
        revision: raised whenever the same input would give other tables; part of the cache key.
        sniff: (path, first bytes; empty for a folder) -> confidence from 0 to 1, by content.
        read: fills the writer's tables and returns the metadata (``rows``, ``problems``,
            ``input_*`` are filled by the caller). Raises InputError with one sentence for input
            that cannot be read whole. Never writes beside the input.
    """

    name: str
    title: str
    revision: int
    sniff: Callable[[Path, bytes], float]
    read: Callable[[Path, TraceWriter], Meta]
