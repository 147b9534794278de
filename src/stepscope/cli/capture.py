"""``stepscope capture``."""

from __future__ import annotations

import click

from stepscope.cli import options, registry

_ACTIONS = {
    "start PID": "Begin recording in a program that 'stepscope run' started with the collector "
    "(--paused starts it without recording). PID is any of its processes, that of stepscope run, "
    "or the run's folder. The run must still be running.",
    "stop PID": "Stop recording there.",
    "dump PID": "Write what has been recorded up to now (with run --ring, the last seconds) "
    "as traces in a new folder, while the program runs on.",
    "finalise FOLDER": "Read the raw files of a run into traces next to them, then remove them "
    "(not after run --keep-raw, or if a rank cannot be read: exit code 2).",
}


@registry.command(
    "Capture",
    order=2,
    examples={
        "stepscope capture start 4711": "begin recording in a program that runs",
        "stepscope capture dump run1": "read what has been recorded up to now",
        "stepscope capture finalise run1": "read the raw files of a killed run",
    },
    cls=options.WithActions,
    actions=_ACTIONS,
)
@click.argument(
    "action", type=click.Choice([action.split()[0] for action in _ACTIONS]), metavar="ACTION"
)
@click.argument("target", metavar="PID|FOLDER")
@options.formats(options.TEXT, "json")
def command(action: str, target: str, format_: str) -> int:
    """Control a running capture, or recover one whose launcher was killed."""
    from stepscope.api.recording import dump_capture, finalise_capture, order_capture

    traces, whole = [], True
    if action in ("finalise", "dump"):
        found, whole = (finalise_capture if action == "finalise" else dump_capture)(target, _say)
        traces = [str(trace) for trace in found]
    else:
        order_capture(action, target)
    if format_ == "json":
        import msgspec

        document = {"schema": "stepscope.capture/1", "action": action, "traces": traces}
        options.write(msgspec.json.encode(document).decode() + "\n")
    else:
        options.write("".join(f"{trace}\n" for trace in traces))
    return 0 if whole else 2


def _say(text: str) -> None:
    click.echo(f"stepscope: {options.plain(text)}", err=True)
