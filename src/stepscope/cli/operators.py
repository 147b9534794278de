"""``stepscope operators``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.api import OpenOptions

_GROUPINGS = ("operator", "inner", "range", "module", "source", "category")


@click.command()
@options.paths
@click.option(
    "--by",
    type=click.Choice(_GROUPINGS),
    default=None,
    help="operator: outermost framework operator; inner: innermost; range: innermost annotation; "
    "module, source: from Python stacks; category: kind of kernel. By default operators where the "
    "capture holds them, else ranges.",
)
@options.limit
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(
    paths: tuple[str, ...],
    by: str | None,
    limit: int | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Show what the device time of the steady steps belongs to, the longest time first.

    A kernel belongs to what was open on the launching thread at its launch. Kernels of the
    backward pass get the module and line of their forward operator. Times are ms, and ns in csv
    and json: in total those of all devices, per step the mean of one device.
    """
    from stepscope.api import Job
    from stepscope.render import views

    job = Job(paths, **opening)
    shown = (views.operators_text, views.operators_markdown)
    table = job.operators(by or "")
    options.write_view(table, format_, "stepscope.operators/1", limit, *shown)
    options.warn_of_problems(job)
