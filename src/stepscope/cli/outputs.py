"""What ``stats`` and ``analyze`` share: parallel lists of formats and outputs, and writing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from stepscope.cli import options
from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.api import OpenOptions
    from stepscope.render.report_format import Format
    from stepscope.render.several import Origin
    from stepscope.reports.report import Outcome, Report, Request

Book = dict[int, "list[pa.Table]"]
"""Tables that go into one workbook, by number of the target."""
F = TypeVar("F", bound=Callable[..., Any])


def _switch(name: str, message: str) -> Callable[[F], F]:
    """``--name [true|false]``, as nsys has them; without value it is true."""
    return click.option(
        name,
        type=click.Choice(["true", "false"]),
        is_flag=False,
        flag_value="true",
        default="false",
        help=message,
    )


def _help(name: str, variable: str, what: str) -> Callable[[F], F]:
    """``--name [ITEM]``: what there is, or one of it."""
    return click.option(
        name,
        variable,
        is_flag=False,
        flag_value="",
        default=None,
        help=f"List the {what}, or describe one (or ALL).",
    )


def help_option(kind: str) -> Callable[[F], F]:
    """``--help-rules`` or ``--help-reports``."""
    return _help(f"--help-{kind}s", "about", f"{kind}s")


def inputs(paths: Sequence[str], export: str | None, *, again: bool) -> list[str]:
    """The captures to read: the export of a report stands for it.

    Raises:
        UsageError: there is no such export, or nothing that it could be the export of.
    """
    if export is None:
        return list(paths)
    if len(paths) > 1 or (paths and Path(paths[0]).suffix != ".nsys-rep"):
        raise UsageError("--sqlite names the export of one .nsys-rep report; give that report only")
    if paths and again:
        return list(paths)  # the export may be older than the report
    if not Path(export).exists():
        raise UsageError(
            f"{export} does not exist; leave --sqlite out to read the report itself, or make the "
            "export with nsys export -t sqlite"
        )
    return [export]


def filters(function: F) -> F:
    """The options of ``nsys stats`` and ``nsys analyze`` about filters, formats and outputs."""
    for option in reversed(
        (
            click.option(
                "-f",
                "--format",
                "formats",
                multiple=True,
                help="column, table, csv, tsv, json, hdoc, htable, with options: "
                "csv:time=ms:mem=B:nohdr. '.' is the default of the output.",
            ),
            click.option(
                "-o",
                "--output",
                "outputs_",
                multiple=True,
                help="'-' the console, '.' files beside the capture, '@COMMAND' a command's "
                "input, FILE.xlsx for all reports, a sheet each, else the beginning of file names.",
            ),
            click.option(
                "--filter-time", "window", default="", help="[START]/[END], as in 1s200ms/1.5s."
            ),
            click.option("--filter-nvtx", "nvtx", default="", help="RANGE[@DOMAIN][/INDEX]."),
            click.option(
                "--timeunit", default="nsec", help="nsec, usec, msec or seconds.", show_default=True
            ),
            _switch("--force-overwrite", "Replace output files that exist."),
            _switch(
                "--force-export",
                "Read the capture again, even where an export or a cached import of it exists.",
            ),
            click.option(
                "--sqlite",
                "export",
                type=click.Path(),
                help="Read this SQLite export instead of the report.",
            ),
            _help("--help-formats", "about_formats", "formats"),
            click.option("-q", "--quiet", is_flag=True, help="Only errors and results."),
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The values of these options, by the names of the parameters that click gives."""

    formats: tuple[str, ...]
    outputs_: tuple[str, ...]
    window: str
    nvtx: str
    timeunit: str
    force_overwrite: str
    force_export: str
    export: str | None
    about_formats: str | None
    quiet: bool
    about: str | None
    opening: OpenOptions


def answer(
    kind: str,
    paths: Sequence[str],
    known: Mapping[str, Report],
    requests_of: Callable[[list[str]], list[Request]],
    names: Sequence[str],
    asked: Asked,
) -> None:
    """Answer what was asked: describe reports or formats, or write what reports say of captures.

    Args:
        kind: ``report`` or ``rule``.
        paths: the captures.
        known: all reports by name.
        requests_of: reads requests as they are written.
        names: those.
        asked: the options.

    Raises:
        UsageError: no capture is named, or something unknown.
        StorageError: a file cannot be written.
    """
    from stepscope.api import Job

    if asked.about is not None:
        from stepscope.render.fitted import prose_width
        from stepscope.render.report_help import help_text

        options.write(help_text(known, asked.about, kind, prose_width()))
        return
    if asked.about_formats is not None:
        from stepscope.render.fitted import prose_width
        from stepscope.render.report_format import formats_text

        options.write(formats_text(asked.about_formats, prose_width()))
        return
    if not paths and not asked.export:
        raise click.UsageError(f"name a capture; --help-{kind}s lists the {kind}s")
    requests = requests_of(split(names))
    wanted = targets(requests, asked.formats, asked.outputs_, asked.timeunit)
    opening = asked.opening
    opening["again"] |= asked.force_export == "true"
    named = inputs(paths, asked.export, again=opening["again"])
    job = Job(named, **opening, apart=True)
    answers = job.reports.answers(requests, window=asked.window, nvtx=asked.nvtx)
    several = None
    if len(job.ranks) > 1:
        from stepscope.render.several import origins

        several = origins(job.reports.stated_ranks)
    force = asked.force_overwrite == "true"
    write_answers(answers, wanted, several, quiet=asked.quiet, force=force)


def split(items: Sequence[str]) -> list[str]:
    """The elements of a list option: given several times, or separated by commas."""
    return [part for item in items for part in item.split(",")]


@dataclass(frozen=True)
class Target:
    """Where one report goes.

    Attributes:
        request: the report.
        format_: how.
        output: where, as given.
    """

    request: Request
    format_: Format
    output: str


def targets(
    requests: Sequence[Request], formats: Sequence[str], outputs: Sequence[str], timeunit: str
) -> list[Target]:
    """Pair the parallel lists; the last format and output are repeated.

    Raises:
        UsageError: unknown format or unit.
    """
    from stepscope.render.report_format import parse_format, time_unit

    base = time_unit(timeunit)
    named, placed = split(formats) or ["."], split(outputs) or ["-"]
    found = []
    for number, request in enumerate(requests):
        output = placed[min(number, len(placed) - 1)]
        name = named[min(number, len(named) - 1)]
        if not output or output == "@":
            raise UsageError("an output is '-', '.', '@COMMAND' or the beginning of a file name")
        if name == "." or name.startswith(".:"):
            name = ("column" if output == "-" else "csv") + name[1:]
        found.append(Target(request, parse_format(name, base), output))
    return found


def write_answers(
    answers: Iterator[tuple[Path, Outcome]],
    wanted: Sequence[Target],
    several: Sequence[Origin] | None,
    *,
    quiet: bool,
    force: bool,
) -> None:
    """Write every answer to its target; say on standard error what is missing.

    Args:
        answers: (capture, what a report says of it), all of one capture together.
        wanted: where each report goes.
        several: the captures where there are several: each answer then tells of which it is.
        quiet: whether to say only what failed.
        force: whether to replace files.

    Raises:
        StorageError: a file exists or cannot be written, or a command fails.
    """
    from stepscope.render.fitted import terminal_width
    from stepscope.render.report_text import pieces
    from stepscope.render.text import clean

    # all of them first: a capture or a report that fails must not leave a part printed
    found = list(answers)
    if _is_a_document(found, wanted):
        _write_document(found, wanted, several, quiet=quiet)
        return
    books: dict[str, Book] = {}
    for number, (path, outcome) in enumerate(found):
        target = wanted[number % len(wanted)]
        origin = several[number // len(wanted)] if several else None
        name = path.name if origin is None else clean(origin.title)
        if origin is not None and number % len(wanted) == 0 and any(map(_is_read, wanted)):
            options.write(origin.heading())
        if not quiet:
            _warn(outcome, target, name, several=origin is not None)
        if outcome.table is None:
            continue
        table = outcome.table
        if origin is not None and not _is_read(target):
            table = origin.marked(table)
        if _is_workbook(target.output):
            books.setdefault(target.output, {}).setdefault(number % len(wanted), []).append(table)
            continue
        text = pieces(table, target.format_, terminal_width() if target.output == "-" else None)
        if target.output == "-":
            for piece in text:
                options.write(str(piece, "utf-8"))
            options.write("\n")
        elif target.output.startswith("@"):
            _pipe(target.output[1:].split(), b"".join(text))
        else:
            file = _file(target, path, origin)
            _save(file, text, force=force)
            if not quiet:
                click.echo(f"{name}: {outcome.request.report.name} -> {file}", err=True)
    _save_workbooks(books, wanted, quiet=quiet, force=force)


def _write_document(
    found: Sequence[tuple[Path, Outcome]],
    wanted: Sequence[Target],
    several: Sequence[Origin] | None,
    *,
    quiet: bool,
) -> None:
    """Print all answers as one document of JSON."""
    from stepscope.render.report_text import as_document

    rows = []
    for number, (path, outcome) in enumerate(found):
        target = wanted[number % len(wanted)]
        origin = several[number // len(wanted)] if several else None
        if not quiet:
            _warn(outcome, target, path.name if origin is None else options.plain(origin.title),
                  several=origin is not None)  # fmt: skip
        name = str(path).encode("utf-8", "replace").decode()
        rows.append((name, origin.rank if origin else None, outcome, target.format_))
    options.write(as_document(rows))


def _is_a_document(found: Sequence[tuple[Path, Outcome]], wanted: Sequence[Target]) -> bool:
    """Whether all goes to the console as JSON: then it is one document, not one after the other.

    A single table is the array of rows that Nsight Systems writes.
    """
    only = all(target.output == "-" and target.format_.name == "json" for target in wanted)
    return only and (len(found) != 1 or found[0][1].table is None)


def _warn(outcome: Outcome, target: Target, name: str, *, several: bool) -> None:
    """Say why a report has nothing to show."""
    from stepscope.render.report_text import about

    report = outcome.request.report.name
    if outcome.table is None:
        of = f" of {name}" if several else ""
        click.echo(f"SKIPPED {report}{of}: {outcome.missing}", err=True)
    elif not outcome.table.num_rows and target.output != "-":
        stated = about(outcome.table, "none_found") or "no row results"
        click.echo(f"{name}: {report}: {stated}", err=True)


def _is_workbook(output: str) -> bool:
    """Whether an output is one file for all its reports."""
    return output.lower().endswith(".xlsx") and not output.startswith("@")


def _save_workbooks(
    books: Mapping[str, Book], wanted: Sequence[Target], *, quiet: bool, force: bool
) -> None:
    """Write reports as sheets; what one says of several captures is one sheet."""
    import pyarrow as pa

    from stepscope.render.report_format import cells
    from stepscope.render.workbook import Sheet, write_workbook

    for output, book in books.items():
        sheets = []
        for number, tables in book.items():
            target = wanted[number]
            whole = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
            name = "_".join([target.request.report.name, *target.request.written])
            sheets.append(Sheet(name, cells(whole, target.format_)))
        with _opened(Path(output), force=force) as stream:
            write_workbook(stream, sheets)
        if not quiet:
            names = ", ".join(wanted[number].request.report.name for number in book)
            click.echo(f"{names} -> {output}", err=True)


def _is_read(target: Target) -> bool:
    """Whether people read it on the console, under the heading of its capture."""
    return target.output == "-" and target.format_.name in ("column", "table")


def _file(target: Target, path: Path, origin: Origin | None) -> Path:
    """``<base>_<report&arguments>.<extension>``; of several captures each has its own."""
    from stepscope.render.several import stem

    base = target.output
    if base == ".":
        base = str(path.with_name(stem(path) if origin is None else origin.stem))
    elif origin is not None:
        base = f"{base}_{origin.part}"
    written = (re.sub(r"[^\w.=@#+-]+", "_", part) for part in target.request.written)
    report = "_".join([target.request.report.name, *written])
    return Path(f"{base}_{report}.{target.format_.extension}")


def _save(file: Path, text: Iterator[bytes | memoryview], *, force: bool) -> None:
    with _opened(file, force=force) as stream:
        stream.writelines(text)


@contextmanager
def _opened(file: Path, *, force: bool) -> Iterator[IO[bytes]]:
    try:
        with file.open("wb" if force else "xb") as stream:
            yield stream
    except FileExistsError:
        raise StorageError(
            f"{file} exists; name another output, or add --force-overwrite true"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}; name another output") from error


def _pipe(command: list[str], text: bytes) -> None:
    if not command:
        raise UsageError("'@' needs a command, as in -o '@grep gemm'")
    try:
        done = subprocess.run(command, input=text, check=False)
    except OSError as error:
        raise StorageError(f"cannot run {command[0]}: {error.strerror}; check the name") from error
    if done.returncode < 0:
        raise StorageError(f"{command[0]} was stopped by signal {-done.returncode}")
