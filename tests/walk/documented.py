"""The commands that README, guides and findings name, and which of them a machine can walk."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/guides/*.md")
SOURCES = "src/stepscope/diagnosis/**/*.py"
_FENCE = re.compile(r"^```(?:ba)?sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(stepscope [^`\n]+)`")
_FLAGS = re.compile(r"^\|[^|\n]*\|\s*`(--[a-z][^`\n]*)`", re.MULTILINE)
_LITERAL = re.compile(r'"(stepscope run [^"{]+)"')

LEFT_OUT = {
    "torchrun": "needs several GPUs",
    "srun": "needs a cluster",
    "--ranks": "needs several ranks or ranges of the program",
    "--range": "needs ranges of the program",
    "--ranges": "needs ranges of the program",
    "--paused": "needs a second terminal",
    "--ring": "needs a program that runs on",
    "--slow-step": "needs a program that runs on",
    "--delay": "needs a program that runs on",
    "PID": "needs a program that runs on",
    "capture": "needs a run that is still going on",
    "--label": "needs the history of a repository",
    "--revision": "needs the history of a repository",
    "history": "needs the history of a repository",
    "cache": "empties the cache",
    "mcp": "waits for an agent",
    "skill": "writes into the user's folders",
    "wandb": "needs a service",
    "mlflow": "needs a service",
    "job": "needs digests of many ranks",
    "recipe": "needs further packages",
    "explain": "reads no capture",
}
"""Words of a command that keep it out of the walk, and why."""


@dataclass(frozen=True)
class Command:
    """A command as it is written somewhere.

    Attributes:
        where: the file that names it.
        words: its words.
    """

    where: str
    words: tuple[str, ...]

    @property
    def verb(self) -> str:
        """The command of ``stepscope``."""
        return self.words[1]

    @property
    def is_capture(self) -> bool:
        """Whether it records a program."""
        return self.verb == "run"

    @property
    def why_not(self) -> str:
        """Why it is not walked; empty where it is."""
        if self.verb == "ui" and "--static" not in self.words:
            return "waits for a browser"
        for word in self.words:
            for sign, why in LEFT_OUT.items():
                if word == sign or word.startswith(f"{sign}="):
                    return why
        if "ncu" in self.words and not {"--kernel", "--examine"} & set(self.words):
            return "takes minutes: it records every kernel"
        if any(re.search(r"%[a-z]|\.\.\.|\[", word) for word in self.words):
            return "is a pattern, not a command"
        if len(self.words) == 2 and self.verb not in ("ceilings", "demo", "doctor"):
            return "is a name, not a command"
        return ""


def documented() -> list[Command]:
    """All of them, each once, in the order of the pages."""
    found: dict[tuple[str, ...], Command] = {}
    for where, text in _texts():
        try:
            words = tuple(shlex.split(text, comments=True))
        except ValueError:
            continue
        if len(words) > 1 and words[0] == "stepscope" and re.fullmatch(r"[a-z-]+", words[1]):
            found.setdefault(words, Command(where, words))
    return list(found.values())


def _texts() -> Iterator[tuple[str, str]]:
    for pattern in PAGES:
        for page in sorted(ROOT.glob(pattern)):
            text, where = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
            for block in _FENCE.findall(text):
                yield from ((where, command) for command in _commands(block))
            yield from ((where, inline) for inline in _INLINE.findall(text))
            if page.name == "run.md":  # its tables name what is given to stepscope run
                for flags in _FLAGS.findall(text):
                    yield where, f"stepscope run {flags} -- python train.py"
    for source in sorted(ROOT.glob(SOURCES)):
        for text in _LITERAL.findall(source.read_text(encoding="utf-8")):
            yield str(source.relative_to(ROOT)), text


def _commands(block: str) -> Iterator[str]:
    """The commands of a block; one goes on over lines where a quotation is open."""
    open_ = ""
    for line in block.replace("\\\n", " ").splitlines():
        open_ = f"{open_}\n{line}" if open_ else line.removeprefix("$ ")
        try:
            shlex.split(open_, comments=True)
        except ValueError:
            continue
        yield open_
        open_ = ""
