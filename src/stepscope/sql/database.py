"""The database that statements of Stepscope itself run in: one for all connections of a process.

Starting DuckDB takes longer than most reports and than twenty figures of evidence; a further
connection to what is started does not.
"""

from __future__ import annotations

import atexit
import os
from functools import cache
from typing import Any, Final

_OF_FEW_ROWS: Final = frozenset(
    {"expression_rewriter", "filter_pushdown", "regex_range", "row_group_pruner", "unused_columns"}
)
"""Passes of the optimizer that pay over few rows: to plan a statement takes most of its time there,
and the other passes, the order of joins above all, take a third of that."""


def compiled() -> Any:
    """DuckDB's compiled module where it stands alone (since 1.4), else the package."""
    try:
        import _duckdb
    except ImportError:
        import duckdb

        return duckdb
    return _duckdb


def connected(
    threads: int | None, memory_bytes: int | None = None, *, few_rows: bool = False
) -> Any:
    """A connection of its own to a database in memory that holds nothing.

    What others must not see is made temporary: it belongs to the connection, and goes with it.

    Args:
        threads: that the database works with; by default one for each CPU.
        memory_bytes: that it may use; by default DuckDB's own limit.
        few_rows: plan quickly what is evaluated quickly in any case.
    """
    return _database(threads, memory_bytes, few_rows, os.getpid()).cursor()


@cache
def _database(threads: int | None, memory_bytes: int | None, few_rows: bool, process: int) -> Any:
    """A database.

    Args:
        threads: that it works with.
        memory_bytes: that it may use.
        few_rows: whether statements are planned quickly.
        process: whose it is; a fork has none of the threads.
    """
    del process
    config: dict[str, bool | int | str] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "temp_directory": "",  # else a large statement writes into the working folder
        # else every name that DuckDB does not know is looked for among Python's variables
        "python_enable_replacements": False,
    }
    if threads is not None:
        config["threads"] = threads
    if memory_bytes is not None:
        config["memory_limit"] = f"{memory_bytes >> 20}MiB"
    found = compiled().connect(":memory:", config=config)
    if few_rows:
        passes = {name for (name,) in found.execute("FROM duckdb_optimizers()").fetchall()}
        found.execute(f"SET disabled_optimizers = '{','.join(sorted(passes - _OF_FEW_ROWS))}'")
    atexit.register(_database.cache_clear)  # what still lives then, DuckDB complains of
    return found
