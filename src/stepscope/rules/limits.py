"""What rules share: the number of rows to show."""

from __future__ import annotations

from stepscope.tabular.report import Argument, Arguments

ROWS = Argument("rows", "show at most N rows (-1: all)", 50, low=-1)


def limit(arguments: Arguments) -> slice:
    """The rows to show."""
    rows = int(arguments["rows"])
    return slice(None) if rows < 0 else slice(rows)
