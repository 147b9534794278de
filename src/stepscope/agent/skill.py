"""The skill: instructions for coding agents, made from the registries, and its installation."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from stepscope import __version__
from stepscope.api.terms import capture_commands, terms
from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    from stepscope.knowledge.explanation import Meaning

NAME: Final = "stepscope"
_TEXTS: Final = Path(__file__).with_name("texts")
_HOMES: Final = (".claude/skills", ".agents/skills")
"""Folders below a project in which coding agents look for skills."""
_MARK: Final = re.compile(r"\n<!-- made by stepscope \S+: ([0-9a-f]{16}) -->\n\Z")
Fate = Literal["written", "updated", "unchanged"]


@dataclass(frozen=True)
class Written:
    """One file of an installation.

    Attributes:
        path: where it is.
        fate: what was done.
    """

    path: Path
    fate: Fate


def skill_files() -> dict[str, str]:
    """Text of every file of the skill, by path below its folder."""
    return {
        "SKILL.md": _text("SKILL.md"),
        "references/reading.md": _text("reading.md"),
        "references/capture.md": "\n".join(_capture()) + "\n",
        "references/causes.md": "\n".join(_causes()) + "\n",
    }


def homes(folder: Path) -> list[Path]:
    """Where the skill goes by default: beside what coding agents keep in a project."""
    there = [folder / home for home in _HOMES if (folder / home).parent.is_dir()]
    return there or [folder / _HOMES[-1]]


def install(folder: Path) -> list[Written]:
    """Write the skill below a folder of skills; nothing is written where one file is not ours.

    Args:
        folder: the folder of skills; made where it is missing.

    Raises:
        UsageError: a file of that name was not made here, or was changed since.
        StorageError: a file cannot be written.
    """
    root = folder / NAME
    wanted = {root / name: _marked(text) for name, text in skill_files().items()}
    fates = {path: _fate(path, text) for path, text in wanted.items()}
    for path, text in wanted.items():
        if fates[path] != "unchanged":
            _write(path, text)
    return [Written(path, fate) for path, fate in fates.items()]


def _fate(path: Path, text: str) -> Fate:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path} is no plain file; move it away, or name another --path")
    try:
        old = path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text; move it away") from error
    if old is None:
        return "written"
    if old == text:
        return "unchanged"
    mark = _MARK.search(old)
    if mark is None or mark[1] != _digest(old[: mark.start()]):
        made = (
            "was changed since it was installed"
            if "made by stepscope" in old
            else "was not made by stepscope"
        )
        raise UsageError(f"{path} {made}; move it away, or name another --path")
    return "updated"


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}; name another --path") from error


def _marked(text: str) -> str:
    body = text.rstrip("\n") + "\n"
    return f"{body}\n<!-- made by stepscope {__version__}: {_digest(body)} -->\n"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _text(name: str) -> str:
    return (_TEXTS / name).read_text(encoding="utf-8")


def _of_kind(kind: str) -> list[Meaning]:
    return [meaning for meaning in terms() if meaning.kind == kind]


def _causes() -> Iterator[str]:
    """Every cause: what it means, and what tells it from those that look like it."""
    yield "# Causes"
    for cause in _of_kind("cause"):
        yield ""
        yield f"**{cause.id}**: {cause.meaning}"
        yield from (f"Not to be confused: {d.text}" for d in cause.details[:1] if d.text)
    yield ""
    yield "# Levers: what is left inside the kernels of a healthy step"
    for lever in _of_kind("lever"):
        yield ""
        yield f"**{lever.id}**: {lever.meaning}"


def _capture() -> Iterator[str]:
    """What to record for a question, and the tools that there are."""
    yield "# What to capture"
    yield ""
    yield "`stepscope doctor` says what works on this machine; the MCP tool `plan_capture` says it"
    yield "as JSON. Record a steady stretch, 20 steps after the warm-up, alone on its GPU."
    yield ""
    yield "| command | what it records |"
    yield "|---|---|"
    for command, records in capture_commands().items():
        yield f"| `{command}` | {records} |"
    yield ""
    yield "# Tools"
    for tool in _of_kind("tool"):
        yield ""
        yield f"**{tool.title}**: {' '.join(tool.meaning.split())}"
