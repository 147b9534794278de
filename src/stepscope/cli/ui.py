"""``stepscope ui``."""

from __future__ import annotations

import sys

import click

from stepscope.cli import options


@click.command()
@options.paths
@options.again
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; a free one if left out.")
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def command(
    paths: tuple[str, ...], again: bool, port: int, no_browser: bool
) -> None:
    """Show the timeline in the browser, with the diagnosis beside it.

    The server listens on the loopback interface only, at an address that holds a random token.
    It ends with Ctrl+C.
    """
    options.import_numpy()
    from stepscope.session import Session

    session = Session(paths, again=again)

    from stepscope.server.serve import serve

    def ready(address: str) -> None:
        click.echo(address)
        sys.stdout.flush()
        if not no_browser:
            import webbrowser

            if not webbrowser.open(address):
                click.echo("no browser found; open the address above", err=True)

    serve(session, port, ready)
