"""``stepscope job``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions
    from stepscope.api.items import Engine


@registry.command(
    "Jobs",
    order=2,
    examples={
        "stepscope job digests/": "who is late, why, and what to fetch",
        "stepscope job digests/ --format html > job.html": "the same as a page with a heat map",
        "stepscope job digests/ --topology cluster.json": "slow switches and rails, too",
        "stepscope job nccl_trace_rank_*": "who never arrived at a collective that hangs",
        "stepscope job nccl-inspector-1234/": "who comes last to collectives, which link is slow",
    },
)
@options.paths
@options.formats(options.TEXT, "json", "html")
@click.option(
    "--topology",
    default="",
    metavar="FILE",
    type=click.Path(readable=False),
    help="JSON file that says which nodes hang at which switch, and which ranks at which rail.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="End with exit code 2 at an input that is damaged, given twice, or of another job; by "
    "default it is left out and named.",
)
@options.spread
@options.opening
def command(
    paths: tuple[str, ...],
    format_: str,
    topology: str,
    strict: bool,
    engine: Engine,
    opening: OpenOptions,
) -> None:
    """Diagnose a job of many ranks from their digests.

    PATH is a digest (stepscope digest), a folder of digests, or a capture, whose digest is made on
    the way; also a dump of PyTorch's flight recorder, which tells which rank never arrived at a
    collective, and a log of NCCL Inspector, which tells who comes last and which link is slow. A
    URL that fsspec knows (S3, GCS, HTTP) stands for the digests there, or for the captures.

    Says which ranks, nodes, switches or rails are late and why, what their repair gains the job,
    and which five full captures to fetch.
    """
    show(paths, format_, topology=topology, strict=strict, opening=opening, engine=engine)


def show(
    paths: tuple[str, ...],
    format_: str,
    *,
    topology: str = "",
    strict: bool = False,
    opening: OpenOptions,
    engine: Engine | None = None,
) -> None:
    """Diagnose a job from digests and print."""
    from stepscope.api.digests import diagnose_digests

    found = diagnose_digests(
        paths, topology=topology, strict=strict, options=opening, engine=engine
    )
    if format_ == "json":
        options.write(options.as_json(found))
    elif format_ == "html":
        from stepscope.render.job_html import job_page

        options.write(job_page(found))
    else:
        from stepscope.render.fitted import terminal_width
        from stepscope.render.job import job_text

        options.write(job_text(found, terminal_width()))
