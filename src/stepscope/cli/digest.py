"""``stepscope digest``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions
    from stepscope.api.items import Engine


@registry.command(
    "Jobs",
    order=1,
    examples={
        "stepscope digest run.rank3.sqlite -o digests": "on each rank, where its capture lies",
        "stepscope digest captures/ -o digests": "a folder of captures, one file each",
    },
)
@options.paths
@click.option(
    "-o",
    "--output",
    default="digests",
    show_default=True,
    type=click.Path(readable=False),
    help="Folder of the digests, one file a capture.",
)
@click.option("--strict", is_flag=True, help="One capture that cannot be read is an error.")
@options.formats(options.TEXT, "json")
@options.spread
@options.opening
def command(
    paths: tuple[str, ...],
    output: str,
    strict: bool,
    format_: str,
    engine: Engine,
    opening: OpenOptions,
) -> None:
    """Summarise the capture of each rank, so that it need not travel.

    A digest holds what the diagnosis of a job needs from one rank, in some 30 KB: times of steps,
    collectives and kernels, idle time by cause, the host's pace, clocks. Each rank is looked at by
    itself; stepscope job puts them together. A PATH may be a URL that fsspec knows (S3, GCS, HTTP),
    also with *. A capture that cannot be read is left out and named, the digests of the others
    stay, and the exit code is then 1; without a single digest, or with --strict, it is an error
    (2). What was interrupted goes on when the same command is given again.
    """
    import json

    from stepscope.api.digest_making import digest_captures
    from stepscope.render.text import clean

    written, skipped = digest_captures(paths, Path(output), opening, strict=strict, engine=engine)
    if format_ == "json":
        rows = [{"path": str(path), "bytes": path.stat().st_size} for path in written]
        left = [{"path": one.path, "reason": one.reason} for one in skipped]
        found = {"schema": "stepscope.digest/1", "digests": rows, "skipped": left}
        options.write(json.dumps(found) + "\n")
    else:
        for path in written:
            options.write(f"{clean(str(path))}  {path.stat().st_size / 1000:.0f} KB\n")
    for one in skipped:
        click.echo(f"left out: {clean(one.path)}: {clean(one.reason, 400)}", err=True)
    if skipped:
        raise click.exceptions.Exit(options.INCOMPLETE)
