"""``stepscope whatif``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@click.command()
@options.paths
@click.option(
    "--free",
    multiple=True,
    metavar="CAUSE[,CAUSE]",
    help="Causes of idle time that are gone: input_starvation, host_sync, host_compute, "
    "blocking_copy, allocator_churn, launch_bound, ...",
)
@click.option(
    "--scale-kernel",
    "scale_kernels",
    multiple=True,
    metavar="REGEX=FACTOR",
    help="Kernels whose name matches take FACTOR times as long.",
)
@click.option(
    "--launches-free",
    is_flag=True,
    help="Launches cost the host nothing, and kernels follow one another as in a CUDA graph.",
)
@click.option(
    "--overlap-communication",
    is_flag=True,
    help="Communication is hidden behind compute as far as dependencies allow.",
)
@click.option(
    "--rank-like-median",
    "ranks",
    multiple=True,
    type=int,
    metavar="RANK",
    help="The rank is as fast as the median rank.",
)
@options.formats("text", "json")
@options.opening
def command(
    paths: tuple[str, ...],
    free: tuple[str, ...],
    scale_kernels: tuple[str, ...],
    launches_free: bool,
    overlap_communication: bool,
    ranks: tuple[int, ...],
    format_: str,
    opening: OpenOptions,
) -> None:
    """Predict the step after a change, by replaying the run with it.

    All changes are made together: what one of them gains depends on the others. The unchanged
    replay is printed too, with how far it is from the measured step.
    """
    from stepscope.api import Job
    from stepscope.api.explained import changes_of

    changes = changes_of(
        free=[cause.strip() for item in free for cause in item.split(",")],
        scale_kernels=scale_kernels,
        launches_free=launches_free,
        overlap_communication=overlap_communication,
        ranks_like_median=ranks,
    )
    job = Job(paths, **opening)
    result = job.whatif(changes)
    if format_ == "json":
        options.write(options.as_json(result))
    else:
        from stepscope.render.simulation import whatif_text

        options.write(whatif_text(result))
    options.warn_of_problems(job)
