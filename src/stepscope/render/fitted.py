"""Tables for people: numbers to the right, as wide as the terminal, the longest rows first."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from stepscope.render.text import clean, plural

ALWAYS = 99
"""Weight of a column that is never left out."""

SHOWN_ROWS = 20
"""Rows that people are shown unless they ask for more."""

PROSE_WIDTH = 100
"""Characters in a line of prose where no terminal sets them; longer lines are hard to read."""

_GAP = "  "
_LONGEST_NAME = 120
_SHORTEST_PROSE = 20
_NOTE = re.compile(r" *[·-] ")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[kMGT]?i?B(?:/s)?|TFLOP/s)(?:\W|$))")
TIED = "\N{NO-BREAK SPACE}"
"""Ties words, such as a figure and its unit, while lines are broken; a space afterwards."""


@dataclass(frozen=True)
class Column:
    """A column of a table for people.

    Attributes:
        title: its head.
        cells: its cells, safe to print.
        weight: what is left out first where the terminal is narrow: the smallest.
        least: characters to which a name may be cut; None for what is shown whole (numbers).
        tail: whether a name's end says more than its beginning, as that of a path.
        prose: whether cells are sentences: broken onto more lines instead of cut.
    """

    title: str
    cells: Sequence[str]
    weight: int = ALWAYS
    least: int | None = None
    tail: bool = False
    prose: bool = False

    @property
    def natural(self) -> int:
        """Characters that it needs to be shown whole."""
        return max(len(text) for text in (self.title, *self.cells))

    @property
    def smallest(self) -> int:
        """Characters that it needs at least."""
        return self.natural if self.least is None else min(self.natural, self.least)


def name_column(title: str, names: Sequence[str | None], *, least: int, weight: int) -> Column:
    """A column of names from a trace, to the left."""
    return Column(title, [clean(name or "", _LONGEST_NAME) for name in names], weight, least)


def folded(text: str, width: int) -> str:
    """A text whose notes (lines that begin with ``·`` or ``-``) are broken to a width.

    Tables, figures and commands stay as they are: broken, they could not be read or copied.
    """
    lines = []
    for line in text.split("\n"):
        note = _NOTE.match(line) if len(line) > width else None
        lines += _broken(line, note[0], width) if note else [line]
    return "\n".join(lines)


def _broken(line: str, mark: str, width: int) -> list[str]:
    indent = " " * len(mark)
    room = max(width, len(mark) + _SHORTEST_PROSE)
    rest = line[len(mark) :]
    return textwrap.wrap(
        rest, room, initial_indent=mark, subsequent_indent=indent, break_long_words=False
    )


def terminal_width() -> int | None:
    """Characters in a line of the terminal that standard output is; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def prose_width() -> int:
    """Characters in a line of prose: those of the terminal, up to what still reads well."""
    return min(terminal_width() or PROSE_WIDTH, PROSE_WIDTH)


def wrapped(text: str, width: int | None, *, indent: int = 0, hang: int = 0) -> list[str]:
    """Prose in lines.

    A word that finds no room behind the indentation, such as a path, stands whole, further to the
    left: broken, it could not be copied.

    Args:
        text: one paragraph.
        width: characters in a line; None, where there is no terminal, for ``PROSE_WIDTH``.
        indent: spaces before the first line.
        hang: spaces before the others.
    """
    room = max(PROSE_WIDTH if width is None else width, hang + _SHORTEST_PROSE)
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(TIED, text),
        room,
        initial_indent=" " * indent,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [line.replace(TIED, " ") for line in lines]
    return [line if len(line) <= room else line.lstrip().rjust(room) for line in lines]


def fitted(columns: Sequence[Column], width: int | None, *, rule: bool = True) -> list[str]:
    """The lines of a table; columns that find no room are named below it.

    Args:
        columns: at least one.
        width: characters in a line; None for as many as it takes.
        rule: whether a line stands below the head.
    """
    kept, left_out = list(columns), list[str]()
    while width is not None and len(kept) > 1 and _total(c.smallest for c in kept) > width:
        last = min(range(len(kept)), key=lambda i: (kept[i].weight, -i))
        if kept[last].weight == ALWAYS:
            break
        left_out.insert(0, kept.pop(last).title)
    sizes = _sizes(kept, width)
    rows = [[c.title for c in kept], *([["-" * size for size in sizes]] if rule else [])]
    for row in zip(*(c.cells for c in kept), strict=True):
        rows += _folded_row(row, kept, sizes)
    lines = [
        _GAP.join(_cell(text, column, size) for text, column, size in zip(row, kept, sizes,
                                                                         strict=True)).rstrip()
        for row in rows
    ]  # fmt: skip
    if left_out:
        stated = f"not shown at this width: {', '.join(left_out)}"
        lines += ["", *wrapped(stated, width)]
    return lines


def more_rows(rows: int, limit: int, *, noun: str = "row") -> str:
    """What is said of the rows that a limit leaves out; empty where it leaves none out."""
    if not 0 < limit < rows:
        return ""
    return f"{plural(rows - limit, f'more {noun}')} (--limit 0 or --format csv shows all)"


def _total(sizes: Iterable[int]) -> int:
    found = list(sizes)
    return sum(found) + len(_GAP) * (len(found) - 1)


def _sizes(columns: Sequence[Column], width: int | None) -> list[int]:
    """Characters of each column: the longest name is cut first."""
    sizes = [column.natural for column in columns]
    while width is not None and (over := _total(sizes) - width) > 0:
        cuttable = [i for i, c in enumerate(columns) if sizes[i] > c.smallest]
        if not cuttable:
            break
        longest = max(cuttable, key=lambda i: sizes[i])
        others = [sizes[i] for i in cuttable if sizes[i] < sizes[longest]]
        floor = max([columns[longest].smallest, *others])
        sizes[longest] = max(sizes[longest] - over, min(floor, sizes[longest] - 1))
    return sizes


def _folded_row(
    row: Sequence[str], columns: Sequence[Column], sizes: Sequence[int]
) -> list[list[str]]:
    """A row as lines: one, and more where a sentence does not fit into its column."""
    cells = [
        textwrap.wrap(text, size) if column.prose and len(text) > size else [text]
        for text, column, size in zip(row, columns, sizes, strict=True)
    ]
    return [list(line) for line in zip_longest(*cells, fillvalue="")]


def _cell(text: str, column: Column, size: int) -> str:
    if column.least is None:
        return text.rjust(size)
    if len(text) > size:
        text = "…" + text[1 - size :] if column.tail else text[: size - 1] + "…"
    return text.ljust(size)
