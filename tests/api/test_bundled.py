"""The bundled captures come out whole, and nothing of the user's is overwritten."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Stepscope

from stepscope.api.bundled import CAPTURES


def test_captures_are_copied_and_listed(reader: Stepscope, tmp_path: Path) -> None:
    listed = reader("demo", "--list").stdout
    begun = [line for line in listed.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in begun] == [c.name for c in CAPTURES]
    folder = tmp_path / "new" / "captures"
    assert reader("demo", "--copy", folder).stdout == listed
    assert {path.name for path in folder.iterdir()} == {c.name for c in CAPTURES}
    assert {p.name for p in (folder / "straggler").iterdir()} == {"rank0.sqlite", "rank2.sqlite"}
    assert (folder / "production" / "rank0.stepscope" / "meta.json").is_file()
    reader("demo", "--copy", folder)  # the same again is no conflict


def test_what_is_there_stays(tmp_path: Path) -> None:
    command = Stepscope(tmp_path / "cache")
    (tmp_path / "healthy.sqlite").write_text("mine")
    message = command.refuses("demo", "--copy", tmp_path)
    assert "healthy.sqlite exists and holds something else; name another folder" in message
    assert (tmp_path / "healthy.sqlite").read_text() == "mine"
    (tmp_path / "file").touch()
    assert "name another folder" in command.refuses("demo", "--copy", tmp_path / "file")
