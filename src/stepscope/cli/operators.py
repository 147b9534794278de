"""``stepscope operators``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import Job, OpenOptions

_SHEETS = ("gemm", "convolution", "attention", "normalisation", "elementwise", "communication")
_GROUPINGS = ("name", "shape", "stack", "module", "source", "range", "category")


@registry.command(
    "Look",
    order=6,
    examples={
        "stepscope operators run.json.gz": "the table of torch.profiler",
        "stepscope operators run.json.gz --by shape --steady": "by input shapes, steady steps only",
        "stepscope operators run.json.gz --sheet gemm": "every GEMM against the ceilings",
    },
)
@options.paths
@click.option(
    "--by",
    type=click.Choice(_GROUPINGS),
    default=None,
    help="name: operators, annotations and CUDA calls; shape: name and input shapes; stack, "
    "source: the program's functions; module; range: innermost annotation; category: of the "
    "kernels. By default names where the capture holds operators, else ranges.",
)
@click.option(
    "--sort",
    default="",
    metavar="COLUMN",
    help="Sort by this numeric column, named as in csv, largest first; by default "
    "self_device_ns, or self_cpu_ns where nothing ran on a GPU.",
)
@click.option("--steady", is_flag=True, help="Only the steady steps instead of the whole capture.")
@click.option("--join", is_flag=True, help="Count the backward pass of an operator in its own row.")
@click.option(
    "--kernels", is_flag=True, help="List the kernels below each operator; json always has them."
)
@click.option(
    "--python",
    is_flag=True,
    help="Take traced Python functions out of the self time of what called them, as PyTorch 2.14 "
    "does: a row of their own then.",
)
@click.option(
    "--sheet",
    type=click.Choice(_SHEETS),
    help="Operators of one kind by unique inputs, in the steady steps: calls, time, TFLOP/s, TB/s, "
    "FLOP per byte, share of the ceiling.",
)
@click.option(
    "--replay",
    metavar="OPERATOR",
    help="Print a PyTorch program that runs this operator (aten::mm) again with its recorded "
    "inputs, the heaviest --limit of them (5 by default).",
)
@options.limit
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(
    paths: tuple[str, ...],
    by: str | None,
    sort: str,
    steady: bool,
    join: bool,
    kernels: bool,
    python: bool,
    sheet: str | None,
    replay: str | None,
    limit: int | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Show CPU and GPU time by operator, as key_averages() of torch.profiler.

    Self time excludes what an operator calls inside, total time includes it; GPU time is that of
    the kernels launched within. For Kineto traces the values equal those of torch's own table, by
    name and by shape, to the nanosecond. Captures without GPU work can be read as well. What no
    operator launched has a row of its own, so that self times add up. Times are in ms; in csv and
    json in ns.
    """
    from stepscope.api import Job
    from stepscope.render import operators as render
    from stepscope.render.fitted import SHOWN_ROWS, terminal_width

    job = Job(paths, **opening)
    if replay is not None:
        options.write(job.replay_script(replay, 5 if limit is None else limit))
        return
    shown = SHOWN_ROWS if limit is None else limit
    if sheet is not None:
        _write_sheet(job, sheet, format_, shown, limit or 0)
        options.warn_of_problems(job)
        return
    found = job.key_averages(
        by or "",
        steady=steady,
        join=join,
        kernels=kernels or format_ == "json",
        python=python,
        sort=sort,
    )
    if format_ == options.TEXT:
        options.write(render.averages_text(found, shown, terminal_width()))
    elif format_ == "markdown":
        options.write(render.averages_markdown(found, shown))
    elif format_ == "csv":
        table = render.averages_table(found)
        options.write_table(table.slice(0, limit or None), format_, found.schema)
    else:
        options.write(options.as_json(render.limited(found, limit or 0)))
    options.warn_of_problems(job)


def _write_sheet(job: Job, sheet: str, format_: str, shown: int, limit: int) -> None:
    from stepscope.render import operators as render
    from stepscope.render.fitted import terminal_width

    found = job.operator_sheet(sheet)
    if format_ == options.TEXT:
        options.write(render.sheet_text(found, shown, terminal_width()))
    elif format_ == "markdown":
        options.write(render.sheet_markdown(found, shown))
    elif format_ == "csv":
        options.write_table(
            render.sheet_table(found).slice(0, limit or None), format_, found.schema
        )
    else:
        options.write(options.as_json(found))
