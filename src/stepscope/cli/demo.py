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
@options.formats("terminal", "json", "markdown")
def command(listing: bool, folder: Path | None, format_: str) -> None:
    """Diagnose a bundled capture: a GPT trained on one H200, with a slow data loader."""
    if listing or folder is not None:
        from stepscope.api.bundled import CAPTURES, copy_bundled

        if folder is not None:
            copy_bundled(folder)
        width = max(len(capture.name) for capture in CAPTURES)
        for capture in CAPTURES:
            click.echo(f"{capture.name:{width}}  {capture.about}")
        return
    from stepscope.api.inputs import bundled_capture

    show((str(bundled_capture()),), format_)
