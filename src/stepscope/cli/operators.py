"""``stepscope operators``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.session import OpenOptions

_GROUPINGS = ("operator", "inner", "range", "module", "source", "family")


@click.command()
@options.paths
@click.option(
    "--by",
    type=click.Choice(_GROUPINGS),
    default=None,
    help="operator: outermost framework operator; inner: innermost; range: innermost annotation; "
    "module, source: from Python stacks; family: kind of kernel. By default operators where the "
    "capture holds them, else ranges.",
)
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(paths: tuple[str, ...], by: str | None, format_: str, opening: OpenOptions) -> None:
    """Show what the device time of the steady steps belongs to, the longest time first.

    A kernel belongs to what was open on the launching thread at its launch. Kernels of the
    backward pass get the module and line of their forward operator. Times are ns, summed over all
    devices; per step they are means of one device.
    """
    from stepscope.session import Session

    session = Session(paths, **opening)
    options.write_table(session.operators(by or ""), format_, "stepscope.operators/1")
    options.warn_of_problems(session)
