"""``stepscope comm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Look",
    order=8,
    examples={
        "stepscope comm run1": "a folder with all ranks",
        "stepscope comm run1 --by rank": "one row a rank",
    },
)
@options.paths
@options.formats(*options.TABLE_FORMATS)
@click.option(
    "--by",
    type=click.Choice(("operation", "rank", "instance", "split")),
    default="operation",
    show_default=True,
    help="What a row is: operation: one type of collective in a group; rank: one rank (formats "
    "other than csv show both); instance: one collective on one rank; split: what "
    "all-to-alls send from one rank to another.",
)
@options.opening
def command(paths: tuple[str, ...], format_: str, by: str, opening: OpenOptions) -> None:
    """Show the communication of a job: waiting, transferring, bandwidth, late ranks.

    Give the captures of all ranks together: only then can the time in which a rank waits inside a
    collective for the last one be separated from the time in which data moves. Values are about the
    steady steps that all ranks share.

    Bandwidths count the transfer only, as nccl-tests defines them. They need message sizes, which
    torch.profiler records and Nsight Systems does not.

    --by split shows how much each rank sends to each other in all-to-alls, which reveals a rank
    that gets more than the others.
    """
    from stepscope.api import Job
    from stepscope.render import comm
    from stepscope.render.fitted import terminal_width

    job = Job(paths, **opening)
    if by in ("instance", "split"):
        table = job.collective_instances() if by == "instance" else job.all_to_all_splits()
        options.write(comm.rows_as(table, by, format_, terminal_width()))
        options.warn_of_problems(job)
        return
    found = job.communication
    if format_ == "csv":
        options.write(comm.as_csv(found, by))
    elif format_ == "json":
        options.write(comm.as_json(found))
    elif format_ == "markdown":
        options.write(comm.as_markdown(found))
    else:
        options.write(comm.as_columns(found, terminal_width()))
    options.warn_of_problems(job)
