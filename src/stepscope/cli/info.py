"""``stepscope info``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@click.command()
@options.paths
@options.formats("text", "json")
@options.opening
def command(paths: tuple[str, ...], format_: str, opening: OpenOptions) -> None:
    """Show what a capture holds, what it lacks, and what was noticed while reading it."""
    from stepscope.api import Job

    job = Job(paths, **opening, apart=True)
    if format_ == "json":
        members = [
            {
                "path": str(member.trace.path).encode("utf-8", "replace").decode(),
                "rank": member.rank,
                "rank_source": member.rank_source,
                "meta": member.trace.meta,
            }
            for member in job.ranks
        ]
        document = {"schema": "stepscope.info/1", "traces": members, "remarks": job.remarks}
        options.write(options.as_json(document))
        return
    from stepscope.render.info import info_text
    from stepscope.render.text import clean

    options.write("\n".join(info_text(member) for member in job.ranks))
    for remark in job.remarks:
        options.write(f"{clean(remark, 400)}\n")
