"""``stepscope gaps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions

_SINGLE = 5
"""Single gaps that people are shown below the sums."""


@registry.command(
    "Look",
    order=4,
    examples={
        "stepscope gaps run1": "sums by cause, and the longest gaps",
        "stepscope gaps run1 --by gap --only-step 7": "every gap of one step",
    },
)
@options.paths
@click.option(
    "--by",
    type=click.Choice(("cause", "gap")),
    default="cause",
    show_default=True,
    help="cause: totals by cause, by what ended the gap and by range, with the longest gaps "
    "below; gap: every single gap.",
)
@click.option("--only-step", type=int, help="Only this steady step; by default all.", metavar="N")
@click.option("--rank", type=int, help="Only this rank; by default all.", metavar="N")
@click.option(
    "--sort",
    type=click.Choice(("total", "longest", "count", "length", "start")),
    help="Totals are sorted by total (default), longest gap or count; single gaps by length "
    "(default) or start.",
)
@options.limit
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(
    paths: tuple[str, ...],
    by: str,
    only_step: int | None,
    rank: int | None,
    sort: str | None,
    limit: int | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Show the idle time of the GPUs: its causes, what ended each gap, where the CPU was.

    A gap is a stretch of the steady steps in which a GPU executes nothing. It ends with an
    operation, which a call launched. Range, operator, call and Python function are those in which
    the launching process spent most of the gap. A gap with several causes is split between them,
    and all parts add up to the idle time of the steps exactly.

    Times are in ms; in csv and json in ns.
    """
    from stepscope.api import Job
    from stepscope.render import gaps as render

    job = Job(paths, **opening)
    table = job.idle_gaps(by, step=only_step, rank=rank, sort=sort or "")
    if by == "gap":
        shown = (render.gaps_text, render.gaps_markdown)
        options.write_view(table, format_, "stepscope.gap_list/1", limit, *shown)
    else:
        single = None
        if format_ in (options.TEXT, "markdown"):
            single = job.idle_gaps("gap", step=only_step, rank=rank).slice(0, _SINGLE)
        mean = len(job.explained.devices) if rank is None else 1
        summary = (render.sums_text(single, mean), render.sums_markdown(single, mean))
        options.write_view(table, format_, "stepscope.gaps/1", limit, *summary)
    options.warn_of_problems(job)
