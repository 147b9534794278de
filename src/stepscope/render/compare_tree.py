"""Operators of two runs, as a tree or by name: terminal, Markdown, CSV, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stepscope.render import tables
from stepscope.render.fitted import SHOWN_ROWS, Column, fitted
from stepscope.render.text import clean

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.compare.trees import Merged

_MARKS = {"both": " ", "before": "-", "after": "+", "moved": "~"}
_LEGEND = (
    "- only before   + only after   ~ in both, below wrappers that only one run has\n"
    "difference: on the GPU, or on the host where neither runs anything on the GPU"
)


def written(rows: Sequence[Merged], by: str, format_: str, width: int | None) -> str:
    """The comparison in a format; ``width`` is that of the terminal."""
    from stepscope.compare.trees import SCHEMA, as_table

    if format_ == "csv":
        return tables.as_csv(as_table(list(rows)))
    if format_ == "json":
        document = {"schema": SCHEMA, "by": by, "nodes": rows}
        return msgspec.json.encode(document).decode() + "\n"
    shown, left = _shown(rows, by)
    head = "Operators and annotations of both runs, ms per step"
    more = f"{left:,} more differ less; --format csv shows all" if left else ""
    if len(rows) <= (by == "tree"):  # a tree has a root in any case
        return "Neither run has operators or annotations on the host.\n"
    if format_ == "markdown":
        return f"{head}\n\n{tables.as_markdown(_table(shown, by))}\n{_LEGEND}\n\n{more}\n"
    lines = [head, "", *fitted(_columns(shown, by), width), "", _LEGEND, more]
    return "\n".join(lines).rstrip("\n") + "\n"


def _shown(rows: Sequence[Merged], by: str) -> tuple[list[Merged], int]:
    """What differs most with what it stands in, in the order of the tree; how many are left out."""
    if by == "name":
        return list(rows[:SHOWN_ROWS]), max(len(rows) - SHOWN_ROWS, 0)
    order = sorted(range(len(rows)), key=lambda n: -abs(rows[n].difference_ns))
    chosen: set[int] = set()
    for n in order:
        if len(chosen) >= SHOWN_ROWS:
            break
        chosen |= {n, *_ancestors(rows, n)}
    return [rows[n] for n in sorted(chosen)], len(rows) - len(chosen)


def _ancestors(rows: Sequence[Merged], n: int) -> list[int]:
    """The rows that a row stands in: parents come before their children."""
    found, depth = [], rows[n].depth
    for at in range(n - 1, -1, -1):
        if rows[at].depth < depth:
            found.append(at)
            depth = rows[at].depth
    return found


def _cells(rows: Sequence[Merged], by: str) -> dict[str, list[str]]:
    indent = [0 if by == "name" else row.depth for row in rows]
    return {
        "operator": [
            f"{_MARKS[row.relation]} {'  ' * level}{clean(row.path[-1], 120)}"
            for row, level in zip(rows, indent, strict=True)
        ],
        "calls": [f"{row.calls_before:g}" for row in rows],
        "calls after": [f"{row.calls_after:g}" for row in rows],
        "host": [_ms(row.host_before_ns) for row in rows],
        "host after": [_ms(row.host_after_ns) for row in rows],
        "GPU": [_ms(row.gpu_before_ns) for row in rows],
        "GPU after": [_ms(row.gpu_after_ns) for row in rows],
        "difference": [f"{row.difference_ns / 1e6:+z.3f}" for row in rows],
    }


def _columns(rows: Sequence[Merged], by: str) -> list[Column]:
    cells = _cells(rows, by)
    weights = {"calls": 20, "calls after": 20, "host": 40, "host after": 40}
    found = [Column("operator", cells.pop("operator"), least=24)]
    return found + [Column(title, texts, weights.get(title, 99)) for title, texts in cells.items()]


def _table(rows: Sequence[Merged], by: str) -> pa.Table:
    import pyarrow as pa

    return pa.table(_cells(rows, by))


def _ms(ns: int) -> str:
    return f"{ns / 1e6:z.3f}"
