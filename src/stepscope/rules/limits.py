"""What rules share: the number of rows to show, names of memory kinds."""

from __future__ import annotations

from typing import Any

from stepscope.analysis.tabular.maths import dictionary
from stepscope.analysis.tabular.report import Argument, Arguments
from stepscope.analysis.tabular.source import Rows
from stepscope.trace.frame import IntArray

ROWS = Argument("rows", "show at most N rows (-1: all)", 50, low=-1)


def limit(arguments: Arguments) -> slice:
    """The rows to show."""
    rows = int(arguments["rows"])
    return slice(None) if rows < 0 else slice(rows)


_LABELS = {
    "pageable": "Pageable",
    "pinned": "Pinned",
    "device": "Device",
    "array": "Array",
    "managed": "Managed",
    "device_static": "Device Static",
    "managed_static": "Managed Static",
    "unknown": "Unknown",
}


def memory_kinds(ops: Rows, column: str, rows: IntArray) -> Any:
    """Memory kinds of some operations, as people read them."""
    texts = [_LABELS.get(text, text) for text in ops.texts(column)]
    return dictionary(ops[column][rows], texts)
