"""``stepscope demo``."""

from __future__ import annotations

from pathlib import Path

import click

from stepscope.cli import options, registry
from stepscope.cli.diagnose import show


@registry.command(
    "Explain",
    order=7,
    examples={
        "stepscope demo": "no GPU and no capture needed",
        "stepscope demo --copy captures": "the captures of the tutorials",
    },
)
@click.option("--list", "listing", is_flag=True, help="List the bundled captures.")
@click.option(
    "--copy",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Unpack all bundled captures into FOLDER, for the tutorials of the documentation.",
)
@options.formats(options.TEXT, "json", "markdown")
def command(listing: bool, folder: Path | None, format_: str) -> None:
    """Diagnose a bundled capture: a GPT trained on one H200, with a slow data loader."""
    if listing or folder is not None:
        from stepscope.api.bundled import copy_bundled

        if folder is not None:
            copy_bundled(folder)
        _list(format_)
        return
    from stepscope.api.inputs import bundled_capture

    show((str(bundled_capture()),), format_)


def _list(format_: str) -> None:
    """Print the names of the bundled captures and what each shows."""
    from stepscope.api.bundled import CAPTURES
    from stepscope.render.fitted import terminal_width, wrapped

    if format_ == "json":
        captures = [{"name": capture.name, "about": capture.about} for capture in CAPTURES]
        options.write(options.as_json({"schema": "stepscope.demo/1", "captures": captures}))
        return
    if format_ == "markdown":
        options.write("".join(f"- `{one.name}`: {one.about}\n" for one in CAPTURES))
        return
    width = max(len(capture.name) for capture in CAPTURES)
    for capture in CAPTURES:
        text = f"{capture.name:{width}}  {capture.about}"
        options.write("\n".join(wrapped(text, terminal_width(), hang=width + 2)) + "\n")
