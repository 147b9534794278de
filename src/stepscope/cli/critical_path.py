"""``stepscope critical-path``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Explain",
    order=3,
    examples={
        "stepscope critical-path run1": "all steady steps",
        "stepscope critical-path run1 --only-step 7": "one step",
    },
)
@options.paths
@click.option(
    "--only-step",
    type=int,
    help="Only this step; by default all replayed steady steps.",
    metavar="N",
)
@options.formats(options.TEXT, "json", "csv")
@options.opening
def command(
    paths: tuple[str, ...], only_step: int | None, format_: str, opening: OpenOptions
) -> None:
    """Show the critical path: what decided how long the steps took.

    It is the chain of CPU work, launches, kernels, copies and waits that ended each step; making
    anything else faster gains nothing. Its parts sum to the steps exactly. CSV has one row per step
    and type.
    """
    from stepscope.api import Job

    job = Job(paths, **opening)
    result = job.critical_path(only_step)
    if format_ == "json":
        options.write(options.as_json(result))
    elif format_ == "csv":
        from stepscope.render.simulation import critical_path_csv

        options.write(critical_path_csv(result))
    else:
        from stepscope.render.fitted import terminal_width
        from stepscope.render.simulation import critical_path_text

        options.write(critical_path_text(result, terminal_width()))
    options.warn_of_problems(job)
