"""Progress: on a terminal, after a second, and gone afterwards; nowhere else."""

from __future__ import annotations

import io
import os
import pty
import threading
from pathlib import Path

import pytest
from tests.cli.command import Stepscope, all_that_comes, forks

from stepscope.cli import progress as line
from stepscope.trace import progress

PROGRAM = """
import sys, time
from stepscope.cli import main, progress
progress.PATIENCE_S = {patience}
import stepscope.api.job as opening
load = opening.load
def slow(*given, **more):
    time.sleep(0.4)
    return load(*given, **more)
opening.load = slow
main.main()
"""


def on_terminal(reader: Stepscope, patience: float, *words: str, **env: str) -> tuple[str, str]:
    """(standard output to a file, standard error to a terminal) of a slow command."""
    ours, theirs = pty.openpty()
    out = os.memfd_create("out")
    program = PROGRAM.format(patience=patience)
    fork = forks().start([*words], reader.environment(TERM="xterm", **env), out, theirs, program)
    os.close(theirs)
    text = all_that_comes(ours)
    assert fork.wait() == 0, text
    os.close(ours)
    with os.fdopen(out, "rb") as written:
        written.seek(0)
        return written.read().decode(), text.decode()


def test_long_work_shows_what_it_is_at(reader: Stepscope, sqlite_capture: Path) -> None:
    out, err = on_terminal(reader, 0.0, "info", str(sqlite_capture))
    assert f"Reading {sqlite_capture.name}" in err
    assert "\x1b[?25" not in err  # the cursor is never hidden, so nothing can leave it so
    assert err.rstrip("\r\n").endswith("\x1b[2K")  # the line is gone
    assert out == reader("info", sqlite_capture).stdout


def test_short_work_does_not_flicker(reader: Stepscope, sqlite_capture: Path) -> None:
    assert on_terminal(reader, 60.0, "info", str(sqlite_capture))[1] == ""


def test_no_colours_where_none_are_wanted(reader: Stepscope, sqlite_capture: Path) -> None:
    _, err = on_terminal(reader, 0.0, "info", str(sqlite_capture), NO_COLOR="1")
    assert "Reading" in err
    assert "\x1b[3" not in err
    assert "\x1b[9" not in err


def test_a_dumb_terminal_shows_nothing(reader: Stepscope, sqlite_capture: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        patch.setenv("TERM", "dumb")
        with line.shown():
            assert list(progress.each([1], "Reading", str)) == [1]
            assert not progress._watchers
    os.close(ours)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", io.StringIO())  # a pipe or a file
        patch.setenv("TERM", "xterm")
        with line.shown():
            assert not progress._watchers


def test_work_inside_work_is_told_whole() -> None:
    answer: list[str | None] = []
    progress.watch(answer.append)
    try:
        for _ in progress.each([1, 2], "Run", str):
            for _ in progress.each(["a"], "Reading", str):
                pass
        thread = threading.Thread(target=lambda: list(progress.each([9], "Elsewhere", str)))
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="broken"):
            fails()
    finally:
        progress.watch(None)
    assert answer == [
        "Run 1 (1 of 2)", "Run 1 (1 of 2), Reading a", "Run 1 (1 of 2)",
        "Run 2 (2 of 2)", "Run 2 (2 of 2), Reading a", "Run 2 (2 of 2)", None, "Reading x", None,
    ]  # fmt: skip


def fails() -> None:
    for _ in progress.each(["x"], "Reading", str):
        raise ValueError("broken")
