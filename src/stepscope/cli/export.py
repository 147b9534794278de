"""``stepscope export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli import options
from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@click.command()
@options.paths
@click.option(
    "--type",
    "-t",
    "kind",
    type=click.Choice(["perfetto", "chrome", "speedscope"]),
    required=True,
    help="Format of the file.",
)
@click.option(
    "--output", "-o", type=click.Path(), required=True, help="File to write; .gz packs it."
)
@click.option(
    "--counters", is_flag=True, help="Add the queue length of each stream and copy bandwidths."
)
@click.option("--critical-path", is_flag=True, help="Draw what decided how long the steps took.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@options.formats("text", "json")
@options.opening
def command(
    paths: tuple[str, ...],
    kind: str,
    output: str,
    counters: bool,
    critical_path: bool,
    force: bool,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Write the timeline for another viewer.

    Tracks, launch arrows and counters are those of `stepscope ui`, with steps and with idle time
    by cause. `perfetto` and `chrome` open in Perfetto, `speedscope` in speedscope. --counters adds
    how many operations wait in each stream's queue, and the bandwidth of copies; --critical-path
    draws the chain of work and waits that decided how long the steps took. Nothing is printed, but
    with --format json one line that says what was written.
    """
    import gzip

    from stepscope.api import Job

    path = Path(output)
    if path.is_dir():
        raise UsageError(f"{output} is a folder; name a file")
    if path.exists() and not force:
        raise UsageError(f"{output} exists; --force overwrites it")
    options.refuse_inputs(output)
    parts = Job(paths, **opening).exported(kind, counters=counters, critical_path=critical_path)
    try:
        with gzip.open(path, "wb", 6) if path.suffix == ".gz" else path.open("wb") as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise StorageError(
            f"cannot write {output}: {error.strerror}; choose another file"
        ) from error
    if format_ == "json":
        written = {"schema": "stepscope.export/1", "type": kind, "file": output}
        options.write(json.dumps(written) + "\n")
