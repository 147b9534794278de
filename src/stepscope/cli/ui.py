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
    from stepscope.api import OpenOptions


@registry.command(
    "Look",
    order=1,
    examples={
        "stepscope ui run1": "in the browser",
        "stepscope ui run1 --static page.html": "one file for a colleague",
        "stepscope ui --compare before after": "two runs, step beside step",
    },
)
@options.paths
@options.formats("text", "json")
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
) -> None:
    """Show the timeline in the browser, with the diagnosis beside it.

    Several PATHs are the ranks of one job, or with --compare two runs. The server listens on the
    loopback interface only, at an address that holds a random token, and ends with Ctrl+C. With
    --static nothing is served: the file opens from disk anywhere. With --format json, one line has
    the address, or the file of --static.
    """
    options.import_numpy()
    if static is None and (only_step is not None or window or force):
        raise UsageError("--only-step, --window and --force are about the file of --static")
    if only_step is not None and window:
        raise UsageError("--only-step and --window both choose a time; give one of them")
    if static is not None and Path(static).exists() and not force:
        raise UsageError(f"{static} exists; --force overwrites it")
    if static is not None:
        options.refuse_inputs(static)
    if compare and len(paths) != 2:
        raise UsageError(
            "--compare shows two runs: stepscope ui BEFORE AFTER --compare; the ranks of a run are "
            "given as a folder"
        )
    if compare and (only_step is not None or window):
        raise UsageError("--only-step and --window choose a time of one run; leave them out here")
    from stepscope.api import Job
    from stepscope.api.runs import Pair

    shown = Pair(*paths, **opening) if compare else Job(paths, **opening)
    if static is not None:
        from stepscope.server.page import page
        from stepscope.server.pair import pair_page

        text = pair_page(shown) if isinstance(shown, Pair) else page(shown, window, only_step)
        try:
            Path(static).write_text(text, encoding="utf-8")
        except OSError as error:
            why = f"cannot write {static}: {error.strerror}; choose another file"
            raise StorageError(why) from error
        if format_ == "json":
            options.write(_place(file=str(static)))
        return

    from stepscope.server.serve import prepare, serve

    for job in shown.jobs.values() if isinstance(shown, Pair) else [shown]:
        prepare(job, _progress)

    def ready(address: str) -> None:
        options.write(_place(address=address) if format_ == "json" else f"{address}\n")
        sys.stdout.flush()
        if not no_browser and not _opened(address):
            click.echo("no browser found here; open the address above", err=True)

    serve(shown, port, ready)


def _progress(share: float) -> None:
    """Say on a terminal how far the preparation is."""
    if sys.stderr.isatty():
        end = "\r\033[K" if share >= 1 else ""
        click.echo(f"\rpreparing the timeline {share:4.0%}{end}", err=True, nl=False)


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
