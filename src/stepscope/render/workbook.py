"""Report tables as one workbook (``.xlsx``, SpreadsheetML of ECMA-376 part 1), a sheet each.

Only what a plain table needs is written, so the standard library is enough. Texts are written as
texts, which no spreadsheet takes for a formula.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from stepscope.render.report_format import Cells

_MOST_ROWS = 1_048_575  # without the header
_LONGEST_TEXT = 32_767
_LONGEST_NAME = 31
_CHUNK = 4096
_FORBIDDEN = re.compile(r"[][:*?/\\\x00-\x1f]")
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_EXACT_DIGITS = 15  # more digits than a spreadsheet's numbers hold are kept as text
_NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_STYLES = (
    f'{_HEAD}<styleSheet xmlns="{_NAMESPACE}"><fonts count="2"><font><sz val="11"/></font>'
    '<font><b/><sz val="11"/></font></fonts><fills count="1"><fill><patternFill '
    'patternType="none"/></fill></fills><borders count="1"><border/></borders><cellStyleXfs '
    'count="1"><xf/></cellStyleXfs><cellXfs count="2"><xf/><xf fontId="1" applyFont="1"/>'
    '</cellXfs><cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>'
    "</styleSheet>"
)


@dataclass(frozen=True)
class Sheet:
    """One table.

    Attributes:
        name: what it is called; cut and changed to what sheets may be called.
        cells: its cells.
    """

    name: str
    cells: Cells


def write_workbook(stream: IO[bytes], sheets: Sequence[Sheet]) -> None:
    """Write a workbook.

    A table with more rows than a sheet holds goes on in further sheets.

    Args:
        stream: where to.
        sheets: at least one.
    """
    parts = [
        (sheet, begin)
        for sheet in sheets
        for begin in range(0, max(_rows(sheet.cells), 1), _MOST_ROWS)
    ]
    names = _names([sheet.name for sheet, _ in parts])
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        _put(archive, "[Content_Types].xml", [_content_types(len(parts))])
        _put(archive, "_rels/.rels", [_relations([("officeDocument", "xl/workbook.xml")])])
        listed = "".join(
            f'<sheet name="{_quoted(name)}" sheetId="{n}" r:id="rId{n}"/>'
            for n, name in enumerate(names, 1)
        )
        _put(
            archive,
            "xl/workbook.xml",
            [
                f'{_HEAD}<workbook xmlns="{_NAMESPACE}" xmlns:r="{_RELATIONS}"><sheets>{listed}'
                "</sheets></workbook>"
            ],
        )
        targets = [("worksheet", f"worksheets/sheet{n}.xml") for n in range(1, len(parts) + 1)]
        _put(
            archive,
            "xl/_rels/workbook.xml.rels",
            [_relations([*targets, ("styles", "styles.xml")])],
        )
        _put(archive, "xl/styles.xml", [_STYLES])
        for number, (sheet, begin) in enumerate(parts, 1):
            _put(archive, f"xl/worksheets/sheet{number}.xml", _sheet(sheet.cells, begin))


def _rows(cells: Cells) -> int:
    return len(cells.columns[0]) if cells.columns else 0


def _put(archive: zipfile.ZipFile, name: str, pieces: Sequence[str] | Iterator[str]) -> None:
    # a fixed time: the same tables give the same file
    about = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    about.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(about, "w", force_zip64=True) as file:
        for piece in pieces:
            file.write(piece.encode())


def _names(wanted: Sequence[str]) -> list[str]:
    """Names that sheets may have, all different in any case."""
    found: list[str] = []
    known: set[str] = set()
    for name in wanted:
        plain = _FORBIDDEN.sub("_", name).strip("'")[:_LONGEST_NAME] or "report"
        unique, number = plain, 1
        while unique.lower() in known:
            number += 1
            tail = f" ({number})"
            unique = plain[: _LONGEST_NAME - len(tail)] + tail
        known.add(unique.lower())
        found.append(unique)
    return found


def _content_types(sheets: int) -> str:
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = [("/xl/workbook.xml", "sheet.main"), ("/xl/styles.xml", "styles")]
    parts += [(f"/xl/worksheets/sheet{n}.xml", "worksheet") for n in range(1, sheets + 1)]
    overrides = "".join(
        f'<Override PartName="{part}" ContentType="{kind}.{what}+xml"/>' for part, what in parts
    )
    return (
        f'{_HEAD}<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>{overrides}</Types>'
    )


def _relations(targets: Sequence[tuple[str, str]]) -> str:
    listed = "".join(
        f'<Relationship Id="rId{n}" Type="{_RELATIONS}/{kind}" Target="{target}"/>'
        for n, (kind, target) in enumerate(targets, 1)
    )
    return f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">{listed}</Relationships>'


def _sheet(cells: Cells, begin: int) -> Iterator[str]:
    """One sheet with the rows from ``begin`` on; its first row is the header and stays in view."""
    yield (
        f'{_HEAD}<worksheet xmlns="{_NAMESPACE}"><sheetViews><sheetView workbookViewId="0"><pane '
        'ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView>'
        "</sheetViews><sheetData><row>"
    )
    yield "".join(_text(head, ' s="1"') for head in cells.head) + "</row>"
    end = min(_rows(cells), begin + _MOST_ROWS)
    for at in range(begin, end, _CHUNK):
        columns = [
            [
                _number(text) if numeric else _text(text)
                for text in column[at : min(at + _CHUNK, end)]
            ]
            for column, numeric in zip(cells.columns, cells.numeric, strict=True)
        ]
        yield "".join(f"<row>{''.join(row)}</row>" for row in zip(*columns, strict=True))
    yield "</sheetData></worksheet>"


def _number(text: str) -> str:
    if not text:
        return "<c/>"
    if not _NUMBER.fullmatch(text):  # nan, inf
        return _text(text)
    digits = text.partition("e")[0].lstrip("-0.").replace(".", "")
    if len(digits) > _EXACT_DIGITS and "." not in text:
        return _text(text)
    return f"<c><v>{text}</v></c>"


def _text(text: str, style: str = "") -> str:
    if not text:
        return f"<c{style}/>"
    if len(text) > _LONGEST_TEXT:
        text = text[: _LONGEST_TEXT - 1] + "…"
    shown = escape(_NO_XML.sub("\ufffd", text))
    return f'<c t="inlineStr"{style}><is><t xml:space="preserve">{shown}</t></is></c>'


def _quoted(text: str) -> str:
    return escape(_NO_XML.sub("\ufffd", text), {'"': "&quot;"})
