"""``stepscope memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Look",
    order=7,
    examples={
        "stepscope memory snapshot.pickle": "who held memory at the peak",
        "stepscope memory snapshot.pickle --at oom": "when it ran out",
        "stepscope memory run.json.gz --batch 2 --fits 80G": "does twice the batch fit",
    },
)
@options.paths
@click.option(
    "--at",
    type=click.Choice(("peak", "oom", "end")),
    default="peak",
    show_default=True,
    help="The moment at which to show who holds memory.",
)
@click.option(
    "--by",
    type=click.Choice(("holder", "step", "time")),
    default="holder",
    show_default=True,
    help="With --format csv: what a row is.",
)
@click.option(
    "--batch",
    default=1.0,
    metavar="FACTOR",
    help="Predict the peak with FACTOR times the batch size, for example 2.",
)
@click.option(
    "--checkpoint",
    is_flag=True,
    help="Predict the peak with activation checkpointing of every layer; needs modules "
    "(with_stack=True).",
)
@click.option(
    "--zero",
    type=click.IntRange(1, 3),
    default=None,
    help="Predict the peak with this stage of ZeRO (2, 3: fully_shard) over --over ranks.",
    metavar="STAGE",
)
@click.option(
    "--over", default=2, show_default=True, help="Number of ranks for --zero.", metavar="RANKS"
)
@click.option(
    "--fits",
    default=None,
    callback=lambda _, __, text: options.size_of(text) if text else None,
    metavar="SIZE",
    help="Say whether the predicted peak fits into SIZE, for example 80G.",
)
@options.limit
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(
    paths: tuple[str, ...],
    at: str,
    by: str,
    batch: float,
    checkpoint: bool,
    zero: int | None,
    over: int,
    fits: int | None,
    limit: int | None,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Show GPU memory: over time by category, who held it at the peak, growth, fragmentation.

    Reads traces of torch.profiler with profile_memory=True, memory snapshots of PyTorch
    (torch.cuda.memory._dump_snapshot; nothing in the pickle is executed), and captures with the
    driver's allocations. Sizes are in MiB; in csv and json in bytes.

    --batch, --checkpoint and --zero, alone or together, predict the peak after a change by
    replaying the recorded history with it.
    """
    from stepscope.api import Job
    from stepscope.render import memory
    from stepscope.render.fitted import terminal_width

    job = Job(paths, **opening)
    change = None
    if batch != 1 or checkpoint or zero or fits:
        from stepscope.api.explained import memory_change

        change = memory_change(batch, checkpoint, zero or 0, over)
    found = job.memory(at, change, fits)
    rows = memory.shown_rows(limit)
    if format_ == "csv":
        options.write(memory.as_csv(found, by, limit or 0))
    elif format_ == "json":
        options.write(memory.as_json(found))
    elif format_ == "markdown":
        options.write(memory.as_markdown(found, rows))
    else:
        options.write(memory.as_text(found, rows, terminal_width()))
    options.warn_of_problems(job)
