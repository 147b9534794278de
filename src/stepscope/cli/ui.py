"""``stepscope ui``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry
from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    from stepscope.api import Job, OpenOptions
    from stepscope.api.runs import Pair


@registry.command(
    "Look",
    order=1,
    examples={
        "stepscope ui run1": "in the browser",
        "stepscope ui run1 --static page.html": "one file for a colleague",
        "stepscope ui --compare before after": "two runs, step beside step",
        "stepscope ui digests/": "a job of many ranks: heat map, ranks, their timelines",
    },
)
@options.paths
@options.formats(options.TEXT, "json")
@options.opening
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port to listen on; a free one by default.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option(
    "--static", type=click.Path(), help="Write one HTML file instead of serving.", metavar="FILE"
)
@click.option("--only-step", type=click.IntRange(0), help="With --static: only this step.")
@click.option(
    "--window",
    default="",
    help="With --static: only [start]/[end], as the axis shows them.",
    metavar="WINDOW",
)
@click.option("--force", is_flag=True, help="With --static: overwrite the file.")
@click.option(
    "--compare",
    is_flag=True,
    help="The two PATHs are an earlier and a later run, shown step beside step; each is a capture, "
    "or a folder with the ranks of a job.",
)
@click.option(
    "--topology",
    default="",
    metavar="FILE",
    type=click.Path(readable=False),
    help="With digests: JSON file of switches and rails, as for stepscope job.",
)
def command(
    paths: tuple[str, ...],
    format_: str,
    opening: OpenOptions,
    port: int,
    no_browser: bool,
    static: str | None,
    only_step: int | None,
    window: str,
    force: bool,
    compare: bool,
    topology: str,
) -> None:
    """Show the timeline in the browser, with the diagnosis beside it.

    Several PATHs are the ranks of one job, or with --compare two runs. Digests (stepscope digest),
    or folders of them, open the heat map of the job's ranks and steps, which leads to the timelines
    of those captures that lie there, too, or are named beside them. The server listens on the
    loopback interface only, at an address that holds a random token, and ends with Ctrl+C. With
    --static nothing is served: the file opens from disk anywhere. With --format json, one line has
    the address, or the file of --static.
    """
    options.import_numpy()
    _refuse_wrong_static(static, only_step, window, force=force)
    if compare and len(paths) != 2:
        raise UsageError(
            "--compare shows two runs: stepscope ui BEFORE AFTER --compare; the ranks of a run are "
            "given as a folder"
        )
    if compare and (only_step is not None or window):
        raise UsageError("--only-step and --window choose a time of one run; leave them out here")
    from stepscope.api.job_page import JobPage, shows_a_job

    of_digests = shows_a_job(paths)
    if of_digests:
        _refuse_for_digests(static, compare=compare)
    elif topology:
        raise UsageError("--topology is about digests; stepscope digest CAPTURES makes them")
    if static is not None:
        _write_page(static, paths, opening, compare=compare, window=window, only_step=only_step)
        if format_ == "json":
            options.write(_place(file=str(static)))
        return
    from stepscope.server.serve import serve

    shown = (
        JobPage(paths, topology=topology, options=opening)
        if of_digests
        else _captures(paths, opening, compare)
    )

    def ready(address: str) -> None:
        options.write(_place(address=address) if format_ == "json" else f"{address}\n")
        sys.stdout.flush()
        if not no_browser and not _opened(address):
            click.echo("no browser found here; open the address above", err=True)

    serve(shown, port, ready)


def _refuse_wrong_static(
    static: str | None, only_step: int | None, window: str, *, force: bool
) -> None:
    if static is None and (only_step is not None or window or force):
        raise UsageError("--only-step, --window and --force are about the file of --static")
    if only_step is not None and window:
        raise UsageError("--only-step and --window both choose a time; give one of them")
    if static is not None and Path(static).exists() and not force:
        raise UsageError(f"{static} exists; --force overwrites it")
    if static is not None:
        options.refuse_inputs(static)


def _refuse_for_digests(static: str | None, *, compare: bool) -> None:
    if compare:
        raise UsageError("--compare shows captures; these are digests: leave --compare out")
    if static is not None:
        raise UsageError(
            "--static is of captures; stepscope job DIGESTS --format html > job.html writes the "
            "page of a job of digests"
        )


def _captures(paths: tuple[str, ...], opening: OpenOptions, compare: bool) -> Job | Pair:
    """Open captures, and prepare their timelines."""
    from stepscope.api import Job
    from stepscope.api.runs import Pair
    from stepscope.server.background import prepare

    found = Pair(*paths, **opening) if compare else Job(paths, **opening)
    for job in found.jobs.values() if isinstance(found, Pair) else [found]:
        prepare(job, _progress)
    return found


def _write_page(
    static: str,
    paths: tuple[str, ...],
    opening: OpenOptions,
    *,
    compare: bool,
    window: str,
    only_step: int | None,
) -> None:
    """Write the file that opens from disk."""
    from stepscope.api import Job
    from stepscope.api.runs import Pair
    from stepscope.server.page import page
    from stepscope.server.pair import pair_page

    if compare:
        text = pair_page(Pair(*paths, **opening))
    else:
        text = page(Job(paths, **opening), window, only_step)
    try:
        Path(static).write_text(text, encoding="utf-8")
    except OSError as error:
        why = f"cannot write {static}: {error.strerror}; choose another file"
        raise StorageError(why) from error


def _progress(share: float) -> None:
    """Say on a terminal how far the preparation is."""
    if sys.stderr.isatty():
        from stepscope.render.text import percent

        end = "\r\033[K" if share >= 1 else ""
        click.echo(f"\rpreparing the timeline {percent(share):>5}{end}", err=True, nl=False)


def _place(address: str | None = None, file: str | None = None) -> str:
    """One line of JSON that says where the timeline is."""
    return json.dumps({"schema": "stepscope.ui/1", "address": address, "file": file}) + "\n"


def _opened(address: str) -> bool:
    """Open the browser; without a screen one that runs in the terminal would take it over."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform == "linux" and not any(map(os.environ.get, screens)):
        return False
    import webbrowser

    return webbrowser.open(address)
