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
    help="cause: sums by cause, what ended the gap and range; gap: every single gap. People are "
    "shown the longest gaps below the sums as well.",
)
@click.option("--only-step", type=int, help="Only this steady step; all of them by default.")
@click.option("--rank", type=int, help="Only this rank; all by default.")
@click.option(
    "--sort",
    type=click.Choice(("total", "longest", "count", "length", "start")),
    help="Of sums: total (default), longest gap, or count of gaps; of single gaps: length "
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
    """Show the idle time of the GPUs: what caused it, what ended it, where the host was.

    A gap is a stretch of the steady steps in which a GPU executes nothing. It ends with an
    operation, which a call launched; the range, operator, call and Python are those that the
    launching process was in for most of it. Where a gap is charged to several causes, the sums
    hold each part under its cause. They add up to the idle time of the steps exactly.

    Times are ms, and ns in csv and json.
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
        if format_ in ("column", "markdown"):
            single = job.idle_gaps("gap", step=only_step, rank=rank).slice(0, _SINGLE)
        summary = (render.sums_text(single), render.sums_markdown(single))
        options.write_view(table, format_, "stepscope.gaps/1", limit, *summary)
    options.warn_of_problems(job)
