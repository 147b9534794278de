"""``stepscope mcp``."""

from __future__ import annotations

import os
import re
import sys

import click

from stepscope.cli import options, registry
from stepscope.trace.errors import UsageError

TOKEN_VARIABLE = "STEPSCOPE_MCP_TOKEN"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")


@registry.command(
    "Automate",
    order=1,
    examples={
        "stepscope mcp --allow traces": "what a client is told to start",
        "stepscope mcp --http --port 8765": "over HTTP, on this machine only",
    },
)
@click.option(
    "--allow",
    multiple=True,
    type=click.Path(readable=False),
    metavar="DIR",
    help="Folder whose captures may be read; may be repeated. By default the working directory.",
)
@click.option("--http", is_flag=True, help="Serve HTTP on 127.0.0.1 instead of standard streams.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="a free one",
    help="Port, with --http.",
)
@options.formats(options.TEXT, "json")
def command(allow: tuple[str, ...], http: bool, port: int, format_: str) -> None:
    """Serve a coding agent: diagnosis, evidence, SQL, comparison and prediction as MCP tools.

    Over standard streams a client starts this command itself. With --http it prints the address,
    whose secret part is new each time, or the value of STEPSCOPE_MCP_TOKEN. Captures are read,
    nothing is run or changed.
    """
    from stepscope.agent.protocol import missing_sdk, serve_http, serve_stdio
    from stepscope.agent.session import Session

    if lacks := missing_sdk():
        raise UsageError(lacks)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token and not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{TOKEN_VARIABLE} is no secret: write 16 to 128 letters, digits, hyphens or "
            "underscores, or unset it"
        )
    session = Session(allow or (".",))
    if port and not http:
        raise UsageError("--port is of --http; add that, or leave the port out")
    if not http:
        serve_stdio(session)
        return

    def ready(address: str) -> None:
        document = {"schema": "stepscope.mcp-server/1", "address": address}
        options.write(options.as_json(document) if format_ == "json" else f"{address}\n")
        sys.stdout.flush()

    serve_http(session, port, ready, token)
