"""A trace opened for reading, and a job of several traces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.trace.frame import Frame, from_arrow
from stepscope.trace.meta import Meta
from stepscope.trace.schema import TABLES
from stepscope.trace.store import damaged, read_meta, read_row, read_table

if TYPE_CHECKING:
    import pyarrow as pa


class Trace:
    """The canonical tables of one captured process or report, read lazily by column.

    Args:
        folder: a ``NAME.stepscope`` directory.
        path: the file that the user named, for messages; defaults to ``folder``.

    Raises:
        InputError: when the folder is not a readable trace.
    """

    def __init__(self, folder: Path, path: Path | None = None) -> None:
        self.folder = folder
        self.path = path or folder
        self._frames: dict[tuple[str, tuple[str, ...]], Frame] = {}
        self._kept: dict[str, Frame] = {}
        self.meta  # noqa: B018 - fail here, where the path is known

    @cached_property
    def meta(self) -> Meta:
        """Source, window, rank, problems: see :class:`~stepscope.trace.meta.Meta`."""
        return read_meta(self.folder)

    def rows(self, table: str) -> int:
        """Number of rows of a canonical table; 0 when the source does not hold it."""
        return self.meta.rows.get(table, 0)

    def arrow(self, table: str, columns: list[str] | None = None) -> pa.Table:
        """Columns of one table as Arrow, sorted by its time column.

        Raises:
            UsageError: unknown table or column.
            InputError: the stored table is damaged, or gone.
        """
        read = read_table(self.folder, table, columns)
        if len(read) != self.rows(table):
            raise damaged(
                self.folder / f"{table}.parquet",
                f"it holds {len(read)} rows instead of {self.rows(table)}",
            )
        return read

    def row(self, table: str, row: int) -> dict[str, object]:
        """One row of one table, all columns.

        Raises:
            UsageError: there is no such row.
            InputError: the stored table is damaged, or gone.
        """
        return read_row(self.folder, table, row)

    def frame(self, table: str, *columns: str) -> Frame:
        """Columns of one table as numpy, kept: a column is read once, whoever asks for it."""
        key = (table, columns)
        found = self._frames.get(key)
        if found is None:
            if table not in TABLES:
                self.arrow(table)  # says which there are
            wanted = columns or tuple(TABLES[table].column_names())
            kept = self._kept.get(table, Frame({}))
            absent = [name for name in wanted if name not in kept]
            if absent:
                read = from_arrow(self.arrow(table, absent))
                kept = Frame({**kept.columns, **read.columns}, {**kept.texts, **read.texts})
                self._kept[table] = kept  # a new frame: others may be reading the old one
            found = self._frames[key] = kept.only(wanted)
        return found


@dataclass(frozen=True)
class Member:
    """One trace of a job with its rank and where the rank comes from."""

    trace: Trace
    rank: int
    rank_source: str


@dataclass(frozen=True)
class Job:
    """The traces that were captured together, ordered by rank.

    Attributes:
        members: the ranks.
        remarks: what was assumed when the ranks were assigned, in sentences.
    """

    members: list[Member]
    remarks: list[str]

    @property
    def traces(self) -> list[Trace]:
        """The traces, ordered by rank."""
        return [member.trace for member in self.members]
