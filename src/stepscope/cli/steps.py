"""``stepscope steps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.session import OpenOptions


@click.command()
@options.paths
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(paths: tuple[str, ...], format_: str, opening: OpenOptions) -> None:
    """Show every step: length, and where its time goes on the device.

    Times are ns. The parts (compute, exposed communication, exposed copy, memset, idle) sum to
    the length exactly.
    """
    from stepscope.session import Session

    session = Session(paths, **opening)
    options.write_table(session.steps(), format_, "stepscope.steps/1")
    options.warn_of_problems(session)
    if format_ == "column":
        from stepscope.render.text import clean

        for rank, explanation in session.explanations:
            notes = [explanation.steps.message, explanation.set_aside]
            said = "; ".join(note for note in notes if note)
            line = f"rank {rank} device {explanation.lane.device}: {said}"
            click.echo(clean(line, 400), err=True)
