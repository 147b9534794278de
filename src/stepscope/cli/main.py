"""Entry point: finds the command, loads only its module, turns errors into one line."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from stepscope import __version__
from stepscope.trace.errors import StepscopeError

COMMANDS: dict[str, str] = {
    "demo": "Diagnose the bundled real trace.",
    "diagnose": "Name the causes of the step time, with evidence and the predicted gain.",
    "steps": "Show every step: length, and where its time goes.",
    "stats": "Print reports, as nsys stats does, from any capture.",
    "report": "Show the default reports of a capture on one readable page.",
    "analyze": "Check rules, as nsys analyze does, on any capture.",
    "query": "Run SQL over the tables of a capture.",
    "info": "Show what a capture holds, and what it lacks.",
    "cache": "See and clear the cache of imported captures.",
}
"""Command -> one-line help; the module of the same name in this package holds ``command``."""


class _Commands(click.Group):
    """Loads a command's module only when it is run: start-up is felt in every call."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"stepscope.cli.{cmd_name}")
        found: click.Command = module.command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; commands: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stepscope", message="%(prog)s %(version)s")
def cli() -> None:
    """Why is my training step slow, and what happens if I fix it?"""


def main() -> NoReturn:
    """Run the command line and exit: 0 it worked, 1 a gate failed, 2 bad input, 3 a bug."""
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except StepscopeError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        # the reader went away (| head): not an error, but Python would complain at shutdown
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("STEPSCOPE_DEBUG"):
            raise
        _fail(
            f"internal error, a bug in Stepscope: {type(error).__name__}: {error}; "
            "STEPSCOPE_DEBUG=1 shows where",
            3,
        )
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    click.echo(f"stepscope: {line}", err=True)
    sys.exit(code)
