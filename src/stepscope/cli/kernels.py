"""``stepscope kernels``."""

from __future__ import annotations

import click

from stepscope.cli import options


@click.command()
@options.paths
@options.formats(*options.TABLE_FORMATS)
@options.again
def command(paths: tuple[str, ...], format_: str, again: bool) -> None:
    """Show the kernels of the steady steps by family and name, the longest time first.

    Times are ns, summed over all devices; per step they are means of one device. Kernels that run
    at the same time count each. Bytes are those that copies recorded, and those that PyTorch's
    contiguous elementwise kernels move by their type and launch; other kernels show none.
    """
    from stepscope.session import Session

    session = Session(paths, again=again)
    options.write_table(session.kernels(), format_, "stepscope.kernels/1")
    options.warn_of_problems(session)
