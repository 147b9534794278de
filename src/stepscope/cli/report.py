"""``stepscope report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry
from stepscope.trace.errors import StorageError

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "As nsys",
    order=4,
    examples={
        "stepscope report run1": "in the terminal",
        "stepscope report run1 -o report.html": "as a page",
    },
)
@options.paths
@options.formats(options.TEXT, "json", "markdown", "html")
@click.option(
    "--rows",
    type=click.IntRange(1, 1_000_000),
    default=15,
    show_default=True,
    help="Rows of each report.",
    metavar="N",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="Write to this file; .md, .html and .json set the format.",
)
@click.option("--timeunit", default="msec", show_default=True, help="nsec, usec, msec or seconds.")
@options.opening
def command(
    paths: tuple[str, ...],
    format_: str,
    rows: int,
    output: str | None,
    timeunit: str,
    opening: OpenOptions,
) -> None:
    """Show the default reports of a capture on one readable page.

    The page holds the longest rows of every report of stepscope stats that the capture has data
    for, and names the capture options that would provide the others.
    """
    options.import_numpy()
    from stepscope.api import Job
    from stepscope.api.reports import known_reports, stats_requests
    from stepscope.render import report_page
    from stepscope.render.fitted import terminal_width
    from stepscope.render.report_format import parse_format, time_unit

    by_suffix = {".md": "markdown", ".html": "html", ".htm": "html", ".json": "json"}
    if output is not None and format_ == options.TEXT:
        format_ = by_suffix.get(Path(output).suffix.lower(), options.TEXT)
    job = Job(paths, **opening, apart=True)
    sections = [
        report_page.Section(str(path), facts, tables, missing)
        for path, facts, tables, missing in job.reports.page(stats_requests([], known_reports()))
    ]
    shown = parse_format("column:colmax=60", time_unit(timeunit))
    if format_ == "markdown":
        text = report_page.markdown_page(sections, shown, rows)
    elif format_ == "json":
        text = report_page.json_page(sections, parse_format("json", time_unit(timeunit)), rows)
    elif format_ == "html":
        text = report_page.html_page(sections, shown, rows)
    else:
        text = report_page.text_page(
            sections, shown, rows, terminal_width() if output is None else None
        )
    if output is None:
        options.write(text)
        return
    options.refuse_inputs(output)
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}; name another file") from error
