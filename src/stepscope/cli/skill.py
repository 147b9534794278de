"""``stepscope skill``."""

from __future__ import annotations

from pathlib import Path

import click

from stepscope.cli import options, registry
from stepscope.trace.errors import UsageError

_ACTIONS = ("show", "install")


@registry.command(
    "Automate",
    order=2,
    examples={
        "stepscope skill show": "the instructions",
        "stepscope skill install": "write them into the skill folders of this project",
        "stepscope skill install --path ~/.claude/skills": "for all projects",
    },
)
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("file", default="")
@click.option(
    "--path",
    type=click.Path(readable=False),
    default="",
    help="Folder of skills to install into, such as ~/.claude/skills. By default .claude/skills "
    "and .agents/skills below the working directory, those whose parent is there.",
)
@options.formats(options.TEXT, "json")
def command(action: str, file: str, path: str, format_: str) -> None:
    """Show or install the instructions for coding agents that read skill files.

    They say what to capture, in which order to read a diagnosis, when to stop, and how a repair is
    confirmed. Files that were not made by this command, or were changed since, are left alone.
    """
    from stepscope.agent.skill import homes, install, skill_files

    if action == "show":
        files = skill_files()
        if file and file not in files:
            raise UsageError(f"the skill has no file {file!r}; it has {', '.join(files)}")
        name = file or "SKILL.md"
        if format_ == "json":
            document = {"schema": "stepscope.skill/1", "file": name, "text": files[name]}
            options.write(options.as_json(document))
        else:
            options.write(files[name])
        return
    if file:
        raise UsageError(f"install takes no {file!r}; name the folder with --path")
    folders = [Path(path).expanduser()] if path else homes(Path.cwd())
    installed = [one for folder in folders for one in install(folder)]
    if format_ == "json":
        files_json = [{"fate": one.fate, "path": str(one.path)} for one in installed]
        options.write(options.as_json({"schema": "stepscope.skill/1", "installed": files_json}))
        return
    for one in installed:
        click.echo(f"{one.fate:9} {one.path}")
