"""``stepscope phases``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Look",
    order=3,
    examples={
        "stepscope phases run1": "the mean steady step",
        "stepscope phases run1 --python": "where Python spends it",
    },
)
@options.paths
@click.option("--each", is_flag=True, help="Also show every steady step.")
@click.option(
    "--python",
    is_flag=True,
    help="Show where Python spends the steps: functions or lines by phase and thread, the GIL, "
    "the garbage collector.",
)
@options.limit
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(
    paths: tuple[str, ...],
    each: bool,
    python: bool,
    limit: int | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Show the phases of a step: dataload, copies, forward, backward, optimizer, other.

    GPU time and idle time of all phases add up to the step exactly, CPU time to the step on the
    CPU. Phases are found by NVTX ranges, else by autograd's operators and threads, else by the
    kernels and the order of launches; the last column says which. Times are in ms per step; in csv
    and json in ns.
    """
    from stepscope.api import Job
    from stepscope.render import phases as render
    from stepscope.render.fitted import SHOWN_ROWS, terminal_width

    job = Job(paths, **opening)
    shown = SHOWN_ROWS if limit is None else limit
    width = terminal_width()
    if python:
        report = job.python_time()
        if format_ == options.TEXT:
            options.write(render.python_text(report, shown, width))
        elif format_ == "markdown":
            options.write(render.python_markdown(report, shown))
        elif format_ == "csv":
            table = render.python_table(report)
            options.write_table(table.slice(0, limit or None), format_, report.schema)
        else:
            options.write(options.as_json(report))
    else:
        found = job.phases()
        if format_ == options.TEXT:
            options.write(render.phases_text(found, shown, width, each=each))
        elif format_ == "markdown":
            options.write(render.phases_markdown(found, shown, each=each))
        elif format_ == "csv":
            table = render.phases_table(found)
            options.write_table(table.slice(0, limit or None), format_, found.schema)
        else:
            options.write(options.as_json(found))
    options.warn_of_problems(job)
