"""``stepscope steps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Look",
    order=2,
    examples={
        "stepscope steps run1": "the first steps",
        "stepscope steps run1 --format csv": "all of them, in ns",
        "stepscope steps run1 --brief": "all of them in ms, for agents",
    },
)
@options.paths
@options.limit
@options.formats(*options.TABLE_FORMATS)
@click.option("--brief", is_flag=True, help="Print compact JSON for agents: ms, one row a step.")
@options.opening
def command(
    paths: tuple[str, ...], limit: int | None, format_: str, brief: bool, opening: OpenOptions
) -> None:
    """Show every step: its length, and where its time goes on the GPU.

    Times are in ms; csv and json have them in ns, and more columns. The parts (compute, exposed
    communication, exposed copy, memset, idle) sum to the length exactly.
    """
    from stepscope.api import Job
    from stepscope.render import views

    job = Job(paths, **opening)
    table = job.steps
    if format_ in (options.TEXT, "markdown") or brief:
        ahead = job.explained.steps_ahead
        table = views.in_step_order(table, ahead)
    if brief:
        options.write(views.steps_brief(table, limit))
        return
    shown = (views.steps_text, views.steps_markdown)
    options.write_view(table, format_, "stepscope.steps/1", limit, *shown)
    options.warn_of_problems(job)
    if format_ == options.TEXT:
        from stepscope.render.text import clean

        first = next(iter(ahead), 0)
        for rank, explanation in job.explained.explanations:
            notes = [explanation.steps.message, explanation.set_aside]
            if ahead.get(rank):
                later = max(ahead[rank], 0)
                notes.append(f"its step {later - ahead[rank]} is step {later} of rank {first}")
            stated = "; ".join(note for note in notes if note)
            line = f"rank {rank} device {explanation.gpu.device}: {stated}"
            click.echo(clean(line, 400), err=True)
