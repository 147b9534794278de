"""Notes: kept beside the capture, never lost, never trusted."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from stepscope.api.inputs import bundled_capture, expand
from stepscope.trace.errors import ConflictError, InputError, UsageError
from stepscope.trace.notes import LONGEST_TEXT, Notes


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "run.sqlite"
    path.write_bytes(b"capture")
    return path


def add(notes: Notes, id_: str, begin: int = 5, end: int = 5, text: str = "") -> int:
    found = notes.change(id_, 0, begin, end, text, deleted=False)
    return int(found["revision"])


def test_nothing_is_written_before_the_first_note(capture: Path) -> None:
    notes = Notes(capture)
    assert notes.read()["notes"] == []
    assert [p.name for p in capture.parent.iterdir()] == ["run.sqlite"]
    add(notes, "a", text="slow here")
    assert sorted(p.name for p in capture.parent.iterdir()) == [
        "run.sqlite",
        "run.sqlite.notes.json",
    ]
    assert capture.read_bytes() == b"capture"
    assert Notes(capture).read()["notes"] == [
        {"id": "a", "revision": 1, "begin": 5, "end": 5, "text": "slow here"}
    ]


def test_a_late_change_is_refused_and_loses_nothing(capture: Path) -> None:
    one, other = Notes(capture), Notes(capture)
    add(one, "a", text="mine")
    other.change("a", 1, 5, 9, "theirs", deleted=False)
    with pytest.raises(ConflictError, match="another window"):
        one.change("a", 1, 5, 5, "mine again", deleted=False)
    with pytest.raises(ConflictError):
        one.change("a", 1, 5, 5, "", deleted=True)
    with pytest.raises(ConflictError):
        add(one, "a")
    assert [note["text"] for note in one.read()["notes"]] == ["theirs"]
    one.change("a", 2, 5, 5, "", deleted=True)
    assert other.read()["notes"] == []
    with pytest.raises(ConflictError):
        other.change("a", 2, 5, 5, "late", deleted=False)


def test_many_at_once_lose_none(capture: Path) -> None:
    def work(number: int) -> None:
        mine = Notes(capture)
        for i in range(20):
            add(mine, f"n{number}x{i}", begin=i, end=i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Notes(capture).read()
    assert len(found["notes"]) == found["revision"] == 80


def test_times_are_those_of_the_capture(capture: Path) -> None:
    add(Notes(capture, offset_ns=1000), "a", begin=1500, end=1600)
    assert Notes(capture).read()["notes"][0]["begin"] == 500
    assert Notes(capture, offset_ns=-200).read()["notes"][0]["end"] == 400


@pytest.mark.skipif(os.geteuid() == 0, reason="rights do not bind the administrator")
def test_a_folder_without_rights_gets_none(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_DATA_DIR", str(capture.parent / "data"))
    (capture.parent / "data").mkdir()
    capture.parent.chmod(0o555)
    try:
        _is_kept_in_the_data_folder(capture)
    finally:
        capture.parent.chmod(0o755)


def test_another_place_where_the_folder_cannot_be_written(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_DATA_DIR", str(capture.parent / "data"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    _is_kept_in_the_data_folder(capture)


def _is_kept_in_the_data_folder(capture: Path) -> None:
    add(Notes(capture), "a", text="kept")
    assert Notes(capture).path.is_relative_to(capture.parent / "data")
    assert not capture.with_name("run.sqlite.notes.json").exists()
    assert Notes(capture).read()["notes"][0]["text"] == "kept"


@pytest.mark.parametrize("text", ["<script>", "\u202e\u05d0", "a\nb\x00", "🔥" * 5000, '"\\'])
def test_any_text_comes_back(capture: Path, text: str) -> None:
    add(Notes(capture), "a", text=text)
    assert Notes(capture).read()["notes"][0]["text"] == text


def test_what_cannot_be_a_note_is_refused(capture: Path) -> None:
    notes = Notes(capture)
    for id_, begin, end, text in (
        ("", 0, 0, ""),
        ("../x", 0, 0, ""),
        ("x" * 65, 0, 0, ""),
        ("a", 5, 4, ""),
        ("a", 0, 1 << 60, ""),
        ("a", 0, 0, "x" * (LONGEST_TEXT + 1)),
    ):
        with pytest.raises(UsageError):
            add(notes, id_, begin, end, text)
    assert not notes.path.exists()
    with pytest.raises(UsageError, match=r"has 10,001 characters, but 10,000 .* nothing was writ"):
        add(notes, "a", text="x" * (LONGEST_TEXT + 1))
    longest = "\N{SNOWMAN}" * LONGEST_TEXT
    add(notes, "a", text=longest)
    assert [note["text"] for note in notes.read()["notes"]] == [longest]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": "x"}', b'{"notes": [{"id": 3}]}'],
)
def test_a_file_that_is_none_is_left_alone(capture: Path, content: bytes) -> None:
    path = capture.with_name("run.sqlite.notes.json")
    path.write_bytes(content)
    with pytest.raises(InputError, match="notes"):
        Notes(capture).read()
    with pytest.raises(InputError):
        add(Notes(capture), "a")
    assert path.read_bytes() == content


def test_the_file_says_what_it_is(capture: Path) -> None:
    add(Notes(capture), "a", 1, 2, "t")
    found = json.loads(capture.with_name("run.sqlite.notes.json").read_text())
    assert found["schema"] == "stepscope.notes/1"
    assert found["capture"] == "run.sqlite"
    assert found["notes"] == [
        {"id": "a", "revision": 1, "begin_ns": 1, "end_ns": 2, "text": "t", "deleted": False}
    ]


def test_a_folder_of_captures_holds_no_notes_among_them(tmp_path: Path) -> None:
    capture = Path(shutil.copy(bundled_capture(), tmp_path / "run.sqlite"))
    add(Notes(capture), "a", text='{"schemaVersion": 1, "traceEvents": []}')
    left_out: list[str] = []
    assert expand(tmp_path, left_out) == [capture]
    assert left_out == []
