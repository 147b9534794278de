"""``stepscope kernels``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from stepscope.cli import options, registry
from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.api import OpenOptions

T = TypeVar("T")


@registry.command(
    "Look",
    order=5,
    examples={
        "stepscope kernels run1": "kernels of a trace by time",
        "stepscope kernels report.ncu-rep": "what limits each kernel of a report",
        "stepscope kernels report.ncu-rep --kernel 1": "why the first one is slow",
    },
)
@options.paths
@click.option(
    "--kernel",
    "-k",
    default="",
    help="Explain this kernel of a report: its number, its name or a regular expression.",
    metavar="KERNEL",
)
@click.option(
    "--against",
    "other",
    default="",
    type=click.Path(readable=False),
    help="Compare with this report, metric by metric.",
    metavar="REPORT",
)
@click.option(
    "--roofline", is_flag=True, help="Show the operators of a trace against the GPU's ceilings."
)
@click.option(
    "--plot",
    default="",
    type=click.Path(readable=False),
    help="Draw the roofline of a report into this .svg or .html file.",
    metavar="FILE",
)
@options.ceilings
@options.limit
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(
    paths: tuple[str, ...],
    kernel: str,
    other: str,
    roofline: bool,
    plot: str,
    ceilings: str,
    limit: int | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Show the kernels of a trace, or explain those of an Nsight Compute report.

    Of a trace: the kernels of the steady steps by category and name, longest total time first.
    Times are in ms and us; in csv and json in ns. Totals are over all GPUs, values per step the
    mean of one GPU; kernels that overlap all count. Bandwidths are shown for copies, and for
    PyTorch's contiguous elementwise kernels, whose bytes follow from type and launch.

    Of a report (.ncu-rep, or the output of ncu --csv --page raw or details): what limits each
    kernel, and with --kernel why.
    """
    from stepscope.api.ncu import is_kernel_report

    if any(is_kernel_report(path) for path in paths):
        if len(paths) > 1:
            raise UsageError("give one Nsight Compute report; --against names a second one")
        if roofline:
            raise UsageError("--roofline is about traces; the roofline of a report is in --kernel")
        if ceilings:
            raise UsageError("a report has the ceilings of its run; --ceilings is about traces")
        if limit is not None:
            raise UsageError("--limit is about the kernels of a trace; a report shows all of its")
        _report(paths[0], kernel, other, plot, format_)
        return
    if kernel or other or plot:
        raise UsageError(
            "--kernel, --against and --plot are about Nsight Compute reports, which "
            f"{paths[0]} is not; ncu --set full -o REPORT makes one"
        )
    if ceilings and not roofline:
        raise UsageError("--ceilings is for --roofline; the table of kernels shows no ceilings")
    if limit is not None and roofline:
        raise UsageError("--roofline shows every operator; leave --limit out")
    _trace(paths, roofline, ceilings, limit, format_, opening)


def _trace(
    paths: tuple[str, ...],
    roofline: bool,
    ceilings: str,
    limit: int | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    from stepscope.api import Job

    job = Job(paths, **opening, ceilings=ceilings)
    if roofline:
        from stepscope.render import operator_roofline as render

        found = job.operator_rooflines()
        shown = (render.rooflines_text, render.rooflines_markdown, render.rooflines_table)
        _write(found, format_, *shown)
    else:
        from stepscope.render import views

        view = (views.kernels_text, views.kernels_markdown)
        options.write_view(job.kernels, format_, "stepscope.kernels/2", limit, *view)
    options.warn_of_problems(job)


def _report(path: str, kernel: str, other: str, plot: str, format_: str) -> None:
    from stepscope.api import ncu as reports
    from stepscope.render import ncu
    from stepscope.render import ncu_markdown as markdown

    if plot:
        _draw(path, kernel, other, plot)
    if other:
        compared = reports.compare_kernel_reports(path, other)
        shown = (ncu.report_diff_text, markdown.report_diff_markdown, ncu.report_diff_rows)
        _write(compared, format_, *shown)
    elif kernel:
        explained = reports.explain_kernel(path, kernel)
        text, rows = ncu.explanation_text, ncu.explanation_rows
        _write(explained, format_, text, markdown.explanation_markdown, rows)
    else:
        text_of_all, table = ncu.kernels_text, ncu.kernels_table
        found = reports.kernel_report(path)
        _write(found, format_, text_of_all, markdown.kernels_markdown, table)


def _write(
    result: T,
    format_: str,
    text: Callable[[T, int | None], str],
    markdown: Callable[[T], str],
    rows: Callable[[T], pa.Table],
) -> None:
    """Print a result: JSON of all of it, text for people, or its rows."""
    from stepscope.render.fitted import terminal_width

    if format_ == "json":
        options.write(options.as_json(result))
    elif format_ == options.TEXT:
        options.write(text(result, terminal_width()))
    elif format_ == "markdown":
        options.write(markdown(result))
    else:
        options.write_table(rows(result), format_, "")


def _draw(path: str, kernel: str, other: str, plot: str) -> None:
    from stepscope.api.ncu import kernel_rooflines
    from stepscope.render.roofline_svg import Point, roofline_page, roofline_svg

    if Path(plot).suffix not in (".svg", ".html"):
        raise UsageError(f"--plot writes .svg or .html, not {plot!r}")
    points = [Point(*found) for found in kernel_rooflines(path, kernel, other)]
    make = roofline_svg if plot.endswith(".svg") else roofline_page
    try:
        Path(plot).write_text(make(points, f"Roofline of {Path(path).name}"), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {plot}: {error.strerror}") from error
    click.echo(f"drawn: {plot}", err=True)
