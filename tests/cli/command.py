"""Runs the real command line, and checks how it refuses bad input."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pty
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.cli.forking import LIMIT_S, Forks

__all__ = ["LIMIT_S"]
CONTROL = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stepscope", *arguments]


@cache
def forks() -> Forks:
    """The process whose children the commands are; one for all tests of a worker."""
    made = Forks()
    atexit.register(made.close)
    return made


@dataclass
class Stepscope:
    """The command line with a cache folder of its own.

    Commands run in children of a process that has the libraries loaded (``forking.py``).
    """

    cache: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "STEPSCOPE_CACHE_DIR": str(self.cache), **self.env, **more}

    def ends(
        self, *arguments: str | Path, program: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run to whatever end; a program in Python runs in place of the command line."""
        words, environment = [*map(str, arguments)], self.environment(**env)
        if forks().can(environment):
            return forks().run(words, environment, program)
        return subprocess.run(
            [sys.executable, "-c", program, *words] if program else python(*words),
            capture_output=True,
            text=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            env=environment,
            check=False,
        )

    def __call__(
        self, *arguments: str | Path, expect: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = self.ends(*arguments, **env)
        assert done.returncode == expect, (done.returncode, done.stdout[-2000:], done.stderr)
        return done

    def on_terminal(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run to whatever end with standard output on a pseudo terminal."""
        ours, theirs = pty.openpty()
        words = [*map(str, arguments)]
        with tempfile.TemporaryFile() as errors:
            fork = forks().start(words, self.environment(**env), theirs, errors.fileno())
            os.close(theirs)
            text = all_that_comes(ours)
            os.close(ours)
            code = fork.wait()
            errors.seek(0)
            shown = text.decode().replace("\r\n", "\n")
            return subprocess.CompletedProcess(words, code, shown, errors.read().decode())

    def json(self, *arguments: str | Path, **env: str) -> Any:
        return json.loads(self(*arguments, "--format", "json", **env).stdout)

    def refuses(self, *arguments: str | Path, code: int = 2, **env: str) -> str:
        """Run, expect one clear line and nothing left in the cache; returns the line."""
        done = self(*arguments, expect=code, **env)
        assert done.stdout == ""
        message = is_one_line(done.stderr)
        assert left_over(self.cache) == []
        return message


def is_one_line(stderr: str) -> str:
    assert stderr.endswith("\n"), stderr
    line = stderr[:-1]
    assert line.startswith("stepscope: "), stderr
    assert not CONTROL & set(map(ord, line)), stderr
    assert "Traceback" not in line
    assert "internal error" not in line
    return line.removeprefix("stepscope: ")


def left_over(cache: Path) -> list[str]:
    """What an import that failed must not leave in the cache; compiled libraries may stay."""
    if not cache.is_dir():
        return []
    kept = {"digests.json", "collector", "native"}
    return sorted(found.name for found in cache.iterdir() if found.name not in kept)


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.stepscope"))


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a folder: size, time of change, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else b""
        found[str(path.relative_to(folder))] = (stat.st_size, stat.st_mtime_ns, content)
    return found


def all_that_comes(terminal: int) -> bytes:
    """What is written to the other side of a pseudo-terminal until that is closed."""
    text = b""
    with contextlib.suppress(OSError):  # it is closed
        while piece := os.read(terminal, 4096):
            text += piece
    return text
