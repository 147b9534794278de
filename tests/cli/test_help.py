"""Help: what a command without arguments answers, and how wide its lines are."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
from fcntl import ioctl
from pathlib import Path

import click
import pytest
from tests.cli.command import Stepscope, all_that_comes, python

from stepscope.cli.main import cli
from stepscope.cli.registry import GROUPS, Command, by_group, example_lines, find
from stepscope.cli.registry import commands as all_commands


@pytest.mark.parametrize(
    ("words", "held"),
    [
        ((), "\n  critical-path  Show"),
        ((), "\nExplain (why it is slow, and what a fix would gain):\n  diagnose "),
        (("history",), "\n  bisect "),
        (("capture",), "\n  dump PID "),
    ],
)
def test_a_command_that_needs_another_word_shows_its_help(
    words: tuple[str, ...], held: str, reader: Stepscope
) -> None:
    done = reader(*words, expect=2)
    assert done.stdout == ""  # a script that reads it gets no answer
    assert done.stderr.startswith("Usage: stepscope")
    assert held in done.stderr
    assert reader(*words, "--help").stdout == done.stderr


def test_a_missing_action_is_one_line(stepscope: Stepscope) -> None:
    output = stepscope.refuses("history", "--name", "x")
    assert output == (
        "Missing argument 'ACTION'. Choose from: add, list, plot, bisect, keep, copy, log; "
        "stepscope history --help shows how it is called"
    )
    assert "'foo' is not one of" in stepscope.refuses("capture", "foo", "1")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_help_fits_the_terminal(width: int, reader: Stepscope) -> None:
    for words in ((), *((name,) for name in all_commands())):
        lines = reader(*words, "--help", COLUMNS=str(width)).stdout.splitlines()
        # option lists of choices are words that cannot be broken
        prose = [line for line in lines if "[" not in line and "|" not in line]
        assert max(map(len, prose)) <= min(width, 100), words
        if width == 200:
            assert max(map(len, lines)) > 80, words


def test_help_asks_the_terminal_for_its_width(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 64, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.Popen(python("compare", "--help"), stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    text = all_that_comes(ours)
    assert done.wait() == 0
    lines = text.decode().splitlines()
    assert 55 < max(len(line) for line in lines if "[" not in line) <= 64


def test_every_command_stands_in_a_group() -> None:
    grouped = by_group()
    assert [name for name, one in all_commands().items() if not isinstance(one, Command)] == []
    groups = [heading.partition(" (")[0] for heading in grouped]
    assert groups == [group for group in GROUPS if group in groups], "no group but these, in order"
    assert find("critical-path") is all_commands()["critical-path"]
    assert not any(map(find, ("critical_path", "options", "no.such", "../run", "")))


@pytest.mark.parametrize("name", all_commands())
def test_examples_parse(name: str) -> None:
    one = all_commands()[name]
    assert isinstance(one, Command)
    assert one.examples
    for example, note in one.examples.items():
        words = shlex.split(re.split(r" [>|] ", example)[0])
        own = len(words) - words[::-1].index("stepscope")  # another program may start it
        assert words[own] == name
        arguments = words[own + 1 :]
        assert note == note.strip(".")
        above = click.Context(cli, info_name="stepscope", **cli.context_settings)
        with contextlib.suppress(click.exceptions.Exit):  # --list and the like answer at once
            one.make_context(name, arguments, parent=above)
        for width in (40, 100):
            pasted = "\n".join(example_lines({example: note}, width)).replace(" \\\n", " ")
            assert shlex.split(pasted, comments=True) == shlex.split(example)


def test_shells_complete(reader: Stepscope) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = reader("completion", shell).stdout
        assert "_STEPSCOPE_COMPLETE" in script
        assert reader.json("completion", shell)["script"] == script
    for words, wanted in {
        "dia": "diagnose",
        "diagnose --form": "--format",
        "guide --goal idle": "idle_gpu",
        "history bis": "bisect",
    }.items():
        count = len(words.split())
        env = {"_STEPSCOPE_COMPLETE": "bash_complete", "COMP_CWORD": str(count)}
        done = reader(COMP_WORDS=f"stepscope {words}", **env)
        assert f"plain,{wanted}" in done.stdout.splitlines()
