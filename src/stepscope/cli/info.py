"""``stepscope info``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Look",
    order=10,
    examples={
        "stepscope info run1": "tables, metadata, import problems",
    },
)
@options.paths
@options.formats(options.TEXT, "json")
@options.opening
def command(paths: tuple[str, ...], format_: str, opening: OpenOptions) -> None:
    """Show what a capture holds, what it lacks, and what was noticed while reading it."""
    from stepscope.api import Job

    job = Job(paths, **opening, apart=True)
    if format_ == "json":
        rank_traces = [
            {
                "path": str(rank_trace.trace.path).encode("utf-8", "replace").decode(),
                "rank": rank_trace.rank,
                "rank_source": rank_trace.rank_source,
                "meta": rank_trace.trace.meta,
            }
            for rank_trace in job.ranks
        ]
        document = {"schema": "stepscope.info/2", "traces": rank_traces, "warnings": job.warnings}
        options.write(options.as_json(document))
        return
    from stepscope.render.fitted import terminal_width
    from stepscope.render.info import info_text
    from stepscope.render.text import clean

    options.write("\n".join(info_text(rank_trace, terminal_width()) for rank_trace in job.ranks))
    for warning in job.warnings:
        options.write(f"{clean(warning, 400)}\n")
