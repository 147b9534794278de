"""``stepscope verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Compare",
    order=4,
    examples={
        "stepscope verify report.json run1": "a diagnosis stored with --format json",
    },
)
@click.argument("report", type=click.Path(path_type=Path))
@options.paths
@options.formats(options.TEXT, "json")
@options.ceilings
@options.timeout
@options.opening
def command(
    report: Path,
    paths: tuple[str, ...],
    format_: str,
    ceilings: str,
    timeout: float | None,
    opening: OpenOptions,
) -> None:
    """Recompute every number of a stored diagnosis from the capture it was made from.

    REPORT is what stepscope diagnose --format json wrote. Every evidence statement is run again,
    and every number of the report must equal its evidence. Exits with 1 when one differs, and names
    the first.
    """
    from stepscope.api import Job
    from stepscope.api.job import stored_options
    from stepscope.trace.errors import InputError

    try:
        text = report.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {report}: {error.strerror}; name a stored report") from error
    try:
        if not (opening["step"] or opening["step_kernel"]):
            opening = {**opening, **stored_options(text)}
        job = Job(paths, **opening, ceilings=ceilings)
        result = job.verify(text, timeout)
    except InputError as error:
        stated = str(error)
        if stated.startswith("the report"):
            stated = stated.replace("the report", str(report), 1)
        raise InputError(stated) from error
    if format_ == "json":
        options.write(options.as_json(result))
    elif result.verified:
        options.write(f"{result.checked} figures agree with the capture\n")
    else:
        from stepscope.render.text import clean

        first = result.differences[0]
        options.write(
            clean(
                f"{len(result.differences)} of {result.checked} figures differ; the first is "
                f"{first.figure} of {first.where}: reported {first.reported}, recomputed "
                f"{first.recomputed} ({first.why})",
                1000,
            )
            + "\n"
        )
    if not result.verified:
        raise click.exceptions.Exit(1)
