"""Options and output that several commands share."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stepscope.cli import registry
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from stepscope.api import Job

INCOMPLETE = 1
"""Exit code where some captures could not be read: the result is of the others."""

F = TypeVar("F", bound=Callable[..., Any])


def paths(function: F) -> F:
    """``PATH...``: captures, folders of captures, or Stepscope traces."""
    path = click.Path(readable=False)  # whether it can be read is said later, and better
    return click.argument("paths", nargs=-1, required=True, type=path, metavar="PATH...")(function)


class _Renamed(click.Option):
    """An option with an old name, which is still understood and no longer shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return None if record is None else (self.opts[0], record[1])


def opening(function: F) -> F:
    """``--step``, ``--step-kernel``, ``--no-cache`` as one argument: how captures are opened."""

    @functools.wraps(function)
    def command(*args: Any, step: str, step_kernel: str, again: bool, **more: Any) -> Any:
        options = {"step": step, "step_kernel": step_kernel, "again": again}
        return function(*args, opening=options, **more)

    for option in (
        click.option(
            "--no-cache",
            "--again",  # its name in earlier versions
            "again",
            cls=_Renamed,
            is_flag=True,
            help="Ignore the cached import, and read the capture again.",
        ),
        click.option(
            "--step-kernel",
            default="",
            metavar="REGEX",
            help="A step begins at each kernel whose name matches REGEX (RE2 syntax: no "
            "look-ahead, no back-references).",
        ),
        click.option(
            "--step",
            default="",
            metavar="RANGE|REGEX|none",
            help="What a step is: NVTX ranges of this name, or whose name matches; none: the whole "
            "capture is one step. By default it is found in the capture.",
        ),
    ):
        command = option(command)
    return cast("F", command)


def ceilings(function: F) -> F:
    """``--ceilings``: measured ones instead of the datasheet's."""
    return click.option(
        "--ceilings",
        default="",
        type=click.Path(readable=False),
        help="Use these measured peak rates (from stepscope ceilings -o) instead of the "
        "datasheet's.",
        metavar="FILE",
    )(function)


def timeout(function: F) -> F:
    """``--timeout``: how long the statements may take."""
    return click.option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="End an SQL statement after SECONDS; by default $STEPSCOPE_QUERY_TIMEOUT, else 300.",
    )(function)


TEXT = "text"
"""The format that people read on a terminal, by its name in every command."""
_EARLIER_TEXT = ("terminal", "column")
"""What commands of earlier versions called it, which is still understood."""


class _Format(click.Choice[str]):
    """A format; that for people is known by its earlier names, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        earlier = value in _EARLIER_TEXT and TEXT in self.choices
        return super().convert(TEXT if earlier else value, param, ctx)


def formats(*names: str) -> Callable[[F], F]:
    """``--format``; the first name is the default."""
    return click.option(
        "--format",
        "-f",
        "format_",
        type=_Format(names),
        default=names[0],
        show_default=True,
        help="Output format.",
    )


class WithActions(registry.Command):
    """A command whose first argument says what to do; its help lists what there is.

    Without any argument it shows that help.
    """

    def __init__(self, *args: Any, actions: dict[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self.no_args_is_help = True
        self.actions = actions

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command does, and its actions."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Actions"):
            formatter.write_dl(list(self.actions.items()))


def import_numpy() -> None:
    """Import numpy without the threads of its BLAS, which start at once and wait busily.

    No command multiplies matrices. Only this process is concerned: what it starts later is not.
    """
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        return
    os.environ[name] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[name]


_NO_TERMINAL_COLUMNS = 110
TABLE_FORMATS = (TEXT, "csv", "json", "markdown")


def limit(function: F) -> F:
    """``--limit``: rows to show; None where it is not given."""
    return click.option(
        "--limit",
        type=click.IntRange(0, 1_000_000_000),
        help="Rows to show, 0 for all; by default 20 in text and markdown, all in csv and json.",
        metavar="N",
    )(function)


def write_view(
    table: pa.Table,
    format_: str,
    schema: str,
    rows: int | None,
    text: Callable[[pa.Table, int, int | None], str],
    markdown: Callable[[pa.Table, int], str],
) -> None:
    """Print a table: for people with units and the first rows, for programs as it is.

    Args:
        table: all rows.
        format_: one of ``TABLE_FORMATS``.
        schema: the contract of its JSON.
        rows: value of ``--limit``.
        text: (table, rows, width) -> text for the terminal.
        markdown: (table, rows) -> Markdown.
    """
    from stepscope.render.fitted import SHOWN_ROWS, terminal_width

    shown = SHOWN_ROWS if rows is None else rows
    if format_ == TEXT:
        write(text(table, shown, terminal_width()))
    elif format_ == "markdown":
        write(markdown(table, shown))
    else:
        write_table(table.slice(0, rows or None), format_, schema)


def write_table(table: pa.Table, format_: str, schema: str) -> None:
    """Print an Arrow table in one of ``TABLE_FORMATS``."""
    from stepscope.render import tables

    if format_ == "csv":
        text = tables.as_csv(table)
    elif format_ == "json":
        text = tables.as_json(table, schema)
    elif format_ == "markdown":
        text = tables.as_markdown(table)
    else:
        text = tables.as_columns(table)
    write(text)


def write(text: str) -> None:
    """Print text as it is; on a terminal its notes are broken to the width of that."""
    from stepscope.render.fitted import folded, terminal_width

    width = terminal_width()
    sys.stdout.write(text if width is None else folded(text, width))


def warn_of_problems(job: Job) -> None:
    """Say on standard error what the import counted that touches any result."""
    from stepscope.render.text import clean

    for problem in job.problems:
        if problem.severity in ("data_loss", "error"):
            scope = ", ".join(problem.scope)
            line = f"{problem.count:,} x {problem.message} ({scope}); {problem.remedy}"
            click.echo(clean(f"{problem.severity}: {line}", 400), err=True)


def console() -> Console:
    """A console on standard output; plain text of a fixed width when it is not a terminal.

    Where ``NO_COLOR`` is set there is no style either: who asks for no colour reads or stores the
    text, where escape codes of any kind are in the way.
    """
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # handled where that of every command is

    stated = os.environ.get("COLUMNS", "")
    wide = None if sys.stdout.isatty() else _NO_TERMINAL_COLUMNS
    if sys.stdout.isatty() and stated.isdecimal() and int(stated):
        wide = int(stated)  # rich asks for it only where it does not take the terminal for dumb
    high = None if wide is None else 25
    # rich would keep bold and dim under NO_COLOR, and write both into files under FORCE_COLOR
    styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return Plain(
        highlight=False, markup=False, emoji=False, width=wide, height=high, soft_wrap=False,
        color_system="auto" if styled else None,
    )  # fmt: skip


def as_json(result: object) -> str:
    """A result as indented JSON."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(result)).decode() + "\n"


_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9}


def size_of(text: str) -> int:
    """Bytes of a size that the user wrote: ``500M``, ``2G``, or bytes.

    Raises:
        click.BadParameter: it is none.
    """
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "")
    try:
        return round(float(number or 0) * (_SIZES[unit] if unit else 1))
    except (ValueError, KeyError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is no size; write bytes, or 500M, or 2G") from error


def refuse_inputs(output: str) -> None:
    """Refuse to write over a file that this call reads: inputs are never changed.

    Every other value of the command line that names the same file counts as read.

    Raises:
        UsageError: the output is one of them.
    """
    from stepscope.trace.errors import UsageError

    context = click.get_current_context(silent=True)
    for name, value in (context.params if context else {}).items():
        several = value if isinstance(value, tuple | list) else (value,)
        if name not in _OUTPUTS and any(same_file(output, item) for item in several):
            raise UsageError(f"{output} is read by this call and would be lost; name another file")


_OUTPUTS = {"output", "junit_file", "gitlab_file", "summary_file", "static", "plot"}
"""Parameters that name files to write."""


def same_file(one: str, other: object) -> bool:
    """Whether two values of the command line name one file that exists."""
    try:
        return isinstance(other, str) and os.path.samefile(one, other)  # noqa: PTH121 - may be text
    except (OSError, ValueError):  # one of them does not exist, or is no name
        return False


def write_to(text: str, output: str | None, *, append: bool = False) -> None:
    """Print text, or write it to a file.

    Raises:
        StorageError: the file cannot be written.
        UsageError: it is one that this call reads.
    """
    if output is None:
        write(text)
        return
    refuse_inputs(output)
    from pathlib import Path

    from stepscope.trace.errors import StorageError

    try:
        with Path(output).open("a" if append else "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}; name another file") from error


def known_terms(
    *kinds: str, end: str = ""
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes the ids of what ``stepscope explain`` knows.

    Args:
        kinds: of these kinds only.
        end: what follows an id, such as ``=``.
    """

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
        from stepscope.api.terms import terms

        ids = {f"{m.id}{end}" for m in terms() if not kinds or m.kind in kinds}
        return sorted(one for one in ids if one.startswith(begun))

    return complete


def plain(text: str) -> str:
    """Text of the user or of a trace, safe to print."""
    from stepscope.render.text import clean

    return clean(text)


def spread(function: F) -> F:
    """``--jobs``, ``--cluster``, ``--scheduler-file`` as one argument: where work is done."""

    @functools.wraps(function)
    def command(*args: Any, jobs: int, cluster: str, scheduler_file: str, **more: Any) -> Any:
        if cluster and scheduler_file:
            raise UsageError("--cluster and --scheduler-file name one scheduler; give one of them")
        if jobs and (cluster or scheduler_file):
            raise UsageError("--jobs is about this machine; a cluster has its own workers")
        from stepscope.api.items import Engine

        return function(*args, engine=Engine(jobs, cluster, scheduler_file), **more)

    for option in (
        click.option(
            "--scheduler-file",
            default="",
            type=click.Path(),
            help="Work on the Dask scheduler that wrote this file.",
        ),
        click.option("--cluster", default="", help="Work on the Dask scheduler at this address."),
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(0),
            default=0,
            help="Processes; 0: as many as cores and memory allow.",
            show_default=True,
        ),
    ):
        command = option(command)
    return command  # type: ignore[return-value]
