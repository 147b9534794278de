"""Commands, each declared where it stands: its group in ``--help``, and examples.

A module of this folder that holds ``command`` is a command, named as the module (``-`` for ``_``);
there is no list to enter it in::

    @registry.command("Look", order=3, examples={"stepscope gaps run": "idle time by cause"})
    @options.paths
    def command(...) -> None:
        \"\"\"Show the idle time ...\"\"\"

The first sentence of its docstring is the line that ``stepscope --help`` shows.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import click

GROUPS: Final = {
    "Capture": "record a program",
    "Explain": "why it is slow, and what a fix would gain",
    "Look": "into one run",
    "Compare": "runs with one another",
    "As nsys": "reports, rules and recipes of Nsight Systems",
    "Jobs": "of many ranks",
    "Automate": "scripts, agents, other tools, the shell",
}
"""Group of commands -> what they are for, in the order of ``stepscope --help``."""

_PACKAGE: Final = __name__.rpartition(".")[0]


class Command(click.Command):
    """A command that says where it stands in ``--help``, and how it is used.

    Args:
        group: a key of ``GROUPS``.
        order: its place in the group; those of the same place stand in the order of the alphabet.
        examples: command line -> what it does, a few words.
    """

    def __init__(
        self,
        *args: Any,
        group: str = "",
        order: int = 50,
        examples: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.group = group
        self.order = order
        self.examples = dict(examples or {})

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below the options."""
        super().format_epilog(ctx, formatter)
        if not self.examples:
            return
        with formatter.section("Examples"):
            for line in example_lines(self.examples, formatter.width - formatter.current_indent):
                formatter.write(f"{'':{formatter.current_indent}}{line}".rstrip() + "\n")


def command(
    group: str,
    *,
    order: int = 50,
    examples: Mapping[str, str],
    cls: type[Command] = Command,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Command]:
    """Declare a function as the command of its module; see :class:`Command`.

    Args:
        group: a key of ``GROUPS``.
        order: its place in the group.
        examples: command line -> what it does, a few words; at least one.
        cls: a kind of command, such as one with actions.
        **settings: of ``click.command``.
    """
    settings |= {"group": group, "order": order, "examples": examples}
    return click.command(None, cls, **settings)


def example_lines(examples: Mapping[str, str], width: int) -> list[str]:
    """Examples as lines that can be pasted into a shell: the note beside the command or above."""
    longest = max(map(len, examples))
    if all(longest + len(note) + 4 <= width for note in examples.values()):
        return [f"{line:{longest}}  # {note}" for line, note in examples.items()]
    lines: list[str] = []
    for line, note in examples.items():
        lines += ["", *_broken(f"# {note}", width, "# "), *_broken(line, width, "    ", " \\")]
    return lines[1:]


def _broken(text: str, width: int, indent: str, end: str = "") -> list[str]:
    """A line in pieces, between words and never inside quotes."""
    words = re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", text)
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + len(end) <= width:
            lines[-1] += f" {word}"
        else:
            lines[-1] += end
            lines.append(f"{indent}{word}")
    return lines


@cache
def commands() -> dict[str, click.Command]:
    """Every command by name, in the order of ``stepscope --help``; loads the module of each."""
    folder = importlib.import_module(_PACKAGE).__path__
    names = [module.name for module in pkgutil.iter_modules(folder)]
    found = {name.replace("_", "-"): one for name in names if (one := _held_by(name))}
    order = list(GROUPS)

    def place(item: tuple[str, click.Command]) -> tuple[int, int, str]:
        name, one = item
        if not isinstance(one, Command) or one.group not in GROUPS:
            return (len(order), 0, name)
        return (order.index(one.group), one.order, name)

    return dict(sorted(found.items(), key=place))


def find(name: str) -> click.Command | None:
    """The command of a name, whose module alone is loaded; None where there is none."""
    module = name.replace("-", "_")
    if "_" in name or not module.isidentifier() or find_spec(f"{_PACKAGE}.{module}") is None:
        return None
    return _held_by(module)


def summary(one: click.Command) -> str:
    """The first sentence of a command's help."""
    paragraph = " ".join((one.help or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]


def by_group() -> dict[str, dict[str, click.Command]]:
    """Heading -> its commands, as ``stepscope --help`` shows them."""
    found: dict[str, dict[str, click.Command]] = {}
    for name, one in commands().items():
        group = one.group if isinstance(one, Command) else ""
        heading = f"{group} ({GROUPS[group]})" if group in GROUPS else "Other"
        found.setdefault(heading, {})[name] = one
    return found


def _held_by(module: str) -> click.Command | None:
    held = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), "command", None)
    return held if isinstance(held, click.Command) else None
