"""Files of digests: written, read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.trace.errors import InputError, StorageError

if TYPE_CHECKING:
    from stepscope.jobs.digest import Digest

SUFFIX = ".digest.parquet"
"""How files of digests are named."""

_NOT_OF_A_JOB = ("phases", "waits", "evidence", "categories")
"""Lists that a job's diagnosis does not look at: they are for people, and for queries."""


def write_digests(digests: list[Digest], path: Path) -> None:
    """Write digests as one Parquet file, a row each.

    Raises:
        StorageError: it cannot be written.
    """
    import pyarrow.parquet as pq

    from stepscope.jobs.digest import as_table, integer_leaves, text_leaves

    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            as_table(digests),
            partial,
            compression="zstd",
            compression_level=9,
            use_dictionary=text_leaves(),
            column_encoding=dict.fromkeys(integer_leaves(), "DELTA_BINARY_PACKED"),
            write_statistics=False,
            store_schema=False,
        )
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; make room, or choose another folder"
        ) from error


def read_digests(path: Path, *, whole: bool = False) -> list[Digest]:
    """The digests of one file.

    Args:
        path: the file.
        whole: with the lists that the diagnosis of a job does not look at.

    Raises:
        InputError: it is damaged, no file of digests, or of a newer version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stepscope.jobs.digest import VERSION, from_table

    try:
        file = pq.ParquetFile(path, pre_buffer=False)
        wanted = [name for name in file.schema_arrow.names if whole or name not in _NOT_OF_A_JOB]
        table = file.read(columns=wanted, use_threads=False)
        if "version" not in table.column_names or "steps" not in table.column_names:
            raise InputError(f"{path} is a Parquet file, but no digest of a rank")
        newest = max(table.column("version").to_pylist(), default=0)
        if newest is not None and newest > VERSION:
            raise InputError(
                f"{path} is a digest of version {newest}; this Stepscope reads up to {VERSION}: "
                "update it"
            )
        found = from_table(table, str(path))
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read as a digest: {why}") from error
    if not found:
        raise InputError(f"{path} holds no digest; make it again with stepscope digest")
    return found
