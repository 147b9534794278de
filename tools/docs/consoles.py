"""Commands that the pages show with their output: they are run, and the output is put in place.

A block in the language ``console`` that begins with ``$ stepscope`` is such a session. Its commands
run one after the other in a folder that ``stepscope demo --copy`` has filled, and what each prints
stands below it. ``| head -N`` and ``| tail -N`` cut an output as in a shell; a line ``exit code N``
is what a command ends with when that is not 0. All runs in this process, which takes a
fraction of a second a command.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from stepscope.api.bundled import copy_bundled
from stepscope.cli.main import cli
from stepscope.trace.errors import StepscopeError

WIDTH = 100
SESSION = re.compile(r"^(```console\n)(\$ stepscope .*?)(^```$)", re.DOTALL | re.MULTILINE)
_CUT = re.compile(r" \| (head|tail) -(\d+)$")


def executed(page: str) -> str:
    """A page with the outputs of its sessions made again."""
    return SESSION.sub(lambda block: f"{block[1]}{_session(commands_in(block[2]))}{block[3]}", page)


def commands_in(text: str) -> tuple[str, ...]:
    """The commands of a session.

    One goes on in the next line after a backslash, and while a quoted text is open.
    """
    found: list[str] = []
    open_ = False
    for line in text.splitlines():
        if open_:
            found[-1] += f"\n{line}"
        elif line.startswith("$ "):
            found.append(line[2:])
        else:
            continue
        open_ = line.endswith("\\") or found[-1].count('"') % 2 == 1
    return tuple(found)


@cache
def _session(commands: tuple[str, ...]) -> str:
    """The commands with their outputs, as in a terminal."""
    with among_captures():
        return "".join(f"$ {command}\n{_output(command)}" for command in commands)


def _output(command: str) -> str:
    plain = command.replace("\\\n", " ")
    cut = _CUT.search(plain)
    _, *words = shlex.split(plain[: cut.start()] if cut else plain, comments=True)
    written, code = run(words)
    lines = [line.rstrip() for line in written.rstrip().splitlines()]
    if cut:
        count = int(cut[2])
        lines = lines[:count] if cut[1] == "head" else lines[-count:]
    if code:
        lines.append(f"exit code {code}")
    return "".join(f"{line}\n" for line in lines)


def run(words: list[str]) -> tuple[str, int]:
    """What a command prints, errors included, and its exit code."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        try:
            code = cli.main(words, prog_name="stepscope", standalone_mode=False)
        except StepscopeError as error:
            print(f"stepscope: {error}", file=sys.stderr)
            code = error.exit_code
        except click.ClickException as error:
            print(f"stepscope: {error.format_message()}", file=sys.stderr)
            code = 2
        except SystemExit as end:
            code = end.code
    return written.getvalue(), int(code or 0)


@cache
def scratch() -> Path:
    """A folder that is gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="stepscope-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def captures() -> Path:
    """The bundled captures, unpacked once a process."""
    copy_bundled(scratch() / "captures")
    return scratch() / "captures"


def cache_folder() -> str:
    """The cache of the commands: one that is gone afterwards; tests bring their own."""
    return os.environ.get("STEPSCOPE_CACHE_DIR") or str(scratch() / "cache")


@contextlib.contextmanager
def among_captures() -> Iterator[None]:
    """Commands run among the bundled captures, on a terminal of a fixed width without colours."""
    shown = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    shown["STEPSCOPE_CACHE_DIR"] = cache_folder()
    before = {name: os.environ.get(name) for name in shown}
    os.environ.update(shown)
    try:
        with contextlib.chdir(captures()):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
