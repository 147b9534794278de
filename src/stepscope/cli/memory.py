"""``stepscope memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@click.command()
@options.paths
@click.option(
    "--at",
    type=click.Choice(("peak", "oom", "end")),
    default="peak",
    show_default=True,
    help="Moment at which to show who holds memory.",
)
@click.option(
    "--by",
    type=click.Choice(("holder", "step", "time")),
    default="holder",
    show_default=True,
    help="What a row of --format csv is.",
)
@options.limit
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(
    paths: tuple[str, ...],
    at: str,
    by: str,
    limit: int | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Show GPU memory: over time by category, who held it at the peak, growth, fragmentation.

    Reads traces of torch.profiler with profile_memory=True, memory snapshots of PyTorch
    (torch.cuda.memory._dump_snapshot; nothing in the pickle is run), and captures with the driver's
    allocations. Sizes are MiB, and bytes in csv and json.
    """
    from stepscope.api import Job
    from stepscope.render import memory
    from stepscope.render.fitted import terminal_width

    job = Job(paths, **opening)
    found = job.memory(at)
    rows = memory.shown_rows(limit)
    if format_ == "csv":
        options.write(memory.as_csv(found, by, limit or 0))
    elif format_ == "json":
        options.write(memory.as_json(found))
    elif format_ == "markdown":
        options.write(memory.as_markdown(found, rows))
    else:
        options.write(memory.as_text(found, rows, terminal_width()))
    options.warn_of_problems(job)
