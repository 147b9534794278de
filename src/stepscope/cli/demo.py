"""``stepscope demo``."""

from __future__ import annotations

import click

from stepscope.cli import options
from stepscope.cli.diagnose import show


@click.command()
@options.formats("terminal", "json", "markdown")
def command(format_: str) -> None:
    """Diagnose the bundled real trace: a GPT trained on one H200, with a slow data loader."""
    from stepscope.api.inputs import bundled_capture

    show((str(bundled_capture()),), format_)
