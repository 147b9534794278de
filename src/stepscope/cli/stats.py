"""``stepscope stats``."""

from __future__ import annotations

import os
from typing import Any

import click

from stepscope.cli import options, outputs, registry


@registry.command(
    "As nsys",
    order=1,
    examples={
        "stepscope stats -r cuda_gpu_kern_sum run.json.gz": "one report",
        "stepscope stats -r nvtx_sum,osrt_sum -f csv -o . run.sqlite": "two, into files",
        "stepscope stats --help-reports ALL": "describe all reports",
    },
)
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[PATH]...")
@click.option(
    "-r",
    "--report",
    "names",
    multiple=True,
    shell_complete=options.known_terms("report"),
    help="NAME[:ARGUMENT...][,NAME...]; may be given several times.",
)
@outputs.filters
@click.option(
    "--report-dir", "folders", multiple=True, type=click.Path(), help="Folder with own reports."
)
@outputs.help_option("report")
@options.opening
def command(
    paths: tuple[str, ...],
    names: tuple[str, ...],
    folders: tuple[str, ...],
    **asked: Any,
) -> None:
    """Print reports, as nsys stats does, from any capture.

    Reports, formats and outputs are parallel lists: the first report is written in the first
    format to the first output, and the last format and output serve the rest. Without -r the
    default set is printed. A report whose data the capture lacks is skipped with a line that names
    the capture option.
    """
    options.import_numpy()
    from stepscope.api.reports import known_reports, stats_requests

    own = [*folders, *filter(None, os.environ.get("STEPSCOPE_REPORT_PATH", "").split(os.pathsep))]
    known = known_reports(own)
    outputs.answer(
        "report",
        paths,
        known,
        lambda written: stats_requests(written, known),
        names,
        outputs.Asked(**asked),
    )
