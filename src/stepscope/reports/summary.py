"""The columns that the summaries share: share, total, count, mean, median, extremes, spread."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.tabular.maths import (
    Statistics,
    nullable,
    percent_of_total,
    round_half_away,
    statistics,
    text_ranks,
)
from stepscope.tabular.report import Column
from stepscope.trace.frame import AnyArray, IntArray


def header(count: str, *tail: Column) -> tuple[Column, ...]:
    """The columns of a summary by duration.

    Args:
        count: label of the number of instances.
        tail: what the rows are grouped by.
    """
    return (
        Column("Time", "ratio", "share of the sum of all rows' totals"),
        Column("Total Time", "dur", "sum of the durations"),
        Column(count, doc="number of instances"),
        *spread_columns(),
        *tail,
    )


def spread_columns(prefix: str = "") -> tuple[Column, ...]:
    """Mean, median, extremes and standard deviation of durations."""
    return (
        Column(f"{prefix}Avg", "dur", "mean duration"),
        Column(f"{prefix}Med", "dur", "median duration"),
        Column(f"{prefix}Min", "dur", "shortest duration"),
        Column(f"{prefix}Max", "dur", "longest duration"),
        Column(f"{prefix}StdDev", "dur", "sample standard deviation of the durations"),
    )


def spread(found: Statistics, rows: AnyArray) -> list[Any]:
    """The values of :func:`spread_columns` for some groups, in order."""
    empty = found.count[rows] == 0
    return [
        nullable(round_half_away(found.avg[rows]), empty),
        nullable(round_half_away(found.med[rows]), empty),
        nullable(found.low[rows], empty),
        nullable(found.high[rows], empty),
        round_half_away(found.std[rows]),
    ]


def summary(found: Statistics, rows: AnyArray) -> list[Any]:
    """The values of :func:`header` without its tail, for some groups, in order."""
    share = percent_of_total(found.total)[rows]
    return [
        nullable(share, np.isnan(share)),
        found.total[rows],
        found.count[rows],
        *spread(found, rows),
    ]


def by_name(
    duration: IntArray, codes: IntArray, texts: list[str], *, count_matters: bool = False
) -> tuple[Statistics, IntArray, IntArray]:
    """Statistics by name, in the order of the summaries.

    Args:
        duration: ns.
        codes: each row's name.
        texts: the names.
        count_matters: among equal totals, fewer instances come first (before the name decides).

    Returns:
        The statistics, the order of their groups, and the code of each group.
    """
    from stepscope.tabular.maths import group

    groups, firsts = group(codes)
    found = statistics(duration, groups, len(firsts))
    names = codes[firsts]
    rank = np.append(text_ranks(texts), -1)[names]
    keys = (rank, found.count, -found.total) if count_matters else (rank, -found.total)
    return found, np.lexsort(keys), names
