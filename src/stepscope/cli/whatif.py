"""``stepscope whatif``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


def _list(format_: str) -> None:
    """Print what can be set, and nothing else."""
    from stepscope.api.explained import settings_known
    from stepscope.render.fitted import prose_width
    from stepscope.render.simulation import settings_json, settings_text

    if format_ == "json":
        options.write(settings_json(settings_known()))
    else:
        options.write(settings_text(settings_known(), prose_width()))


@registry.command(
    "Explain",
    order=2,
    examples={
        "stepscope whatif run1 --free input_starvation": "the step without a cause",
        "stepscope whatif run1 --set batch=2x --set precision=bf16": "with other settings",
        "stepscope whatif --list": "what can be set",
    },
)
@click.argument("paths", nargs=-1, type=click.Path(readable=False), metavar="PATH...")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=options.known_terms("setting of whatif", end="="),
    help="A setting of the program: batch=2x, workers=8, precision=bf16, graphs=on, "
    "optimizer=fused, accumulate=4, bucket=100, ranks=4, micro_batches=4:16. --list "
    "explains each.",
)
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="CAPTURE@NAME=VALUE",
    help="Another capture of the program, made with that setting: where --set asks for it, the "
    "times of the kernels are taken from there. Of another batch, they give the growth with the "
    "batch: --set batch=4x --with double.json@batch=2x.",
)
@click.option(
    "--list",
    "listing",
    is_flag=True,
    help="Explain what --set can set, what each setting needs, and how well it was checked.",
)
@click.option(
    "--free",
    multiple=True,
    metavar="CAUSE[,CAUSE]",
    shell_complete=options.known_terms("cause"),
    help="Causes of idle time to remove: input_starvation, host_sync, host_compute, "
    "blocking_copy, allocator_churn, launch_bound, ...",
)
@click.option(
    "--scale-kernel",
    "scale_kernels",
    multiple=True,
    metavar="REGEX=FACTOR",
    help="Kernels whose name matches REGEX take FACTOR times as long.",
)
@click.option(
    "--launches-free",
    is_flag=True,
    help="Launches cost the CPU nothing, and kernels follow one another as in a CUDA graph.",
)
@click.option(
    "--overlap-communication",
    is_flag=True,
    help="Communication overlaps with compute as far as dependencies allow.",
)
@click.option(
    "--rank-like-median",
    "ranks",
    multiple=True,
    type=int,
    metavar="RANK",
    help="This rank becomes as fast as the median rank.",
)
@click.option(
    "--even-work",
    type=click.Choice(["ranks", "stages"]),
    help="The GPU work of the ranks is spread evenly over them, part by part between two "
    "collectives of all ranks (ranks: tokens of experts, lengths of sequences), or over the stages "
    "of a pipeline (stages: layers).",
)
@options.formats(options.TEXT, "json")
@options.opening
def command(
    paths: tuple[str, ...],
    listing: bool,
    settings: tuple[str, ...],
    others: tuple[str, ...],
    free: tuple[str, ...],
    scale_kernels: tuple[str, ...],
    launches_free: bool,
    overlap_communication: bool,
    ranks: tuple[int, ...],
    even_work: str | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Predict the step after a change, by replaying the run with it.

    All changes are applied together, since the gain of one depends on the others; with several, the
    gain of each alone is printed as well. The replay of the unchanged run is printed with its error
    against the measured step.
    """
    if listing:
        _list(format_)
        return
    if not paths:
        raise click.MissingParameter(param_type="argument", param_hint="'PATH...'")
    from stepscope.api import Job
    from stepscope.api.explained import changes_of, other_capture

    changes = changes_of(
        free=[cause.strip() for item in free for cause in item.split(",")],
        scale_kernels=scale_kernels,
        launches_free=launches_free,
        overlap_communication=overlap_communication,
        ranks_like_median=ranks,
        even_work=even_work,
        settings=[one.strip() for item in settings for one in item.split(",")],
    )
    captured = [other_capture(text) for text in others]
    job = Job(paths, **opening)
    result = job.whatif(changes, {setting: Job([path], **opening) for path, setting in captured})
    if format_ == "json":
        options.write(options.as_json(result))
    else:
        from stepscope.render.fitted import terminal_width
        from stepscope.render.simulation import whatif_text

        options.write(whatif_text(result, terminal_width()))
    options.warn_of_problems(job)
