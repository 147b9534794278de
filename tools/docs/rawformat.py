"""The reference page of the collector's raw files."""

from __future__ import annotations

import numpy as np

from stepscope.importers.stepscope import layout
from tools.docs.markdown import code, constants, prose, summary, table

_NAMES = {
    getattr(layout, name): name.lower()
    for name in (
        *("META", "STRINGS", "NVTX", "KERNEL", "COPY", "SET", "API", "SYNC", "OVERHEAD"),
        *("GRAPH", "EVENT", "MEMORY", "STREAM", "API_NAME", "CLOCK", "STATE"),
    )
}


def raw_format_page() -> list[str]:
    """Parts of the page."""
    intro, *rest = summary(layout).split("\n\n")
    parts = ["# Raw files", prose(intro)]
    for paragraph in rest:
        if paragraph.startswith("- "):
            items = paragraph.replace("\n  ", " ").split("\n")
            parts.append("\n".join(f"- {prose(item.removeprefix('- '))}" for item in items))
        else:
            parts.append(prose(paragraph))
    documented = constants(layout)
    parts += [
        "## Headers",
        f"`HEADER`: {prose(documented['HEADER'][1])}",
        _columns(layout.HEADER),
        f"`CHUNK`: {prose(documented['CHUNK'][1])}",
        _columns(layout.CHUNK),
        "## Blocks",
        f"Kinds 1 (JSON) and 2 (texts: number, length, bytes, padding to 8) are no rows. "
        f"{prose(documented['ROWS'][1])}",
    ]
    for kind, rows in layout.ROWS.items():
        parts += [f"### {kind} {_NAMES[kind]}", _columns(rows)]
    operations = ("push", "pop", "start", "end", "mark", "category name", "thread name")
    parts += [
        "## NVTX operations",
        "`op` of an NVTX row: "
        + ", ".join(f"{n} {name}" for n, name in enumerate((*operations, "schema", "bytes"), 1))
        + ".",
        f"`BYTES_ROW`: {prose(documented['BYTES_ROW'][1])}",
        _columns(layout.BYTES_ROW),
    ]
    return parts


def _columns(rows: np.dtype[np.void]) -> str:
    """Name, place and type of the columns of a row."""
    assert rows.fields is not None
    lines = []
    for name, field in rows.fields.items():
        kind, offset = field[0], field[1]
        base, shape = (kind.subdtype or (kind, ()))[:2]
        count = f"[{shape[0]}]" if shape else ""
        lines.append((code(name), str(offset), f"{base.name}{count}"))
    return table(("column", "at byte", "type"), lines)
