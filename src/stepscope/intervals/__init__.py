"""Interval algebra on sorted integer arrays. Imports numpy only."""

from stepscope.intervals.algebra import (
    complement,
    coverage,
    inside_any,
    intersect,
    overlap_per_window,
    subtract,
    total,
    union,
)
from stepscope.intervals.nesting import nest, stab_innermost

__all__ = [
    "complement",
    "coverage",
    "inside_any",
    "intersect",
    "nest",
    "overlap_per_window",
    "stab_innermost",
    "subtract",
    "total",
    "union",
]
