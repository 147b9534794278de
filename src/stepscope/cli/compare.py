"""``stepscope compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions
    from stepscope.compare.result import Comparison
    from stepscope.compare.trend import Trend

_FORMATS = (options.TEXT, "markdown", "json", "html", "csv")


@registry.command(
    "Compare",
    order=1,
    examples={
        "stepscope compare before after": "two captures, or folders with the ranks of a job",
        "stepscope compare before after --format html -o diff.html": "as a page",
    },
)
@click.argument("runs", nargs=-1, metavar="[BEFORE AFTER [MORE]...]", type=click.Path())
@click.option(
    "--before", "before", multiple=True, type=click.Path(), help="One rank of the earlier run."
)
@click.option(
    "--after", "after", multiple=True, type=click.Path(), help="One rank of the later run."
)
@click.option(
    "--repeat-before",
    multiple=True,
    type=click.Path(),
    help="A further capture of the earlier run: the spread between captures is measured.",
)
@click.option(
    "--repeat-after", multiple=True, type=click.Path(), help="A further capture of the later run."
)
@click.option(
    "--run-noise",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="How far two single runs of the same code may lie apart (in 95 of 100 pairs); by "
    "default 0.05 where the device sets the pace, more where it waits.",
)
@click.option(
    "--by",
    type=click.Choice(("tree", "name")),
    help="Compare operators and annotations instead: as one call tree, or by name.",
)
@options.formats(*_FORMATS)
@click.option("--output", "-o", type=click.Path(), help="Write to this file.")
@options.opening
def command(
    runs: tuple[str, ...],
    before: tuple[str, ...],
    after: tuple[str, ...],
    repeat_before: tuple[str, ...],
    repeat_after: tuple[str, ...],
    run_noise: float | None,
    by: str | None,
    format_: str,
    output: str | None,
    opening: OpenOptions,
) -> None:
    """Tell whether a run got faster, by how much, where, and whether that is more than noise.

    BEFORE and AFTER are captures of any source, or folders with the ranks of a job. More than two
    are shown as a trend. Ranks that are not in one folder are named one by one with --before and
    --after.

    Two Nsight Compute reports are compared kernel by kernel, metric by metric: limiter, time,
    bytes, hit rates, stalls.

    --by tree merges the call trees of operators and annotations, and shows where they part and what
    each side takes there on the CPU and the GPU. --by name adds them up by name.
    """
    from stepscope.api.ncu import is_kernel_report
    from stepscope.api.runs import compare_runs, trend_of_runs
    from stepscope.trace.errors import UsageError

    if output is not None:
        options.refuse_inputs(output)
    of_runs = bool(repeat_before or repeat_after or run_noise is not None)
    reports = [is_kernel_report(path) for path in (*runs, *before, *after)]
    if any(reports):
        _reports([*runs, *before, *after], all(reports), format_, output, of_runs)
        return
    named = [[path] for path in runs]
    if before or after:
        if runs:
            raise UsageError("give BEFORE and AFTER, or --before and --after, not both")
        if not (before and after):
            raise UsageError(
                "--before and --after go together: each names one rank, and both runs need some"
            )
        named = [list(before), list(after)]
    if run_noise is not None and not 0 <= run_noise <= 1:  # nan passes every range of click's
        raise UsageError("--run-noise is a share between 0 and 1, as in 0.05 for 5 %")
    if by is not None:
        _operators(named, by, format_, output, opening, of_runs)
        return
    if format_ == "csv":
        raise UsageError(
            "--format csv is for --by tree and --by name; --format json has all figures"
        )
    if len(named) < 2:
        raise UsageError("a comparison needs two runs: stepscope compare BEFORE AFTER")
    if len(named) > 2:
        if repeat_before or repeat_after or format_ == "html":
            what = "--format html" if format_ == "html" else "--repeat-before or --repeat-after"
            raise UsageError(f"more than two runs are shown as a trend, which has no {what}")
        trend = trend_of_runs(named, run_noise=run_noise, **opening)
        text = options.as_json(trend) if format_ == "json" else _trend(trend, format_, output)
    else:
        result = compare_runs(
            [named[0], *([path] for path in repeat_before)],
            [named[1], *([path] for path in repeat_after)],
            run_noise=run_noise,
            **opening,
        )
        text = _comparison(result, format_, output)
    options.write_to(text, output)


def _operators(
    named: list[list[str]],
    by: str,
    format_: str,
    output: str | None,
    opening: OpenOptions,
    of_runs: bool,
) -> None:
    """Compare the operators of two runs."""
    from stepscope.api.runs import compare_trees
    from stepscope.render import compare_tree
    from stepscope.trace.errors import UsageError

    if of_runs:
        raise UsageError(
            f"--by {by} adds up what two captures hold, and takes no repeats and no --run-noise"
        )
    if len(named) != 2:
        raise UsageError(f"--by {by} compares two runs: stepscope compare BEFORE AFTER --by {by}")
    if format_ == "html":
        raise UsageError(f"--by {by} has no --format html; there are text, markdown, csv, json")
    rows = compare_trees(named[0], named[1], names=by == "name", **opening)
    options.write_to(compare_tree.written(rows, by, format_, _width(output)), output)


def _reports(
    paths: list[str], only_reports: bool, format_: str, output: str | None, runs_only: bool
) -> None:
    """Compare two Nsight Compute reports."""
    from stepscope.api.ncu import compare_kernel_reports
    from stepscope.render import ncu
    from stepscope.trace.errors import UsageError

    if not only_reports:
        raise UsageError(
            "an Nsight Compute report compares with another one, not with a trace; "
            "diagnose TRACE --ncu REPORT takes both"
        )
    if len(paths) != 2:
        raise UsageError("give two Nsight Compute reports: stepscope compare BEFORE AFTER")
    if runs_only:
        raise UsageError(
            "repeats and --run-noise are about runs; reports hold single launches, whose noise "
            "they do not tell"
        )
    found = compare_kernel_reports(paths[0], paths[1])
    if format_ == "json":
        text = options.as_json(found)
    elif format_ == "markdown":
        from stepscope.render.ncu_markdown import report_diff_markdown

        text = report_diff_markdown(found)
    elif format_ == "html":
        from stepscope.render.ncu_html import report_diff_page

        text = report_diff_page(found)
    else:
        text = ncu.report_diff_text(found)
    options.write_to(text, output)


def _width(output: str | None) -> int | None:
    from stepscope.render.fitted import terminal_width

    return terminal_width() if output is None else None


def _trend(trend: Trend, format_: str, output: str | None) -> str:
    from stepscope.render.compare import trend_markdown, trend_text

    return trend_markdown(trend) if format_ == "markdown" else trend_text(trend, _width(output))


def _comparison(result: Comparison, format_: str, output: str | None) -> str:
    import msgspec

    from stepscope.render.compare import compare_markdown, compare_text
    from stepscope.render.compare_html import compare_html

    if format_ == "json":
        # profiles are for drawing; the baseline format holds them
        return options.as_json(msgspec.structs.replace(result, runs=[]))
    if format_ == options.TEXT:
        return compare_text(result, _width(output))
    return {"markdown": compare_markdown, "html": compare_html}[format_](result)
