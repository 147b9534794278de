"""Report tables as aligned columns, as a boxed table, as JSON and as HTML; and their files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from stepscope.render.fitted import ALWAYS, Column, fitted, wrapped
from stepscope.render.html import page
from stepscope.render.report_csv import csv_pieces, tsv_pieces
from stepscope.render.report_format import AUTO_LINES, MAX_WIDTH, Cells, Format, cells
from stepscope.render.text import clean

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.reports.report import Outcome

_INTEGER = re.compile(r"-?\d+")
_ADVICE_WIDTH = 98
_LEAST_NAME = 16


def render(table: pa.Table, format_: Format, width: int | None = None) -> str:
    """A report table in any format.

    Args:
        table: the report.
        format_: how.
        width: characters in a line of the terminal that ``column`` and ``table`` are for.
    """
    return b"".join(pieces(table, format_, width)).decode()


def pieces(
    table: pa.Table, format_: Format, width: int | None = None
) -> Iterator[bytes | memoryview]:
    """The text of :func:`render` (UTF-8); of formats with a line a row, some rows at a time."""
    if format_.name == "csv":
        return csv_pieces(table, format_)
    if format_.name == "tsv":
        return tsv_pieces(table, format_)
    return iter([_whole(table, format_, width).encode()])


def _whole(table: pa.Table, format_: Format, width: int | None) -> str:
    if format_.name == "json":
        return _written(json_rows(table, format_))
    if format_.name in ("hdoc", "htable"):
        return _html(table, format_)
    return _aligned(table, format_, width)


def about(table: pa.Table, key: str) -> str:
    """What a table says about itself: name, title, advice, none_found."""
    found: bytes = (table.schema.metadata or {}).get(key.encode(), b"")
    return found.decode()


def json_rows(table: pa.Table, format_: Format) -> list[dict[str, object]]:
    """An object a row; null where there is no value."""
    found = cells(table, format_)
    columns: list[list[object]] = []
    for column, numeric in zip(found.columns, found.numeric, strict=True):
        if numeric:
            columns.append([_number(text) for text in column])
        else:
            columns.append([text if text else None for text in column])
    return [dict(zip(found.head, row, strict=True)) for row in zip(*columns, strict=True)]


def as_document(answers: Sequence[tuple[str, int | None, Outcome, Format]]) -> str:
    """What several reports say, or one of several captures, as one document of JSON.

    Args:
        answers: (capture, its rank where that is known, what a report says of it, how).
    """
    shown, skipped = [], []
    for capture, rank, outcome, format_ in answers:
        head = {"report": outcome.request.report.name, "capture": capture, "rank": rank}
        if outcome.table is None:
            skipped.append({**head, "reason": outcome.missing})
        else:
            rows = json_rows(outcome.table, format_)
            shown.append({**head, "title": about(outcome.table, "title"), "rows": rows})
    return _written({"schema": "stepscope.reports/1", "reports": shown, "skipped": skipped})


def _written(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _number(text: str) -> object:
    if not text:
        return None
    try:
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        return text


def _html(table: pa.Table, format_: Format) -> str:
    found = cells(table, format_)
    return page(
        "report_table.html",
        bare=format_.name == "htable",
        title=format_.values.get("title", "Stepscope report"),
        css=format_.values.get("css", ""),
        heading=f"{about(table, 'title')} ({about(table, 'name')})",
        head=found.head,
        rows=zip(*found.columns, strict=True),
    )


def _aligned(table: pa.Table, format_: Format, width: int | None) -> str:
    """Columns of text under a title; boxed for the format ``table`` where that finds room."""
    found = cells(table, format_)
    title = f" ** {about(table, 'title')} ({about(table, 'name')}):"
    lines = ["", *([title] if width is None else _wrapped(title.lstrip(), width)), ""]
    if about(table, "advice") and table.num_rows:
        lines += [*_wrapped(about(table, "advice"), width), ""]
    if not table.num_rows:
        stated = about(table, "none_found") or "The capture holds the data, but no row results."
        return "\n".join([*lines, *_wrapped(stated, width)]) + "\n"
    columns = [
        [_shown(text, numeric, format_) for text in column]
        for column, numeric in zip(found.columns, found.numeric, strict=True)
    ]
    widths = _widths(found, columns, format_)
    if width is not None and not format_.widths and sum(widths) + 2 * len(widths) > width:
        rows_ = fitted(_fitted_columns(found, columns), width - 1)
        return "\n".join([*lines, *(f" {line}".rstrip() for line in rows_)]) + "\n"
    shown = [index for index, width in enumerate(widths) if width]
    rows = zip(*(columns[index] for index in shown), strict=True)
    sizes = [widths[index] for index in shown]
    right = [found.numeric[index] for index in shown]
    head = [_cut(found.head[index], widths[index]).center(widths[index]) for index in shown]
    body = [
        [_cut(text, size).rjust(size) if number else _cut(text, size).ljust(size)
         for text, size, number in zip(row, sizes, right, strict=True)]
        for row in rows
    ]  # fmt: skip
    boxed = format_.name == "table"
    return "\n".join([*lines, *_rows(head, body, sizes, format_, boxed=boxed)]) + "\n"


def _rows(
    head: list[str], body: list[list[str]], sizes: list[int], format_: Format, *, boxed: bool
) -> list[str]:
    with_head = "nohdr" not in format_.flags
    if not boxed:
        rule = ["-" * size for size in sizes]
        parts = [head, rule, *body] if with_head else body
        return [(" " + "  ".join(row)).rstrip() for row in parts]
    edge = "+" + "+".join("-" * (size + 2) for size in sizes) + "+"
    lines = [edge]
    if with_head:
        lines += ["| " + " | ".join(head) + " |", edge]
    return [*lines, *("| " + " | ".join(row) + " |" for row in body), edge]


def _fitted_columns(found: Cells, columns: Sequence[Sequence[str]]) -> list[Column]:
    """Columns for a terminal that is too narrow for all: names are cut, the last figures left out.

    The last name, and figures before others, say most of a row.
    """
    names = [at for at, number in enumerate(found.numeric) if not number]
    return [
        Column(
            title,
            columns[at],
            ALWAYS if names[-1:] == [at] else len(columns) - at,
            None if found.numeric[at] else _LEAST_NAME,
            prose=found.prose[at],
        )
        for at, title in enumerate(found.head)
    ]


def _wrapped(text: str, width: int | None) -> list[str]:
    return wrapped(text, _ADVICE_WIDTH if width is None else width, indent=1, hang=1)


def _shown(text: str, numeric: bool, format_: Format) -> str:
    if not numeric:
        return clean(text, 1 << 30)
    if "nofmt" in format_.flags:
        return text
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}{point}{rest}" if _INTEGER.fullmatch(whole) else text


def _widths(found: Cells, columns: list[list[str]], format_: Format) -> list[int]:
    scanned = int(format_.values.get("autolines", AUTO_LINES)) or None
    most = int(format_.values.get("colmax", MAX_WIDTH)) or 1 << 30
    widths = []
    for index, (name, column) in enumerate(zip(found.head, columns, strict=True)):
        given = format_.widths[index] if index < len(format_.widths) else -1
        longest = max([len(name), *(len(text) for text in column[:scanned])])
        most_here = longest if found.prose[index] else most
        widths.append(min(longest, most_here) if given < 0 else given)
    return widths


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
