"""PyTorch profiler (Kineto) Chrome traces: ``.json``, ``.json.gz``, ``.json.zst``.

Recognised by content, never by file name. The reading itself is imported on first use.
"""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.importers.base import Importer
from stepscope.importers.common.stream import unpacked_head
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_HEADER = re.compile(rb'"(?:deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:')
_EVENT_ARRAY = re.compile(rb"\[\s*\{")
_EVENT_KEYS = (b'"ph"', b'"ts"', b'"name"')


def _sniff(path: Path, head: bytes) -> float:
    """Confidence that this is a PyTorch trace, judged by the beginning of the text."""
    head = unpacked_head(path, head)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        events = _EVENTS.search(text) is not None
        if _HEADER.search(text) or b'"schemaVersion"' in text:
            return 0.95 if events else 0.6 * (_HEADER.search(text) is not None)
        return 0.6 * events
    if _EVENT_ARRAY.match(text) and all(key in text for key in _EVENT_KEYS):
        return 0.5
    return 0.0


def _read(path: Path, writer: TraceWriter) -> Meta:
    from stepscope.importers.kineto.read import read

    return read(path, writer)


IMPORTER = Importer(
    name="kineto", title="PyTorch profiler trace", revision=9, sniff=_sniff, read=_read
)
