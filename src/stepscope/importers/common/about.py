"""What importers tell of a capture alike: its rank by the environment, the tables it lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stepscope.trace.meta import MissingTable

RANK_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE", "PMI_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Environment variables of launchers: the rank, then those that may tell how many there are."""


def rank_of(variables: Mapping[str, Any]) -> tuple[int | None, int | None, str]:
    """Rank, world size and where they come from, by a program's environment."""
    for name, *sizes in RANK_VARIABLES:
        rank = _number(variables.get(name))
        if rank is not None:
            known = (size for text in sizes if (size := _number(variables.get(text))) is not None)
            return rank, next(known, None), f"environment {name}"
    return None, None, ""


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and re.fullmatch(r"\d{1,9}", text) else None


@dataclass(frozen=True)
class Option:
    """How to get a table.

    Attributes:
        table: canonical table, or ``osrt`` for the part of ``api_call`` with that name.
        what: what it holds, as subject of a sentence.
        flag: the option that provides it.
        traced: how the capture names the trace option, where it does.
    """

    table: str
    what: str
    flag: str
    traced: str = ""


def not_held(option: Option) -> str:
    """The reason where nothing more is known."""
    return f"the capture holds no {option.what}"


def without_rows(
    options: Iterable[Option],
    rows: Mapping[str, int],
    reason: Callable[[Option], str] = not_held,
) -> list[MissingTable]:
    """The tables without rows.

    Args:
        options: how to get each table.
        rows: rows of each canonical table (and of ``osrt``).
        reason: why a capture lacks a table.
    """
    return [MissingTable(o.table, reason(o), o.flag) for o in options if not rows.get(o.table)]
