"""What a back-end is: whether it works here, and how it changes the command."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.capture.errors import CaptureError
from stepscope.capture.libraries import Tool, find_tool
from stepscope.capture.options import Options, refuse_unwritable

HOOK_FOLDER = Path(__file__).resolve().parents[1] / "hook" / "path"
"""Goes into the program's ``PYTHONPATH``, so it holds a ``sitecustomize`` and nothing else."""

HOOK_CONFIGURATION = "hook.conf"


@dataclass(frozen=True)
class Readiness:
    """Whether a back-end can be used here.

    Attributes:
        ready: whether it can.
        message: what was found, or what is missing, in one sentence.
        remedy: what to do; empty where it is ready.
        detail: version and the like.
    """

    ready: bool
    message: str
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
        outside: whether the command is another tool's, which starts the program.
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
    outside: bool = False
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
        plan: makes the plan of a capture. Raises CaptureError for options it cannot honour. Told
            that it is only shown, it does without the tool.
    """

    name: str
    title: str
    check: Callable[[tuple[str, ...]], Readiness]
    plan: Callable[[Options, bool], Plan]


def tool_or(name: str, newest: tuple[int, ...], *, shown: bool, missing: str) -> tuple[Tool, str]:
    """A tool, and a note for the user.

    Args:
        name: the tool.
        newest: version to assume where the plan is only shown and the tool is not here.
        shown: whether the plan is only shown.
        missing: what to do where it is needed and not here.

    Raises:
        CaptureError: it is not installed.
    """
    if (found := find_tool(name)) is not None:
        return found, ""
    if not shown:
        raise CaptureError(f"{name} is not installed: {missing}")
    tool = Tool(name, newest)
    return tool, f"{name} is not installed here; the command is for version {tool.text()} or newer"


def tool_readiness(name: str, remedy: str) -> Readiness:
    """Is there a tool that runs? The remedy is told where it is not."""
    tool = find_tool(name)
    if tool is None:
        return Readiness(False, f"{name} is not installed", remedy)
    return Readiness(True, "ready", detail=f"{tool.path} {tool.text()}")


def tool_help(*command: str) -> str:
    """What a tool says of its options, which come and go with versions; empty where it fails."""
    try:
        return subprocess.run(
            [*command, "--help"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


_WRITTEN = {
    "delay_s": "--delay and --duration",
    "duration_s": "--delay and --duration",
    "ring_s": "--ring",
    "max_bytes": "--max-size",
}
"""Options that are given by another name than that of their attribute."""


def refuse(options: Options, sentence: str, *unknown: str) -> None:
    """Refuse options that a back-end does not know; the sentence names the first as ``{}``.

    Raises:
        CaptureError: one is given.
    """
    for name in unknown:
        if getattr(options, name):
            written = _WRITTEN.get(name, f"--{name.replace('_', '-')}")
            raise CaptureError(sentence.format(written))


def steps_by_hook(
    options: Options, environment: dict[str, str]
) -> tuple[dict[str, str], dict[Path, str]]:
    """The environment and files with which the hook has another tool record some steps."""
    if not options.steps:
        return environment, {}
    path = options.output.resolve() / HOOK_CONFIGURATION
    values: dict[str, object] = {
        "hook": "profiler",
        "steps": options.steps,
        "warmup": options.warmup,
        "settle": options.settle,
        "ops": options.ops,
    }
    return with_hook({**environment, "STEPSCOPE_CAPTURE": str(path)}), {path: configuration(values)}


def path_for_tool(path: Path) -> str:
    """A path as NVIDIA's tools take it, which fill in what stands behind percent signs."""
    return str(path).replace("%", "%%")


def with_hook(environment: dict[str, str]) -> dict[str, str]:
    """The environment with the Python hook in front of ``PYTHONPATH``."""
    before = os.environ.get("PYTHONPATH", "")
    path = f"{HOOK_FOLDER}{os.pathsep}{before}" if before else str(HOOK_FOLDER)
    return {**environment, "PYTHONPATH": path}


def configuration(values: dict[str, object]) -> str:
    """Lines of ``key=value``; empty texts and zeros are left out.

    Raises:
        CaptureError: a value would not be one line, or not be read whole.
    """
    lines = []
    for key, value in values.items():
        if isinstance(value, int | float) and not value:
            continue
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if text:
            refuse_unwritable(_NAMES.get(key, key), text, _LONGEST_VALUE)
            lines.append(f"{key}={text}")
    return "\n".join(lines) + "\n"


_LONGEST_VALUE = 8000
_NAMES = {
    "folder": "the folder of the capture (-o, or the one it lies in)",
    "output": "the folder of the capture (-o, or the one it lies in)",
    "library": "the path of the collector's library",
}
