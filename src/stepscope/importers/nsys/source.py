"""What the readers need from a set of exported tables, however these are stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 16
"""Rows a batch holds; with the columns of the widest table that is some 10 MB."""

Raw = Literal["int", "float", "text"]
"""How a column is delivered: int64, float64 or (clean) string."""

BadValues = Callable[[int, str], None]
"""Called with a number of values that had another type, and where the first one stands."""

Where = tuple[str, Sequence[int]]
"""Only rows whose integer column has one of these values."""


@dataclass(frozen=True)
class Declared:
    """How the source itself declares a column."""

    raw: Raw
    nullable: bool


class Source(Protocol):
    """Exported tables, read by name in batches."""

    def tables(self) -> list[str]:
        """Names of all tables."""

    def columns(self, table: str) -> Mapping[str, Declared]:
        """The columns of a table."""

    def batches(
        self,
        table: str,
        columns: Mapping[str, Raw],
        bad: BadValues,
        where: Where | None = None,
        order: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a table, as batches of at most ``BATCH_ROWS`` rows.

        Args:
            table: a name from :meth:`tables`.
            columns: names from :meth:`columns`, or ``rowid``; and the form each is wanted in.
            bad: receives values of another type; they are delivered as null.
            where: keep only these rows.
            order: a column to sort by, where the source can do so in bounded memory; without it
                the rows come as they are stored.

        Raises:
            InputError: the table cannot be read whole.
        """

    def close(self) -> None:
        """Release files and temporary folders."""


def find_table(source: Source, name: str) -> str | None:
    """The table ``name`` or its newest versioned variant (``NAME_V2``)."""
    pattern = re.compile(re.escape(name) + r"(?:_V(\d+))?", re.IGNORECASE)
    matches = [match for table in source.tables() if (match := pattern.fullmatch(table))]
    if not matches:
        return None
    # the plain name first: it is what every documented version has
    return min(matches, key=lambda match: -int(match[1] or 1 << 30)).string
