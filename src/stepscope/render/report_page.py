"""Several reports as one page: plain text, Markdown or HTML, with the longest rows of each."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.render.markdown import escape
from stepscope.render.report_format import Cells, Format, cells
from stepscope.render.report_text import about, render
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


def text_page(sections: Sequence[Section], format_: Format, rows: int) -> str:
    """The page for a terminal."""
    lines = []
    for section in sections:
        lines += [clean(section.title, 400), *(f"  {clean(fact, 400)}" for fact in section.facts)]
        for table in section.tables:
            lines.append(render(table.slice(0, rows), format_).rstrip("\n"))
            lines += [f" {rest}" for rest in _rest(table, rows)]
        lines += ["", *(f" · {clean(stated, 400)}" for stated in section.missing), ""]
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


_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;"
    "color:#1b1f24;background:#fff}table{border-collapse:collapse;width:100%;display:block;"
    "overflow-x:auto}th,td{padding:.25rem .6rem;border-bottom:1px solid #d8dee4;text-align:left;"
    "white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    "p{color:#57606a}@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}"
    "th,td{border-color:#30363d}p{color:#8b949e}}"
)


def html_page(sections: Sequence[Section], format_: Format, rows: int) -> str:
    """The page as one HTML file that loads nothing."""
    body: list[str] = []
    for section in sections:
        body.append(f"<h1>{_safe(section.title)}</h1>")
        body += [f"<p>{_safe(fact)}</p>" for fact in section.facts]
        for table in section.tables:
            found = cells(table.slice(0, rows), format_)
            kinds = [' class="n"' if numeric else "" for numeric in found.numeric]
            body += [f"<h2>{_safe(about(table, 'title'))}</h2>", "<table><thead><tr>"]
            body += [
                f"<th{kind}>{_safe(name)}</th>"
                for kind, name in zip(kinds, found.head, strict=True)
            ]
            body.append("</tr></thead><tbody>")
            for row in _rows(found):
                values = zip(kinds, row, strict=True)
                body.append(
                    "<tr>" + "".join(f"<td{kind}>{_safe(c)}</td>" for kind, c in values) + "</tr>"
                )
            body.append("</tbody></table>")
            body += [f"<p>{_safe(rest)}</p>" for rest in _rest(table, rows)]
        if section.missing:
            body += ["<h2>Not in this capture</h2>", "<ul>"]
            body += [f"<li>{_safe(stated)}</li>" for stated in section.missing]
            body.append("</ul>")
    title = _safe(", ".join(section.title for section in sections))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="UTF-8">\n<title>{title}'
        f"</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
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


def _safe(text: str) -> str:
    return html.escape(clean(text, 400))
