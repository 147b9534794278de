"""``stepscope query``."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Final

import click

from stepscope.cli import options, registry
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from stepscope.api import OpenOptions

_EXAMPLE: Final = '"SELECT name, count(*) FROM gpu_op GROUP BY ALL"'


@registry.command(
    "Look",
    order=9,
    examples={
        'stepscope query run1 "SHOW TABLES"': "what there is",
        'stepscope query run1 "SELECT cause, count(*) FROM idle_gap GROUP BY cause"': (
            "idle time by cause"
        ),
    },
)
@click.argument("paths", nargs=-1, type=click.Path(readable=False), metavar="PATH...")
@click.argument("sql", default="", metavar="SQL")
@options.formats(*options.TABLE_FORMATS)
@options.timeout
@options.opening
def command(
    paths: tuple[str, ...], sql: str, format_: str, timeout: float | None, opening: OpenOptions
) -> None:
    """Run SQL over the tables of a capture.

    Several PATHs, or a folder of them, are the ranks of one job. There are the canonical tables
    (gpu_op, api_call, range, operator, ...) and the analysis tables (step, idle_gap, ...), all with
    a column rank. SQL is one SELECT statement in DuckDB's dialect, or "SHOW TABLES", "DESCRIBE
    gpu_op" or EXPLAIN; it can read nothing else and change nothing. It is ended after --timeout, or
    when it takes more memory than STEPSCOPE_QUERY_MEMORY (by default half of the machine's).
    """
    # the last word is taken for the statement, also where it is the capture
    if sql and (os.path.exists(sql) or not (paths or re.search(r"\s", sql.strip()))):  # noqa: PTH110 - a statement may be too long for a path
        raise UsageError(
            f"the SQL is missing; after the capture write a statement, as in stepscope query "
            f"{shlex.join((*paths, sql))} {_EXAMPLE}"
        )
    if not paths:
        raise UsageError(f"the capture is missing, as in stepscope query CAPTURE {_EXAMPLE}")
    from stepscope.api import Job

    job = Job(paths, **opening)
    options.write_table(job.query(sql, timeout), format_, "stepscope.query/1")
    options.warn_of_problems(job)
