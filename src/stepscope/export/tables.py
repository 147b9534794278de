"""The canonical tables as files that other programs read: Parquet, or Arrow's IPC files.

A folder with one file a table. Every table begins with the column ``trace_rank``. Text columns stay
dictionary-encoded, in Arrow of several ranks they become plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepscope.trace.schema import TABLES
from stepscope.trace.trace import RankTrace

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES: Final = {"parquet": ".parquet", "arrow": ".arrow"}


def write(ranks: Sequence[RankTrace], folder: Path, kind: str) -> list[str]:
    """Write all tables that hold rows.

    Args:
        ranks: the job's traces.
        folder: an existing empty folder.
        kind: ``parquet`` or ``arrow``.

    Returns:
        The tables.

    Raises:
        OSError: a file cannot be written.
        InputError: a stored table is damaged.
    """
    written = []
    for name in TABLES:
        held = [rank_trace for rank_trace in ranks if rank_trace.trace.rows(name)]
        if held:
            _table(held, name, folder / f"{name}{SUFFIXES[kind]}", kind)
            written.append(name)
    return written


def _table(ranks: Sequence[RankTrace], name: str, path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: pq.ParquetWriter | pa.RecordBatchFileWriter | None = None
    try:
        for rank_trace in ranks:
            table = with_rank(rank_trace.trace.arrow(name), rank_trace.rank)
            if writer is None and kind == "parquet":
                writer = pq.ParquetWriter(path, table.schema, compression="zstd")
            elif writer is None:
                options = pa.ipc.IpcWriteOptions(compression="zstd", unify_dictionaries=True)
                # a file of this form holds one dictionary a column, so ranks become plain text
                table = table if len(ranks) == 1 else _plain(table)
                writer = pa.ipc.new_file(str(path), table.schema, options=options)
            elif kind == "arrow":
                table = _plain(table)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def with_rank(table: pa.Table, rank: int) -> pa.Table:
    """A table with its rank as first column."""
    import pyarrow as pa

    column = pa.array([rank] * len(table), pa.int32())
    return table.add_column(0, pa.field("trace_rank", pa.int32(), nullable=False), column)


def _plain(table: pa.Table) -> pa.Table:
    """Text columns without dictionaries."""
    import pyarrow as pa

    fields = [
        field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
