"""``stats -o FILE.xlsx``: one workbook, a sheet each, read back by its own rules."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA, unpack

from stepscope.render.report_format import Cells
from stepscope.render.workbook import Sheet, write_workbook

KINETO = DATA / "kineto" / "cnn_disk.json.gz"
RANKS = DATA.parent / "ranks"
MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
OFFICE = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
PACKAGE = "{http://schemas.openxmlformats.org/package/2006/relationships}"


def read(file: Path | io.BytesIO) -> dict[str, list[list[str]]]:
    """Cells by sheet, found as a reader finds them: by the relationships."""
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        types = ElementTree.fromstring(archive.read("[Content_Types].xml"))
        parts = {part.get("PartName") for part in types} - {None}
        assert {f"/{name}" for name in archive.namelist() if name.startswith("xl/")} == parts | {
            "/xl/_rels/workbook.xml.rels"
        }
        relations = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
        targets = {r.get("Id"): r.get("Target") for r in relations.iter(f"{PACKAGE}Relationship")}
        book = ElementTree.fromstring(archive.read("xl/workbook.xml"))
        found = {}
        for sheet in book.iter(f"{MAIN}sheet"):
            target = targets[sheet.get(f"{OFFICE}id")]
            rows = ElementTree.fromstring(archive.read(f"xl/{target}")).iter(f"{MAIN}row")
            name = sheet.get("name")
            assert name is not None
            found[name] = [["".join(cell.itertext()) for cell in row] for row in rows]
        return found


def test_the_sheets_hold_what_csv_holds(reader: Stepscope, tmp_path: Path) -> None:
    names = ["cuda_gpu_kern_sum:base", "gpu_idle_breakdown", "cuda_api_sum"]
    asked = [part for name in names for part in ("-r", name)]
    target = tmp_path / "reports.xlsx"
    done = reader("stats", *asked, "-o", target, KINETO)
    assert "cuda_gpu_kern_sum, gpu_idle_breakdown, cuda_api_sum -> " in done.stderr
    sheets = read(target)
    assert list(sheets) == ["cuda_gpu_kern_sum_base", "gpu_idle_breakdown", "cuda_api_sum"]
    for name, cells in zip(names, sheets.values(), strict=True):
        text = reader("stats", "-r", name, "-f", "csv", "-q", KINETO).stdout.strip()
        assert cells == list(csv.reader(io.StringIO(text)))
    before = target.read_bytes()
    again = reader("stats", *asked, "-o", target, KINETO, expect=2)
    assert "--force-overwrite" in again.stderr
    reader("stats", *asked, "-o", target, "--force-overwrite", "true", KINETO)
    assert target.read_bytes() == before  # the same tables, the same file


def test_several_captures_share_the_sheets(reader: Stepscope, tmp_path: Path) -> None:
    ranks = [unpack(RANKS / f"ddp_imbalance.rank{rank}.sqlite.xz") for rank in range(2)]
    target = tmp_path / "ranks.xlsx"
    reader("stats", "-r", "gpu_temporal_breakdown", "-r", "mpi_event_sum", "-o", target, *ranks)
    ((name, cells),) = read(target).items()
    assert name == "gpu_temporal_breakdown"
    assert cells[0][:2] == ["Rank", "Capture"]
    assert [row[0] for row in cells[1:]] == ["0", "1"]


@pytest.mark.parametrize("text", ["=1+1", "<b>&\"'", "a\x00\x1b[31mb", "\ud800", "é\n\t", " x "])
def test_texts_stay_texts(text: str) -> None:
    stream = io.BytesIO()
    write_workbook(
        stream, [Sheet(text, Cells(["n", text], [["1"], [text]], [True, False], [False, False]))]
    )
    ((name, cells),) = read(stream).items()
    assert 0 < len(name) <= 31
    assert cells[0][0] == "n"
    shown = cells[1][1]
    if text.isprintable() and "\ud800" not in text:
        assert shown == text
    assert "\x1b" not in shown
    raw = zipfile.ZipFile(stream).read("xl/worksheets/sheet1.xml").decode()
    assert "<f>" not in raw


def test_large_numbers_and_many_sheets(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepscope.render import workbook

    monkeypatch.setattr(workbook, "_MOST_ROWS", 3)
    stream = io.BytesIO()
    values = ["1", "", "nan", "1700000000000000123", "-0.5", "1e-07", "12"]
    sheet = Sheet("a/b:" + "x" * 40, Cells(["v"], [values], [True], [False]))
    write_workbook(stream, [sheet, sheet])
    found = read(stream)
    assert len(found) == len({name.lower() for name in found}) == 6
    assert [cell for rows in list(found.values())[:3] for (cell,) in rows[1:]] == values
    raw = zipfile.ZipFile(stream).read("xl/worksheets/sheet2.xml").decode()
    # a spreadsheet would round it
    assert (
        "inlineStr" in raw[raw.index("1700000000000000123") - 60 : raw.index("1700000000000000123")]
    )
    assert "<v>-0.5</v>" in raw
