"""``stepscope analyze``."""

from __future__ import annotations

import click

from stepscope.cli import options, outputs


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[PATH]...")
@click.option(
    "-r",
    "--rule",
    "names",
    multiple=True,
    help="NAME[:ARGUMENT...][,NAME...], or all; may be given several times.",
)
@outputs.filters
@click.option(
    "--help-rules",
    "about",
    is_flag=False,
    flag_value="",
    default=None,
    help="List the rules, or describe one (or ALL).",
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
    about: str | None,
    again: bool,
) -> None:
    """Check rules, as nsys analyze does, on any capture.

    Each rule gives advice and a table of the places where it applies. Without -r the rules of
    nsys analyze are checked; -r all adds those that it lacks.
    """
    options.import_numpy()
    from stepscope.session import Session, known_rules, rule_requests

    if about is not None:
        from stepscope.render.report_help import help_text

        options.write(help_text(known_rules(), about, "rule"))
        return
    if outputs.described_formats(about_formats):
        return
    if not paths and not export:
        raise click.UsageError("name a capture; --help-rules lists the rules")
    requests = rule_requests(outputs.split(names))
    wanted = outputs.targets(requests, formats, outputs_, timeunit)
    again = again or force_export == "true"
    session = Session(outputs.inputs(paths, export, again=again), again=again, apart=True)
    answers = session.answers(requests, window=window, nvtx=nvtx)
    outputs.write_answers(answers, wanted, quiet=quiet, force=force_overwrite == "true")
