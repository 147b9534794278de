"""``stepscope ui``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stepscope.cli import options
from stepscope.trace.errors import StorageError, UsageError


@click.command()
@options.paths
@options.again
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port; a free one if left out."
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
@click.option("--static", type=click.Path(), help="Write one HTML file instead of serving.")
@click.option("--step", type=click.IntRange(0), help="With --static: this step only.")
@click.option(
    "--window", default="", help="With --static: [start]/[end] only, as the axis shows them."
)
@click.option("--force", is_flag=True, help="With --static: overwrite the file.")
def command(
    paths: tuple[str, ...],
    again: bool,
    port: int,
    no_browser: bool,
    static: str | None,
    step: int | None,
    window: str,
    force: bool,
) -> None:
    """Show the timeline in the browser, with the diagnosis beside it.

    The server listens on the loopback interface only, at an address that holds a random token.
    It ends with Ctrl+C. With --static, nothing is served: the file opens from disk anywhere.
    """
    options.import_numpy()
    if static is None and (step is not None or window or force):
        raise UsageError("--step, --window and --force are about the file of --static")
    if step is not None and window:
        raise UsageError("--step and --window both choose a time; give one of them")
    if static is not None and Path(static).exists() and not force:
        raise UsageError(f"{static} exists; --force overwrites it")
    from stepscope.session import Session

    session = Session(paths, again=again)
    if static is not None:
        from stepscope.server.page import page

        text = page(session, window, step)
        try:
            Path(static).write_text(text, encoding="utf-8")
        except OSError as error:
            why = f"cannot write {static}: {error.strerror}; choose another file"
            raise StorageError(why) from error
        return

    from stepscope.server.serve import serve

    def ready(address: str) -> None:
        click.echo(address)
        sys.stdout.flush()
        if not no_browser:
            import webbrowser

            if not webbrowser.open(address):
                click.echo("no browser found; open the address above", err=True)

    serve(session, port, ready)
