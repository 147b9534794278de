"""What a back-end is: whether it works here, and how it changes the command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.capture.options import Options

HOOK_FOLDER = Path(__file__).resolve().parents[1] / "hook" / "path"
"""Goes into the program's ``PYTHONPATH``, so it holds a ``sitecustomize`` and nothing else."""


@dataclass(frozen=True)
class Readiness:
    """Whether a back-end can be used here.

    Attributes:
        ready: whether it can.
        says: what was found, or what is missing, in one sentence.
        remedy: what to do; empty where it is ready.
        detail: version and the like.
    """

    ready: bool
    says: str
    remedy: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Plan:
    """How a capture will be made.

    Attributes:
        command: what is executed.
        environment: variables that are set for it.
        files: text of files that are written first, by path.
        notes: what the user should know, in sentences.
        results: glob of the capture files below the output folder, for tools that write their own.
        pool: folder in memory that must be emptied into the raw files afterwards.
        log: file that the tool writes its messages to.
        limit_s: seconds after which the tool is ended, from the first of its messages that has
            ``working`` in it; 0: none. What it has by then is kept.
        working: see ``limit_s``.
    """

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[Path, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    results: str = ""
    pool: Path | None = None
    log: Path | None = None
    limit_s: float = 0.0
    working: str = ""

    def text(self) -> str:
        """The exact command, as it could be typed."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.command)])


@dataclass(frozen=True)
class Backend:
    """One tool.

    Attributes:
        name: as given to ``--backend``.
        title: what it is, in a few words.
        check: looks at the machine. Its argument is the command that would be run.
        plan: makes the plan of a capture. Raises CaptureError for options it cannot honour.
    """

    name: str
    title: str
    check: Callable[[tuple[str, ...]], Readiness]
    plan: Callable[[Options], Plan]


def with_hook(environment: dict[str, str]) -> dict[str, str]:
    """The environment with the Python hook in front of ``PYTHONPATH``."""
    before = os.environ.get("PYTHONPATH", "")
    path = f"{HOOK_FOLDER}{os.pathsep}{before}" if before else str(HOOK_FOLDER)
    return {**environment, "PYTHONPATH": path}


def configuration(values: dict[str, object]) -> str:
    """Lines of ``key=value``; empty values are left out, newlines cannot be."""
    lines = []
    for key, value in values.items():
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if text and text != "0":
            lines.append(f"{key}={text}".replace("\n", " "))
    return "\n".join(lines) + "\n"
