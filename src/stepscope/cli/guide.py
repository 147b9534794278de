"""``stepscope guide``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.knowledge.guidance import Guidance


_CAPTURES = (".sqlite", ".json", ".json.gz", ".json.zst", ".nsys-rep", ".ncu-rep", ".xplane.pb")


def _goals(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from stepscope.api.guide import guide_goals

    return [goal.id for goal in guide_goals().goals if goal.id.startswith(incomplete)]


@registry.command(
    "Explain",
    order=5,
    examples={
        "stepscope guide": "a short conversation",
        "stepscope guide --goal idle_gpu": "the ways to find out",
        "stepscope guide --goal scaling -- torchrun train.py": "with the commands for that program",
        "stepscope guide --goal variance --capture run1 -f json": "with a capture, for scripts",
    },
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--goal",
    default="",
    metavar="GOAL",
    shell_complete=_goals,
    help="What you want to know: a name or a number of the list, or words such as 'idle gpu'.",
)
@click.option(
    "--capture",
    "captures",
    multiple=True,
    type=click.Path(readable=False),
    metavar="PATH",
    help="A capture that you have; repeat it for the ranks of a job. What it answers comes first.",
)
@click.option("--json", "as_json", is_flag=True, hidden=True)  # its name in earlier versions
@options.formats(options.TEXT, "json")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(
    goal: str, captures: tuple[str, ...], as_json: bool, format_: str, program: tuple[str, ...]
) -> None:
    """Say which tool answers a question, with the commands for this machine.

    For each way: when it is the right one, the commands to type, what to look for in the result,
    what recording costs, and what comes next. What this machine lacks for it is said, as stepscope
    doctor finds it. Give your program after --, and its commands hold it.

    In a terminal, without --goal, it asks; else it prints the list of goals.
    """
    from stepscope.api.guide import guide, guide_goals

    for text in program[:1]:
        if text.endswith(_CAPTURES):
            raise click.UsageError(f"{text} is no program; give a capture as --capture {text}")
    in_json = as_json or format_ == "json"
    if goal:
        answer = guide(goal, program, captures)
        options.write(options.as_json(answer) if in_json else _text(answer))
        return
    known = guide_goals()
    if in_json:
        options.write(options.as_json(known))
        return
    from stepscope.render.fitted import prose_width
    from stepscope.render.guide import goals_text

    options.write(goals_text(known, prose_width()))
    if sys.stdin.isatty() and sys.stdout.isatty():
        _converse(program, captures)


def _converse(program: tuple[str, ...], captures: tuple[str, ...]) -> None:
    """Ask for goals until there is no answer; Ctrl+D and an empty line end it."""
    from stepscope.api.guide import guide
    from stepscope.trace.errors import StepscopeError

    while True:
        asked = _answer("\nNumber or words (Enter ends)")
        if not asked:
            return
        try:
            options.write("\n" + _text(guide(asked, program, captures)))
        except StepscopeError as error:
            from stepscope.render.fitted import prose_width, wrapped

            lines = wrapped(options.plain(str(error)), prose_width())
            options.write("\n".join(lines) + "\n")


def _answer(question: str) -> str:
    try:
        return str(click.prompt(question, default="", show_default=False)).strip()
    except click.Abort:  # Ctrl+D: the conversation is over
        options.write("\n")
        return ""


def _text(answer: Guidance) -> str:
    from stepscope.render.fitted import prose_width
    from stepscope.render.guide import guidance_text

    return guidance_text(answer, prose_width())
