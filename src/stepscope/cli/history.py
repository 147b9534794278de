"""``stepscope history``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from stepscope.cli import options, registry

_ACTIONS = {
    "add PATH...": "Record captures, each PATH being one run (a folder holds its ranks).",
    "list": "Show what was recorded; with --format csv, json or parquet, export it.",
    "plot": "Draw a metric over the runs, with its change points.",
    "bisect": "Name the two runs between which it changed, what moved, and the revision to "
    "measure next.",
    "keep": "Remove all but the latest runs.",
    "copy": "Add to another history what it does not have.",
    "log": "Send recorded runs to an experiment tracker.",
}


@registry.command(
    "Compare",
    order=3,
    examples={
        "stepscope history add run1 --name gpt": "record a run",
        "stepscope history plot --name gpt": "the step time over commits",
        "stepscope history bisect --name gpt": "between which two runs it changed",
    },
    cls=options.WithActions,
    actions=_ACTIONS,
)
@click.argument(
    "action", type=click.Choice([action.split()[0] for action in _ACTIONS]), metavar="ACTION"
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option(
    "--file",
    metavar="FILE|FOLDER|URL",
    envvar="STEPSCOPE_HISTORY",
    default="stepscope-history.sqlite",
    show_default=True,
    help="The history: an SQLite file, a folder (or an fsspec URL) of Parquet files, or "
    "postgresql://USER@HOST/DATABASE. $STEPSCOPE_HISTORY is another default.",
)
@click.option(
    "--name",
    default="",
    help="Name of what was run; runs of one name form a series.",
    metavar="NAME",
)
@click.option(
    "--revision",
    help="Revision of the code; by default that of the Git repository in the working directory.",
    metavar="REVISION",
)
@click.option("--label", default="", help="Free text stored with the run.", metavar="TEXT")
@click.option(
    "--figure",
    default="step_ms",
    show_default=True,
    help="Metric to plot, by the name of a budget.",
    metavar="NAME",
)
@click.option(
    "--good",
    default="",
    help="Earlier end for bisect; by default the first run.",
    metavar="REVISION",
)
@click.option(
    "--bad", default="", help="Later end for bisect; by default the last run.", metavar="REVISION"
)
@click.option(
    "--skip",
    multiple=True,
    help="Revision that bisect cannot measure; can be repeated.",
    metavar="REVISION",
)
@click.option(
    "--by",
    type=click.Choice(("commits", "added")),
    default="commits",
    show_default=True,
    help="Order of plot: that of the commits where Git knows them, or that of adding.",
)
@click.option("--to", "target", default="", help="History that copy writes to, as for --file.")
@click.option(
    "--log",
    "trackers",
    multiple=True,
    metavar="NAME[=WHERE]",
    help="Also send the metrics to tensorboard (=FOLDER), mlflow (=URI) or wandb (=PROJECT).",
)
@click.option(
    "--latest",
    type=click.IntRange(1, 1_000_000_000),
    help="keep: how many runs of each name to keep; log: how many to send, by default all.",
    metavar="N",
)
@options.formats(options.TEXT, "json", "csv", "html", "parquet")
@click.option("--output", "-o", type=click.Path(), help="Write to this file.")
def command(
    action: str,
    paths: tuple[str, ...],
    file: str,
    name: str,
    revision: str | None,
    label: str,
    figure: str,
    good: str,
    bad: str,
    skip: tuple[str, ...],
    by: str,
    target: str,
    trackers: tuple[str, ...],
    latest: int | None,
    format_: str,
    output: str | None,
) -> None:
    """Keep the metrics of runs over time, and find when they changed."""
    from stepscope.api import history as offered
    from stepscope.render import history as render
    from stepscope.trace.errors import UsageError

    offers = _FORMATS.get(action, (options.TEXT, "json"))
    if format_ not in offers:
        raise UsageError(f"history {action} has no --format {format_}; it has {', '.join(offers)}")
    if output is not None and action not in _FORMATS:
        raise UsageError(f"history {action} writes no file; leave --output out")
    if bool(paths) != (action == "add"):
        raise UsageError(
            "history add needs captures, as in stepscope history add run1"
            if action == "add"
            else f"history {action} takes no PATH; leave it out"
        )
    _refuse_unused(action)
    _refuse_memory(file, target)
    if action == "add":
        offered.send_to(trackers, ())  # a package that is missing is told before anything is added
        entries = offered.history_add(file, paths, name=name, revision=revision, label=label)
        # only then: a tracker that fails costs no entry
        offered.send_to(trackers, _added(entries, format_))
    elif action == "list":
        _list(file, name, format_, output)
    elif action == "plot":
        plot = offered.history_plot(file, name, figure, added=by == "added")
        if format_ == "json":
            options.write_to(options.as_json(plot), output)
        else:
            from stepscope.render.fitted import terminal_width

            width = terminal_width() if output is None else None
            page = render.plot_html(plot) if format_ == "html" else render.plot_text(plot, width)
            options.write_to(page, output)
    elif action == "bisect":
        _say(action, offered.history_bisect(file, name, figure, good, bad, skip), format_)
    else:
        _say(action, _manage(action, file, name, target, trackers, latest), format_)


def _added(entries: Iterable[Any], format_: str) -> list[Any]:
    """What was added, said one after the other: each takes its time."""
    added = []
    for entry in entries:
        added.append(entry)
        if format_ == options.TEXT:
            step = f"{entry.figures['step_ms']:,.3f} ms"
            options.write(f"entry {entry.id}: {options.plain(entry.name)}, step {step}\n")
    if format_ == "json":
        options.write(options.as_json({"schema": _ENTRIES, "entries": added}))
    return added


def _say(action: str, done: str, format_: str) -> None:
    """What an action did or advises, in words."""
    if format_ == "json":
        document = {"schema": "stepscope.history-action/1", "action": action}
        options.write(options.as_json({**document, "message": done.strip()}))
        return
    from stepscope.render.fitted import terminal_width, wrapped

    lines = [line for text in done.splitlines() for line in wrapped(text, terminal_width())]
    options.write("\n".join(lines) + "\n")


_USED = {
    "add": ("name", "revision", "label", "trackers"),
    "list": ("name",),
    "plot": ("name", "figure", "by"),
    "bisect": ("name", "figure", "good", "bad", "skip"),
    "keep": ("name", "latest"),
    "copy": ("target",),
    "log": ("name", "trackers", "latest"),
}
"""Options that an action heeds, beside those that are about files and formats."""


def _refuse_unused(action: str) -> None:
    """Refuse options that the action would pass over: their user expects them to count."""
    from click.core import ParameterSource

    from stepscope.trace.errors import UsageError

    context = click.get_current_context()
    known = {name for names in _USED.values() for name in names}
    for parameter in context.command.params:
        name = str(parameter.name)
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name in known - set(_USED[action]):
            raise UsageError(f"history {action} has no {parameter.opts[0]}; leave it out")


def _refuse_memory(*places: str) -> None:
    """Refuse places that end with this process: what is written there is gone at once."""
    from stepscope.trace.errors import UsageError

    for place in places:
        if "memory://" in place or place.startswith("memory:"):
            raise UsageError(
                f"{place} is in the memory of this process, and gone with it; name a file, "
                "a folder, or the URL of an object store or a server"
            )


def _manage(
    action: str, file: str, name: str, target: str, trackers: tuple[str, ...], latest: int | None
) -> str:
    from stepscope.api import history as offered
    from stepscope.render.text import plural
    from stepscope.trace.errors import UsageError

    if action == "copy":
        if not target:
            raise UsageError("history copy needs --to, as in --to postgresql://HOST/DATABASE")
        if target == file or options.same_file(target, file):
            raise UsageError(f"--to is {target} itself; name another history")
        count, new = offered.history_copy(file, target)
        return f"{new} of {plural(count, 'run')} copied" + (
            ""
            if new == count
            else f"; {count - new:,} {'was' if count - new == 1 else 'were'} there"
        )
    if action == "log":
        if not trackers:
            raise UsageError("history log needs --log, as in --log tensorboard=runs")
        return f"{plural(offered.history_log(file, name, trackers, latest), 'run')} sent"
    if latest is None:
        raise UsageError("history keep needs --latest, as in --latest 200")
    return f"{plural(offered.history_keep(file, latest, name), 'run')} removed"


_FORMATS = {
    "list": (options.TEXT, "json", "csv", "parquet"),
    "plot": (options.TEXT, "json", "html"),
}
"""Formats of the actions that have more than text and JSON."""
_ENTRIES = "stepscope.history/1"


def _list(file: str, name: str, format_: str, output: str | None) -> None:
    from stepscope.api.history import history_entries, history_parquet
    from stepscope.render import history as render

    entries = history_entries(file, name)
    if name and not entries:
        from stepscope.trace.errors import UsageError

        raise UsageError(f"no run of {name!r} is in {file}; history list shows all of them")
    if output is not None:
        options.refuse_inputs(output)
    if format_ == "parquet":
        history_parquet(entries, output)
    elif format_ == "csv":
        options.write_to(render.entries_csv(entries), output)
    elif format_ == "json":
        document = {"schema": _ENTRIES, "entries": entries}
        options.write_to(options.as_json(document), output)
    else:
        from stepscope.render.fitted import terminal_width

        width = terminal_width() if output is None else None
        options.write_to(render.entries_text(entries, width), output)
