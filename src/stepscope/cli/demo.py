"""``stepscope demo``."""

from __future__ import annotations

import lzma
import tempfile
from importlib import resources
from pathlib import Path

import click

from stepscope.cli import options
from stepscope.cli.diagnose import show

_NAME = "h200_input_starvation.sqlite"


@click.command()
@options.formats("terminal", "json", "markdown")
def command(format_: str) -> None:
    """Diagnose the bundled real trace: a GPT trained on one H200, with a slow data loader."""
    packed = resources.files("stepscope.data").joinpath(f"{_NAME}.xz").read_bytes()
    with tempfile.TemporaryDirectory(prefix="stepscope-demo-") as folder:
        capture = Path(folder) / _NAME
        capture.write_bytes(lzma.decompress(packed))
        show((str(capture),), format_)
