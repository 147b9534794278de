"""``stepscope diagnose``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Explain",
    order=1,
    examples={
        "stepscope diagnose run.sqlite": "an Nsight Systems export",
        "stepscope diagnose run.rank*.json.gz": "PyTorch traces of the ranks of one job",
        "stepscope diagnose run1 --step train_one_batch": "say what a step is",
        "stepscope diagnose run1 --format json": "for scripts",
    },
)
@options.paths
@options.formats(options.TEXT, "json", "markdown")
@options.opening
@click.option(
    "--ncu",
    "reports",
    multiple=True,
    type=click.Path(readable=False),
    help="Nsight Compute report of the same program; can be repeated. Findings about kernels "
    "then name the cause inside the kernel.",
    metavar="REPORT",
)
@options.ceilings
@click.option(
    "--brief", is_flag=True, help="Print JSON of at most 1,000 tokens, for agents; times are ms."
)
@click.option(
    "--no-evidence",
    is_flag=True,
    help="Leave the numbers behind each finding out of the terminal output.",
)
def command(
    paths: tuple[str, ...],
    format_: str,
    opening: OpenOptions,
    reports: tuple[str, ...],
    ceilings: str,
    brief: bool,
    no_evidence: bool,
) -> None:
    """Name the causes of the step time, with evidence and the predicted gain.

    PATH is an Nsight Systems export (.sqlite, .nsys-rep, Parquet or Arrow folder), a PyTorch
    trace (.json, .json.gz, .json.zst) or a Stepscope trace. Several paths, or a folder of them,
    are the ranks of one job. A job of more than 32 ranks, or of digests, is diagnosed as by
    'stepscope job'.
    """
    from stepscope.api.digests import goes_by_digests

    if goes_by_digests(paths):
        _show_many(paths, "brief" if brief else format_, opening, bool(reports or ceilings))
        return
    show(
        paths,
        "brief" if brief else format_,
        opening=opening,
        evidence=not no_evidence,
        reports=reports,
        ceilings=ceilings,
    )


def _show_many(paths: tuple[str, ...], format_: str, opening: OpenOptions, more: bool) -> None:
    from stepscope.cli import job
    from stepscope.trace.errors import UsageError

    if more or format_ not in (options.TEXT, "json"):
        raise UsageError(
            "many ranks are diagnosed from their digests, without --brief, --ncu, --ceilings and "
            "--format markdown; leave these out, or name a few captures"
        )
    job.show(paths, format_, opening=opening)


def show(
    paths: tuple[str, ...],
    format_: str,
    *,
    opening: OpenOptions | None = None,
    evidence: bool = True,
    reports: tuple[str, ...] = (),
    ceilings: str = "",
) -> None:
    """Diagnose and print."""
    from stepscope.api import Job

    diagnosis = Job(paths, **(opening or {}), ceilings=ceilings).diagnose(reports)
    if format_ == "json":
        options.write(options.as_json(diagnosis))
    elif format_ == "brief":
        from stepscope.render.brief import brief_line

        options.write(brief_line(diagnosis))
    elif format_ == "markdown":
        from stepscope.render.markdown import diagnosis_markdown

        options.write(diagnosis_markdown(diagnosis))
    else:
        from stepscope.render.terminal import print_diagnosis

        print_diagnosis(diagnosis, options.console(), evidence=evidence)
