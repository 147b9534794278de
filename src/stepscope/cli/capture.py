"""``stepscope capture``."""

from __future__ import annotations

import click


@click.command()
@click.argument("action", type=click.Choice(["start", "stop", "finalise"]))
@click.argument("target")
def command(action: str, target: str) -> None:
    """Steer a capture that runs, or read one whose launcher did not live to do it.

    "start PID" and "stop PID" begin and end recording in a program that 'stepscope run' started
    (--paused lets it start without recording); PID is any of its processes, or the launcher.
    "finalise FOLDER" reads the raw files of a run into traces.
    """
    if action == "finalise":
        from stepscope.recording import finalise_capture

        for trace in finalise_capture(target):
            click.echo(trace)
        return
    from stepscope.recording import order_capture

    order_capture(action, target)
