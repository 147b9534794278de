"""Several reports as one page: plain text, Markdown or HTML, with the longest rows of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stepscope.render.fitted import wrapped
from stepscope.render.html import page
from stepscope.render.markdown import escape
from stepscope.render.report_format import Cells, Format, cells
from stepscope.render.report_text import about, json_rows, render
from stepscope.render.text import clean

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_NAME = 90


@dataclass(frozen=True)
class Section:
    """One capture's part of the page.

    Attributes:
        title: name of the capture.
        facts: what it is, in sentences.
        tables: answers that have rows.
        missing: why others have none.
    """

    title: str
    facts: list[str]
    tables: list[pa.Table]
    missing: list[str]


def text_page(
    sections: Sequence[Section], format_: Format, rows: int, width: int | None = None
) -> str:
    """The page for a terminal."""
    lines = []
    for section in sections:
        lines += wrapped(clean(section.title, 400), width)
        for fact in section.facts:
            lines += wrapped(clean(fact, 400), width, indent=2, hang=4)
        for table in section.tables:
            lines.append(render(table.slice(0, rows), format_, width).rstrip("\n"))
            lines += [f" {rest}" for rest in _rest(table, rows)]
        lines.append("")
        for stated in section.missing:
            lines += wrapped(f"· {clean(stated, 400)}", width, indent=1, hang=3)
        lines.append("")
    return "\n".join(lines)


def markdown_page(sections: Sequence[Section], format_: Format, rows: int) -> str:
    """The page as Markdown."""
    lines: list[str] = []
    for section in sections:
        lines += [f"# {escape(section.title)}", "", *(f"{escape(f)}  " for f in section.facts), ""]
        for table in section.tables:
            found = cells(table.slice(0, rows), format_)
            lines += [f"## {escape(about(table, 'title'))}", ""]
            lines.append("| " + " | ".join(map(escape, found.head)) + " |")
            lines.append("|" + "|".join("---:" if n else "---" for n in found.numeric) + "|")
            lines += ["| " + " | ".join(escape(c) for c in row) + " |" for row in _rows(found)]
            lines += ["", *_rest(table, rows), ""]
        if section.missing:
            lines += [
                "## Not in this capture",
                "",
                *(f"- {escape(m)}" for m in section.missing),
                "",
            ]
    return "\n".join(lines).rstrip("\n") + "\n"


def json_page(sections: Sequence[Section], format_: Format, rows: int) -> str:
    """The page as one document of JSON; values are in the units that the names of columns tell."""
    captures = [
        {
            "capture": section.title,
            "facts": section.facts,
            "reports": [
                {
                    "report": about(table, "name"),
                    "title": about(table, "title"),
                    "rows": json_rows(table.slice(0, rows), format_),
                    "rows_left_out": max(table.num_rows - rows, 0),
                }
                for table in section.tables
            ],
            "missing": section.missing,
        }
        for section in sections
    ]
    document = {"schema": "stepscope.report/1", "captures": captures}
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def html_page(sections: Sequence[Section], format_: Format, rows: int) -> str:
    """The page as one HTML file that loads nothing."""

    def part(table: pa.Table) -> dict[str, object]:
        found = cells(table.slice(0, rows), format_)
        return {
            "title": clean(about(table, "title"), 400),
            "head": found.head,
            "rows": _rows(found),
            "numeric": found.numeric,
            "rest": _rest(table, rows),
        }

    return page(
        "report.html",
        title=clean(", ".join(section.title for section in sections), 400),
        sections=[
            {
                "title": clean(section.title, 400),
                "facts": [clean(fact, 400) for fact in section.facts],
                "tables": [part(table) for table in section.tables],
                "missing": [clean(stated, 400) for stated in section.missing],
            }
            for section in sections
        ],
    )


def _rows(found: Cells) -> list[tuple[str, ...]]:
    shown = [
        [_grouped(text) if numeric else clean(text, _MAX_NAME) for text in column]
        for column, numeric in zip(found.columns, found.numeric, strict=True)
    ]
    return list(zip(*shown, strict=True))


def _grouped(text: str) -> str:
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}{point}{rest}" if whole.lstrip("-").isdigit() else text


def _rest(table: pa.Table, rows: int) -> list[str]:
    left = table.num_rows - rows
    name = about(table, "name")
    return [f"{left:,} more rows: stepscope stats -r {name}"] if left > 0 else []
