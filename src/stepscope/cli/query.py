"""``stepscope query``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.session import OpenOptions


@click.command()
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(readable=False), metavar="PATH..."
)
@click.argument("sql")
@options.formats(*options.TABLE_FORMATS)
@options.opening
def command(paths: tuple[str, ...], sql: str, format_: str, opening: OpenOptions) -> None:
    """Run SQL over the tables of a capture.

    Several PATHs, or a folder of them, are the ranks of one job. The canonical tables (gpu_op,
    api_call, range, operator, ...) and the analysis tables (step, idle_gap) are there with a column
    rank. One SELECT statement in DuckDB's dialect; nothing else can be read, and nothing is
    changed. "SHOW TABLES" and "DESCRIBE gpu_op" work too.
    """
    from stepscope.session import Session

    session = Session(paths, **opening)
    options.write_table(session.query(sql), format_, "stepscope.query/1")
    options.warn_of_problems(session)
