"""``stepscope stats``."""

from __future__ import annotations

import os

import click

from stepscope.cli import options, outputs


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[PATH]...")
@click.option(
    "-r",
    "--report",
    "names",
    multiple=True,
    help="NAME[:ARGUMENT...][,NAME...]; may be given several times.",
)
@outputs.filters
@click.option(
    "--report-dir", "folders", multiple=True, type=click.Path(), help="Folder with own reports."
)
@click.option(
    "--help-reports",
    "about",
    is_flag=False,
    flag_value="",
    default=None,
    help="List the reports, or describe one (or ALL).",
)
@options.again
def command(
    paths: tuple[str, ...],
    names: tuple[str, ...],
    formats: tuple[str, ...],
    outputs_: tuple[str, ...],
    window: str,
    nvtx: str,
    timeunit: str,
    force_overwrite: str,
    force_export: str,
    export: str | None,
    about_formats: str | None,
    quiet: bool,
    folders: tuple[str, ...],
    about: str | None,
    again: bool,
) -> None:
    """Print reports, as nsys stats does, from any capture.

    Reports, formats and outputs are parallel lists: the first report is written in the first
    format to the first output, and the last format and output serve the rest. Without -r the
    default set is printed. A report whose data the capture lacks is skipped with a line that names
    the capture option.
    """
    options.import_numpy()
    from stepscope.session import Session, known_reports, stats_requests

    own = [*folders, *filter(None, os.environ.get("STEPSCOPE_REPORT_PATH", "").split(os.pathsep))]
    known = known_reports(own)
    if about is not None:
        from stepscope.render.report_help import help_text

        options.write(help_text(known, about, "report"))
        return
    if outputs.described_formats(about_formats):
        return
    if not paths and not export:
        raise click.UsageError("name a capture; --help-reports lists the reports")
    requests = stats_requests(outputs.split(names), known)
    wanted = outputs.targets(requests, formats, outputs_, timeunit)
    again = again or force_export == "true"
    session = Session(outputs.inputs(paths, export, again=again), again=again, apart=True)
    answers = session.answers(requests, window=window, nvtx=nvtx)
    outputs.write_answers(answers, wanted, quiet=quiet, force=force_overwrite == "true")
